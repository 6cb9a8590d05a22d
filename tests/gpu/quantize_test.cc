// SPDX-License-Identifier: Apache-2.0
// The GPU's quantization kernels on the simulator, against the reference quantizer with the vectors that they chose:
// equal codes but near ties, equal scales. The vectors themselves against means over all tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cases/tolerances.h"
#include "gpu/quantize.h"
#include "reference/quantize.h"
#include "reference/smoothing.h"
#include "reference/unpack.h"

namespace clary::cases {

namespace {

// Codes that differ, and by more than one step. Steps: 1 of integers; of FP8 and 16-bit values a relative one.
struct Tally {
    const char* name;
    double relative = 0;
    int64_t codes = 0, differ = 0, far = 0;

    void add(const std::vector<float>& a, const std::vector<float>& b) {
        ASSERT_EQ(a.size(), b.size()) << name;
        for (size_t i = 0; i < a.size(); ++i) {
            ++codes;
            const double apart = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
            if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;  // also two infinities
            ++differ;
            far += !(apart <= (relative > 0 ? relative * std::fabs(b[i]) + 0x1p-9 : 1.0));
        }
    }
    void judge() const {
        EXPECT_EQ(far, 0) << name << " codes";
        EXPECT_LE(static_cast<double>(differ), 2 + kCodeFlipRate * static_cast<double>(codes)) << name << " codes";
    }
};

double step_of(Format format) {
    return format == Format::kFp8 ? 0.125 : format == Format::kFp16 ? 0x1p-10 : format == Format::kBf16 ? 0x1p-7 : 0;
}

void expect_near(const char* what, const std::vector<float>& a, const std::vector<float>& b, double relative,
                 double absolute) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(std::isnan(a[i]), std::isnan(b[i])) << what << " " << i;
        if (std::isnan(b[i])) continue;
        ASSERT_NEAR(a[i], b[i], relative * std::fabs(static_cast<double>(b[i])) + absolute) << what << " " << i;
    }
}

// What belongs to keys of tiles without a value that is not finite: nobody reads the others.
std::vector<float> in_good_tiles(const reference::HeadOperands& o, std::vector<float> of_keys) {
    for (size_t i = 0; i < of_keys.size(); ++i) {
        const size_t key = i / (of_keys.size() / static_cast<size_t>(o.kv_len));
        if (std::isnan(o.tile_base[key / static_cast<size_t>(o.recipe.tile)])) of_keys[i] = 0;
    }
    return of_keys;
}

// What belongs to rows of Q without such a value.
std::vector<float> of_good_rows(const reference::HeadOperands& o, std::vector<float> of_rows) {
    for (size_t i = 0; i < of_rows.size(); ++i)
        if (std::isnan(o.q_scale[i])) of_rows[i] = 0;
    return of_rows;
}

// v_sum of every tile and channel, where there is one, against the codes.
void expect_sums(const AttentionDesc& desc, const Packed& packed, int64_t b, int64_t h,
                 const reference::HeadOperands& got) {
    const auto* const sums = section<int32_t>(packed.kv_layout, packed.kv.data(), "v_sum");
    EXPECT_EQ(sums != nullptr, packed.arrangement.v_sums && desc.recipe.pv == Format::kInt8);
    if (sums == nullptr) return;
    const PackedRows rows = packed_kv_rows(desc, packed.kv_capacity);
    const int64_t dim_v = find_section(packed.kv_layout, "v_sum")->shape[3], tile = desc.recipe.tile;
    const int64_t first = rows.begin(b, h, desc.kv_heads, sequence_of(desc, b).kv_begin) / tile;
    for (int64_t t = 0; t < got.tiles(); ++t)
        for (int64_t d = 0; d < dim_v; ++d) {
            int64_t sum = 0;
            for (int64_t j = t * tile; j < std::min((t + 1) * tile, got.kv_len) && d < got.dim_v; ++j)
                sum += static_cast<int64_t>(got.v[static_cast<size_t>(j * got.dim_v + d)]);
            ASSERT_EQ(sums[(first + t) * dim_v + d], sum) << "tile " << t << ", channel " << d;
        }
}

// Every head of the packed buffers against the reference quantizer with the same vectors.
void expect_as_reference(const AttentionDesc& desc, const Packed& packed, double mean_error) {
    EXPECT_TRUE(packed.q.canaries_intact() && packed.kv.canaries_intact());
    EXPECT_TRUE(check_header("q", desc, packed.q_layout, packed.q.data()).is_ok());
    EXPECT_TRUE(check_header("kv", desc, packed.kv_layout, packed.kv.data()).is_ok());
    const AttentionDesc given = with_vectors(desc, packed);
    Tally q{"q", step_of(desc.recipe.qk)}, k{"k", step_of(desc.recipe.qk)}, v{"v", step_of(desc.recipe.pv)};
    int64_t units = 0, units_differ = 0, weights_differ = 0;
    for (int64_t b = 0; b < desc.batch; ++b)
        for (int64_t h = 0; h < desc.kv_heads; ++h) {
            const reference::HeadOperands expected = reference::quantize_head(given, b, h);
            reference::HeadOperands got;
            ASSERT_TRUE(reference::unpack_head(desc, packed.kv_capacity, packed.q.data(), packed.kv.data(), b, h, &got,
                                               packed.arrangement)
                            .is_ok());
            expect_sums(desc, packed, b, h, got);
            if (expected.q_len == 0) continue;  // nothing reads q_base, nor what follows from it
            EXPECT_EQ(got.kv_len, expected.kv_len);
            expect_near("v_mean", got.v_mean, expected.v_mean, kScaleError, mean_error);
            expect_near("q_scale", got.q_scale, expected.q_scale, kScaleError, 0);
            // A scale may be what leaves room for biases (numerics/digits.h): differences to tile_base, as exact as that is.
            const double room = double{numerics::kBiasMax} * expected.q_base * std::fabs(expected.a);
            double base = 0;
            for (const float x : expected.tile_base)
                if (std::isfinite(x)) base = std::max(base, double{std::fabs(x)});
            expect_near("k_scale", in_good_tiles(expected, got.k_scale), in_good_tiles(expected, expected.k_scale),
                        kScaleError, mean_error / 127 + (room > 0 ? 4 * kScaleError * base / room : 0));
            expect_near("v_scale", got.v_scale, expected.v_scale, kScaleError, mean_error / 127);
            expect_near("q_shift", of_good_rows(expected, got.q_shift), of_good_rows(expected, expected.q_shift),
                        4 * kScaleError, mean_error);
            expect_near("tile_base", got.tile_base, expected.tile_base, 4 * kScaleError, 4 * mean_error);
            EXPECT_EQ(got.q_repeat, expected.q_repeat);
            q.add(got.q, expected.q);
            k.add(in_good_tiles(expected, got.k), in_good_tiles(expected, expected.k));
            v.add(in_good_tiles(expected, got.v), in_good_tiles(expected, expected.v));
            ASSERT_EQ(got.bias_units.size(), expected.bias_units.size());
            ASSERT_EQ(got.v_weight.size(), expected.v_weight.size());
            for (size_t j = 0; j < got.bias_units.size(); ++j) {
                if (std::isnan(expected.tile_base[j / static_cast<size_t>(desc.recipe.tile)])) continue;
                ++units;
                units_differ += got.bias_units[j] != expected.bias_units[j];
                ASSERT_LE(std::abs(got.bias_units[j] - expected.bias_units[j]), 1) << "bias units of key " << j;
                if (!got.v_weight.empty()) weights_differ += got.v_weight[j] != expected.v_weight[j];
            }
        }
    for (const Tally& tally : {q, k, v}) tally.judge();
    EXPECT_LE(static_cast<double>(units_differ), 2 + 0.01 * static_cast<double>(units)) << "bias units";
    EXPECT_LE(static_cast<double>(weights_differ), 0.001 * static_cast<double>(units)) << "V weights";
}

template <class T>
void run_case(const Case& c, const char* recipe) {
    SCOPED_TRACE(c.name + " " + recipe + " on " + gpu::machine_name(T::kChip));
    Problem problem(c);
    const AttentionDesc desc = desc_of(problem.params, recipe);
    ASSERT_TRUE(gpu::quantizes(desc.recipe));
    Packed packed(desc, 0, T::kChip);
    quantize<T>(packed.params(desc));
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(problem.damage(), "");
    // Sums are rounded at the size of their terms.
    const bool loud = c.values == Values::kLoudToken || c.values == Values::kHugeV || c.values == Values::kLargeK;
    expect_as_reference(desc, packed, kMeanError * (loud ? 100 : 1));
}

constexpr const char* kRecipes[] = {
    "int8_int8",
    "int8_int8:fast",
    "int8_fp16",
    "int8_int8+v_scale=channel_tile+smooth_v+tile=64",
    "int8_int8+tile=64+no_rotate_v+granularity=per_token",
    "int8_int8:fast+granularity=per_warp+rotate+no_smooth_k+smooth_v+rotate_v",
    "int8_bf16",
    "int8_fp16:sage2+smooth_v",
    "int8_fp16:fast+smooth_q+granularity=per_block+family=sm90",
    "int4_int8",
    "int4_fp16+tile=64",
    "fp16_fp16",
    "bf16_bf16+tile=64",
};

bool has_config(const Case& c) {
    AttentionDesc desc;
    desc.head_dim = c.dim;
    desc.head_dim_v = c.v_dim();
    return gpu::find_quantize_config(desc) >= 0;
}

Case case_named(const char* name) {
    for (const Case& c : all_cases())
        if (c.name == name) return c;
    ADD_FAILURE() << "no case " << name;
    return {};
}

// Masks are nothing to the quantizer.
bool concerns_quantization(const Case& c) {
    for (const char* topic : {"lengths", "grouped heads", "layouts", "element types", "head dims", "values",
                              "packed sequences (varlen)", "key lengths (padding)", "paged K and V"})
        if (std::strcmp(c.topic, topic) == 0) return has_config(c);
    return false;
}

constexpr int kShares = 13;
class Quantize : public testing::TestWithParam<int> {};

// Every case with three of the recipes, which change from case to case.
TEST_P(Quantize, AsReference) {
    constexpr int kCount = static_cast<int>(std::size(kRecipes));
    int index = 0;
    for (const Case& c : all_cases()) {
        if (!concerns_quantization(c) || index++ % kShares != GetParam()) continue;
        for (int i = 0; i < 3; ++i) {
            run_case<sim::Sim<gpu::kSm80>>(c, kRecipes[(index + i * 5) % kCount]);
            if (HasFatalFailure()) return;
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Share, Quantize, testing::Range(0, kShares));

// Waves of 64 lanes, no asynchronous copies, FP8.
TEST(QuantizeMachines, AsReference) {
    for (const char* name : {"heads_9_3", "nhd_bf16", "dim80_v33", "dim256", "varlen_empty_segments", "loud_token"}) {
        for (const char* recipe : {"int8_int8", "int8_fp16", "int8_int8:fast+smooth_v+rotate_v",
                                   "int8_int8+v_scale=channel_tile+tile=64+granularity=per_block", "bf16_bf16"}) {
            if (!has_config(case_named(name))) continue;
            run_case<sim::Sim<gpu::kXcore1000>>(case_named(name), recipe);
            if (HasFatalFailure()) return;
        }
        if (!has_config(case_named(name))) continue;
        run_case<sim::Sim<gpu::kSm75>>(case_named(name), "int8_int8");
        run_case<sim::Sim<gpu::kSm80>>(case_named(name), "int8_fp8");  // of chips that have other FP8 products
        for (const char* recipe : {"int8_fp8", "int4_fp8+accum=fp32_fp16", "int8_fp8+v_scale=channel_tile+smooth_v"}) {
            run_case<sim::Sim<gpu::kSm89>>(case_named(name), recipe);
            if (HasFatalFailure()) return;
        }
    }
}

// Scales of whole heads, with and without what a key bias asks of them.
TEST(QuantizeWholeHeads, AsReference) {
    for (const char* name : {"heads_9_3", "zero_q", "varlen_empty_segments", "loud_token"}) {
        for (const char* recipe : {"int8_int8+granularity=per_tensor", "int8_fp16:fast+granularity=per_tensor",
                                   "int4_int8:fast+granularity=per_tensor+smooth_q+tile=64"}) {
            run_case<sim::Sim<gpu::kSm80>>(case_named(name), recipe);
            if (HasFatalFailure()) return;
        }
        run_case<sim::Sim<gpu::kXcore1000>>(case_named(name), "int8_int8+granularity=per_tensor");
    }
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(QuantizeNonFinite, PoisonsRowsAndTilesAsTheReference) {
    using T = sim::Sim<gpu::kSm80>;
    const Case c{.name = "non_finite", .q_heads = 4, .kv_heads = 2, .q_len = 140, .kv_len = 300, .dim = 40};
    for (const char* recipe :
         {"int8_int8", "int8_fp16", "int8_int8:fast", "int8_bf16+tile=64", "int8_int8+v_scale=channel_tile+tile=64"}) {
        SCOPED_TRACE(recipe);
        Problem problem(c);
        problem.set(problem.params.q, {0, 1, 130, 7}, kNan);
        problem.set(problem.params.q, {0, 2, 0, 39}, -kInf);
        problem.set(problem.params.k, {0, 0, 100, 0}, kInf);
        problem.set(problem.params.v, {0, 1, 299, 3}, kNan);
        problem.set(problem.params.v, {0, 1, 10, 3}, kInf);
        problem.freeze_inputs();
        const AttentionDesc desc = desc_of(problem.params, recipe);
        Packed packed(desc);
        quantize<T>(packed.params(desc));
        if (HasFatalFailure()) return;
        expect_as_reference(desc, packed, kMeanError);
        for (const char* name : {"c_k", "c_q", "q_base"})
            for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(std::isfinite(packed.vectors(name)[i])) << name;
    }
}

TEST(QuantizeNonFinite, ExactRecipesPoisonKeys) {
    using T = sim::Sim<gpu::kSm80>;
    const Case c{.name = "non_finite", .q_heads = 2, .kv_heads = 1, .q_len = 20, .kv_len = 150, .dim = 64};
    Problem problem(c);
    problem.set(problem.params.q, {0, 1, 3, 7}, kInf);
    problem.set(problem.params.k, {0, 0, 100, 0}, kNan);
    problem.set(problem.params.v, {0, 0, 149, 63}, -kInf);
    problem.freeze_inputs();
    const AttentionDesc desc = desc_of(problem.params, "bf16_bf16");
    Packed packed(desc);
    quantize<T>(packed.params(desc));
    if (HasFatalFailure()) return;
    reference::HeadOperands got;
    ASSERT_TRUE(
        reference::unpack_head(desc, 0, packed.q.data(), packed.kv.data(), 0, 0, &got, kMmaArrangement).is_ok());
    for (size_t i = 0; i < got.q.size(); ++i) EXPECT_EQ(std::isnan(got.q[i]), i / 64 == 20 + 3) << i;
    for (size_t i = 0; i < got.k.size(); ++i) {
        const bool bad = i / 64 == 100 || i / 64 == 149;
        EXPECT_EQ(std::isnan(got.k[i]), bad) << i;
        EXPECT_TRUE(bad ? got.v[i] == 0 : std::isfinite(got.v[i])) << i;
    }
}

// -- vectors --
void expect_vector_near(const float* got, const std::vector<float>& expected, double absolute, const char* what) {
    for (size_t d = 0; d < expected.size(); ++d) ASSERT_NEAR(got[d], expected[d], absolute) << what << " " << d;
}

struct TrueMeans {
    std::vector<float> k, q, v;
    TrueMeans(const AttentionDesc& desc, int64_t b, int64_t h) {
        const Sequence s = sequence_of(desc, b);
        k = reference::mean({reference::gather(desc, desc.k, b, h, s, false)}, 0, s.kv_len);
        v = reference::mean({reference::gather(desc, desc.v, b, h, s, false)}, 0, s.kv_len);
        std::vector<reference::Tokens> heads;
        for (int64_t g = 0; g < desc.q_heads_per_kv(); ++g)
            heads.push_back(reference::gather(desc, desc.q, b, h * desc.q_heads_per_kv() + g, s, true));
        q = reference::mean(heads, 0, s.q_len);
    }
};

TEST(QuantizeVectors, OfFewTokensAreThoseOfAll) {
    const Case c{.name = "few", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 64, .kv_len = 128, .dim = 48};
    Problem problem(c);
    const AttentionDesc desc = desc_of(problem.params, "int8_int8+smooth_v");
    Packed packed(desc);
    quantize<sim::Sim<gpu::kSm80>>(packed.params(desc));
    if (HasFatalFailure()) return;
    for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 2; ++h) {
            const TrueMeans means(desc, b, h);
            const int64_t head = b * 2 + h;
            expect_vector_near(packed.vectors("c_k") + head * 64, means.k, kMeanError, "c_k");
            expect_vector_near(packed.vectors("c_q") + head * 64, means.q, kMeanError, "c_q");
            expect_vector_near(packed.vectors("v_mean") + head * 64, means.v, kMeanError, "v_mean");
            for (int64_t d = 48; d < 64; ++d) EXPECT_EQ(packed.vectors("c_k")[head * 64 + d], 0);
            const float q_base = reference::quantize_head(desc, b, h).q_base;
            EXPECT_NEAR(packed.vectors("q_base")[head], q_base, 2 * kScaleError * static_cast<double>(q_base));
        }
}

TEST(QuantizeVectors, OfManyTokensAreNearThoseOfAll) {
    for (const Values values : {Values::kNormal, Values::kChannelBias, Values::kAlternating}) {
        const Case c{
            .name = "many", .q_heads = 2, .kv_heads = 1, .q_len = 1500, .kv_len = 4000, .dim = 32, .values = values};
        Problem problem(c);
        for (const char* recipe : {"int8_int8", "int8_bf16+smooth_v"}) {
            const AttentionDesc desc = desc_of(problem.params, recipe);
            Packed packed(desc);
            quantize<sim::Sim<gpu::kSm80>>(packed.params(desc));
            if (HasFatalFailure()) return;
            // Deviations are 1; a mean of 128 is off by 1/11.3, three and a half times that in none of these channels. The
            // alternating channel deviates by 50; a sample that fell in step with it would be off by 50.
            constexpr double kOff = 3.5 / 11.3;
            const TrueMeans means(desc, 0, 0);
            std::vector<float> c_k(packed.vectors("c_k"), packed.vectors("c_k") + 32);
            if (values == Values::kAlternating) {
                EXPECT_NEAR(c_k[7], means.k[7], 50 * kOff);
                c_k[7] = means.k[7];
            }
            expect_vector_near(c_k.data(), means.k, kOff, "c_k");
            expect_vector_near(packed.vectors("c_q"), means.q, kOff, "c_q");
            const double q_base = static_cast<double>(reference::quantize_head(desc, 0, 0).q_base);
            EXPECT_NEAR(packed.vectors("q_base")[0], q_base, 0.05 * q_base);  // 64 times the typical need, of a sample
            if (desc.recipe.smooth_v)
                expect_vector_near(packed.vectors("v_mean"), means.v, kOff, "v_mean");
            else
                expect_as_reference(desc, packed, kMeanError);
        }
    }
}

TEST(QuantizeVectors, GivenOnesAreTakenAndLoudRowsKeepTheirScale) {
    const Case c{.name = "given", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 5, .kv_len = 140, .dim = 40};
    Problem problem(c);
    AttentionDesc desc = desc_of(problem.params, "int8_int8");
    std::vector<float> c_k(2 * 2 * 40), c_q(2 * 2 * 40);
    for (size_t i = 0; i < c_k.size(); ++i) {
        c_k[i] = 0.01f * static_cast<float>(i % 17);
        c_q[i] = 0.3f - 0.02f * static_cast<float>(i % 11);
    }
    const std::vector<float> q_base = {1.0f, 0.018f, 0.5f, 1.3f};  // rows need about 0.02
    desc.c_k = view_of(c_k.data(), {2, 2, 40}, 40);
    desc.c_q = view_of(c_q.data(), {2, 2, 40}, 40);
    desc.q_base = view_of(q_base.data(), {2, 2}, 0);
    Packed packed(desc);
    quantize<sim::Sim<gpu::kSm80>>(packed.params(desc));
    if (HasFatalFailure()) return;
    expect_as_reference(desc, packed, kMeanError);
    for (size_t head = 0; head < 4; ++head) {
        EXPECT_EQ(packed.vectors("q_base")[head], q_base[head]);
        for (size_t d = 0; d < 40; ++d) EXPECT_EQ(packed.vectors("c_q")[head * 64 + d], c_q[head * 40 + d]);
    }
    const auto* const repeats = section<uint8_t>(packed.q_layout, packed.q.data(), "q_repeat");
    EXPECT_TRUE(std::count(repeats + 10, repeats + 20, 0) > 0);  // q heads 2 and 3 of the first sequence
}

// -- one side, and caches --
TEST(QuantizeSides, QAgainstKAndVThatAreReady) {
    using T = sim::Sim<gpu::kSm80>;
    Problem problem(case_named("heads_9_3"));
    const AttentionDesc desc = desc_of(problem.params, "int8_int8");
    Packed both(desc), apart(desc);
    quantize<T>(both.params(desc));
    quantize<T>(gpu::quantize_params(desc, 0, nullptr, apart.kv.data(), nullptr));
    quantize<T>(gpu::quantize_params(desc, 0, apart.q.data(), nullptr, apart.kv.data()));
    if (HasFatalFailure()) return;
    EXPECT_EQ(std::memcmp(both.q.data(), apart.q.data(), both.q.size()), 0);
    EXPECT_EQ(std::memcmp(both.kv.data(), apart.kv.data(), both.kv.size()), 0);
}

TEST(QuantizeSides, CachesKeepTheTokensOfTheirLastTile) {
    using T = sim::Sim<gpu::kSm80>;
    for (const char* recipe : {"int8_int8", "int8_fp16+tile=64"}) {
        const Case c{.name = "cache", .q_heads = 2, .kv_heads = 2, .q_len = 20, .kv_len = 170, .dim = 40};
        Problem problem(c);
        const AttentionDesc desc = desc_of(problem.params, recipe);
        Packed packed(desc, 600);
        quantize<T>(packed.params(desc));
        if (HasFatalFailure()) return;
        expect_as_reference(desc, packed, kMeanError);
        const int64_t tile = desc.recipe.tile, kept = 170 % tile;
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t i = 0; i < kept; ++i)
                for (int64_t d = 0; d < 40; ++d) {
                    const int64_t at = (h * tile + i) * 40 + d, token = 170 - kept + i;
                    ASSERT_EQ(packed.vectors("tail_k")[at], problem.get(problem.params.k, {0, h, token, d}));
                    ASSERT_EQ(packed.vectors("tail_v")[at], problem.get(problem.params.v, {0, h, token, d}));
                }
    }
}

}  // namespace
}  // namespace clary::cases
