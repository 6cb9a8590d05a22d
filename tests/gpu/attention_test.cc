// SPDX-License-Identifier: Apache-2.0
// The attention kernels on the simulator, against the oracle from identical packed operands: the case list, with copies
// that land early and late in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cases/problem.h"
#include "cases/tolerances.h"
#include "gpu/attention/attention_kernel.h"
#include "gpu/attention/configs.h"
#include "reference/pack.h"
#include "reference/quantize.h"
#include "reference/unpack.h"
#include "sim/sim.h"

namespace clary::cases {

inline void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

namespace {

struct Simulated {
    gpu::Chip chip;
    gpu::AttentionConfig config;
    sim::Report (*launch)(const gpu::AttentionParams& params, const sim::Options& options);
};

template <gpu::Machine kMachine, gpu::AttentionNeeds kNeeds>
Simulated simulated() {
    using T = sim::Sim<kMachine>;
    static constexpr gpu::AttentionConfig kConfig = gpu::config_for(kNeeds);
    using Kernel = gpu::AttentionKernel<T, kConfig>;
    return {kMachine.chip, kConfig, [](const gpu::AttentionParams& params, const sim::Options& options) {
                const int64_t blocks = gpu::attention_blocks(params.desc, Kernel::kTileQ);
                return sim::launch<T>({static_cast<int>(blocks), 1, 1}, Kernel::kThreads, Kernel::kSharedBytes, options,
                                      [&] { Kernel::run(params); });
            }};
}

using gpu::Element;
using gpu::KeyScales;

const std::vector<Simulated>& kernels() {
    static const std::vector<Simulated> all = {
        simulated<gpu::kSm80, {Element::kS8, Element::kS8, 64, 64, 128, true, KeyScales::kLane, false}>(),
        simulated<gpu::kSm80, {Element::kS8, Element::kS8, 64, 64, 128, false, KeyScales::kLane, false}>(),
        simulated<gpu::kSm80, {Element::kS8, Element::kS8, 64, 64, 64, true, KeyScales::kLane, false}>(),
        simulated<gpu::kSm80, {Element::kS8, Element::kS8, 64, 64, 128, true, KeyScales::kKey, true}>(),
        simulated<gpu::kSm80, {Element::kS8, Element::kS8, 128, 128, 128, true, KeyScales::kLane, false}>(),
        simulated<gpu::kSm80, {Element::kS8, Element::kF16, 64, 64, 128, true, KeyScales::kKey, false}>(),
        simulated<gpu::kSm80, {Element::kS8, Element::kF16, 64, 64, 128, true, KeyScales::kKey, true}>(),
        simulated<gpu::kSm80, {Element::kS8, Element::kBf16, 64, 64, 128, true, KeyScales::kKey, false}>(),
        simulated<gpu::kSm80, {Element::kF16, Element::kF16, 64, 64, 128, false, KeyScales::kNone, false}>(),
        simulated<gpu::kSm80, {Element::kBf16, Element::kBf16, 64, 64, 128, false, KeyScales::kNone, true}>(),
        simulated<gpu::kSm75, {Element::kS8, Element::kS8, 64, 64, 64, true, KeyScales::kLane, false}>(),
        simulated<gpu::kSm75, {Element::kS8, Element::kF16, 64, 64, 64, true, KeyScales::kKey, false}>(),
        simulated<gpu::kXcore1000, {Element::kS8, Element::kF16, 64, 64, 64, true, KeyScales::kKey, false}>(),
    };
    return all;
}

constexpr const char* kRecipes[] = {
    "int8_int8",         "int8_int8:fast", "int8_int8:fast+v_scale=channel_tile+smooth_v",
    "int8_int8+tile=64", "int8_fp16",      "int8_fp16+tile=64",
    "int8_bf16",         "fp16_fp16",      "bf16_bf16"};

class SimulatedAttention : public testing::TestWithParam<Case> {};

// Operands as the reference quantizes them, in buffers of the GPU's arrangement; all that is not an element is 0, as the
// packing kernels leave it.
struct Packed {
    Packed(const AttentionDesc& desc)
        : q_layout(packed_q_layout(desc, kMmaArrangement)),
          kv_layout(packed_kv_layout(desc, 0, kMmaArrangement)),
          q(static_cast<size_t>(q_layout.bytes)),
          kv(static_cast<size_t>(kv_layout.bytes)) {
        std::fill_n(static_cast<char*>(q.data()), q.size(), 0);
        std::fill_n(static_cast<char*>(kv.data()), kv.size(), 0);
        write_header(desc, q_layout, q.data(), 0);
        write_header(desc, kv_layout, kv.data(), 0);
        for (int64_t b = 0; b < desc.batch; ++b)
            for (int64_t h = 0; h < desc.kv_heads; ++h)
                reference::pack_head(desc, b, h, reference::quantize_head(desc, b, h), q.data(), kv.data(),
                                     kMmaArrangement);
    }
    PackedLayout q_layout, kv_layout;
    Guarded q, kv;
};

void expect_near(const Output& result, const Output& oracle, const Recipe& recipe, const Case& c) {
    EXPECT_LE(relative_l1(result.out, oracle.out), attend_l1(recipe, c) + output_rounding(c.out));
    const double largest = largest_magnitude(oracle.out);
    EXPECT_LE(largest_difference(result.out, oracle.out),
              (attend_max(recipe) + output_rounding(c.out)) * largest + 1e-30);
    ASSERT_EQ(result.lse.size(), oracle.lse.size());
    for (size_t i = 0; i < oracle.lse.size(); ++i) {
        if (std::isfinite(oracle.lse[i]))
            ASSERT_NEAR(result.lse[i], oracle.lse[i], kLse + lse_rounding(oracle.lse[i])) << "lse " << i;
        else
            ASSERT_EQ(result.lse[i], oracle.lse[i]) << "lse " << i;
    }
}

TEST_P(SimulatedAttention, IsTheOracle) {
    const Case& c = GetParam();
    Problem problem(c);
    uint64_t seed = 1;
    for (const char* recipe : kRecipes) {
        const AttentionDesc desc = desc_of(problem.params, recipe);
        if (desc.head_dim > 256 || desc.head_dim_v > 256) return;
        if (gpu::attention_blocks(desc, 1) == 0) return;  // nothing is launched
        if (c.values == Values::kHugeV && desc.recipe.pv == Format::kFp16 && !desc.recipe.quantized())
            continue;  // fp16 does not hold it
        const gpu::AttentionConfig wanted = gpu::config_for(gpu::needs_of(desc));
        std::unique_ptr<Packed> packed;
        Output oracle;
        for (const Simulated& kernel : kernels()) {
            if (kernel.config != wanted) continue;
            SCOPED_TRACE(std::string(recipe) + " on chip " + std::to_string(static_cast<int>(kernel.chip)));
            if (!packed) {
                packed = std::make_unique<Packed>(desc);
                const AttentionDesc to = redirect(desc, problem.params, &oracle);
                const Status status =
                    reference::attend_packed(to, 0, packed->q.data(), packed->kv.data(), 1, kMmaArrangement);
                ASSERT_TRUE(status.is_ok()) << status.text();
            }
            problem.poison_outputs();
            sim::Options options;
            options.copies = ++seed % 2 == 0 ? sim::Copies::kEarly : sim::Copies::kLate;
            options.seed = seed;
            const sim::Report report =
                kernel.launch(gpu::attention_params(desc, 0, packed->q.data(), packed->kv.data()), options);
            ASSERT_TRUE(report.ok()) << report.describe();
            EXPECT_EQ(report.counters.bank_conflicts, 0) << report.describe();
            EXPECT_EQ(problem.damage(), "");
            expect_near(problem.output(), oracle, desc.recipe, c);
            if (HasFatalFailure()) return;
        }
    }
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
    std::string name = info.param.name;
    for (char& letter : name)
        if (letter == '-') letter = 'm';
    return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, SimulatedAttention, testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace clary::cases
