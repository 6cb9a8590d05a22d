// SPDX-License-Identifier: Apache-2.0
// The CPU's packed operands against the reference quantizer: equal codes but near ties, equal scales.
#include <cmath>

#include "cases/tolerances.h"
#include "cpu/run.h"
#include "reference/quantize.h"
#include "reference/unpack.h"

namespace clary::cases {
namespace {

struct Tally {
    int64_t codes = 0, differ = 0, far = 0;  // far: by more than one

    void add(const std::vector<float>& a, const std::vector<float>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i) {
            ++codes;
            differ += a[i] != b[i];
            far += std::fabs(a[i] - b[i]) > 1;
        }
    }
};

void expect_near(const char* what, const std::vector<float>& a, const std::vector<float>& b, double relative,
                 double absolute) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(a[i], b[i], relative * std::fabs(static_cast<double>(b[i])) + absolute) << what << " " << i;
}

class Packer : public testing::TestWithParam<Case> {};

TEST_P(Packer, DecidesAsTheReference) {
    const Case& c = GetParam();
    Problem problem(c);
    for (const char* recipe : recipes()) {
        Tally q, k, v;
        int64_t units = 0, units_differ = 0, weights_differ = 0;
        const AttentionDesc desc = desc_of(problem.params, recipe);
        const double mean_error = kMeanError * (c.values == Values::kLoudToken || c.values == Values::kHugeV ? 100 : 1);
        if (!desc.recipe.quantized()) continue;
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            const clary_attention_params params = with(problem, recipe, tier);
            if (!takes(params)) continue;
            const Packed packed = pack(params);
            for (int64_t b = 0; b < desc.batch; ++b)
                for (int64_t h = 0; h < desc.kv_heads; ++h) {
                    const reference::HeadOperands expected = reference::quantize_head(desc, b, h);
                    reference::HeadOperands got;
                    ASSERT_TRUE(
                        reference::unpack_head(desc, 0, packed.q->data(), packed.kv->data(), b, h, &got).is_ok());
                    if (expected.q_len == 0) continue;  // nothing reads q_base, nor what follows from it
                    expect_near("c_k", got.c_k, expected.c_k, kScaleError, mean_error);
                    expect_near("c_q", got.c_q, expected.c_q, kScaleError, mean_error);
                    expect_near("v_mean", got.v_mean, expected.v_mean, kScaleError, mean_error);
                    expect_near("q_scale", got.q_scale, expected.q_scale, kScaleError, mean_error / 127);
                    expect_near("k_scale", got.k_scale, expected.k_scale, kScaleError, mean_error / 127);
                    expect_near("v_scale", got.v_scale, expected.v_scale, kScaleError, mean_error / 127);
                    expect_near("q_shift", got.q_shift, expected.q_shift, 4 * kScaleError, mean_error);
                    EXPECT_EQ(got.q_repeat, expected.q_repeat);
                    q.add(got.q, expected.q);
                    k.add(got.k, expected.k);
                    if (desc.recipe.pv == Format::kInt8) v.add(got.v, expected.v);
                    for (size_t j = 0; j < got.bias_units.size(); ++j) {
                        ++units;
                        units_differ += got.bias_units[j] != expected.bias_units[j];
                        ASSERT_LE(std::abs(got.bias_units[j] - expected.bias_units[j]), 1) << "bias units of key " << j;
                    }
                    ASSERT_EQ(got.v_weight.size(), expected.v_weight.size());
                    for (size_t j = 0; j < got.v_weight.size(); ++j)
                        weights_differ += got.v_weight[j] != expected.v_weight[j];
                }
        }
        for (const auto& [name, tally] : {std::pair{"q", q}, {"k", k}, {"v", v}}) {
            EXPECT_EQ(tally.far, 0) << name << " codes of " << recipe;
            EXPECT_LE(static_cast<double>(tally.differ), 2 + kCodeFlipRate * static_cast<double>(tally.codes))
                << name << " codes of " << recipe;
        }
        EXPECT_LE(static_cast<double>(units_differ), 2 + 0.01 * static_cast<double>(units))
            << "bias units of " << recipe;
        EXPECT_LE(static_cast<double>(weights_differ), 0.001 * static_cast<double>(units)) << "V weights of " << recipe;
    }
}

std::vector<Case> packer_cases() {
    std::vector<Case> cases;
    for (const Case& c : all_cases())
        for (const char* name : {"q129_k300", "heads_9_3", "nhd_bf16", "every_second_fp16", "dim80_v33", "dim3",
                                 "dim256", "varlen_empty_segments", "lengths", "paged_odd_pages", "scale_negative",
                                 "scale_zero", "zero_channel", "channel_bias", "sink_key", "loud_token", "huge_v"})
            if (c.name == name) cases.push_back(c);
    return cases;
}

std::string name_of(const testing::TestParamInfo<Case>& param) { return param.param.name; }

INSTANTIATE_TEST_SUITE_P(Cases, Packer, testing::ValuesIn(packer_cases()), name_of);

}  // namespace
}  // namespace clary::cases
