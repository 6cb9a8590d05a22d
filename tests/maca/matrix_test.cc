// SPDX-License-Identifier: Apache-2.0
// The paths that users of SageAttention's port to these chips know, and those beyond it, over that port's list of head
// dims, layouts, lengths, groups of heads and batches of packed sequences: cosine to exact attention at least 0.99, as the
// port asks, and all that check() asks.
#include <fmt/format.h>

#include "cpu/run.h"

namespace clary::cases {
namespace {

// Three granularities of fp16 PV with fp32 sums are the port's six paths but for its fp16 accumulators, which these chips do
// not have (docs/maca.md).
constexpr const char* kPaths[] = {"int8_fp16:fast+granularity=per_warp+tile=64",
                                  "int8_fp16:fast+granularity=per_thread+tile=64",
                                  "int8_fp16:fast+granularity=per_block+tile=64",
                                  "int8_fp16:fast+smooth_v+tile=64",
                                  "int8_bf16+tile=64",
                                  "int8_int8+tile=64",
                                  "int8_int8:fast+tile=64",
                                  "int8_fp8+tile=64"};
// One of 16-bit V and one of 8-bit V.
constexpr const char* kTwoPaths[] = {"int8_fp16:fast+granularity=per_thread+tile=64", "int8_int8+tile=64"};

Case case_of(std::string name, int64_t q_len, int64_t kv_len, int64_t dim) {
    return {.name = std::move(name),
            .topic = "the port's matrix",
            .q_heads = 2,
            .kv_heads = 1,
            .q_len = q_len,
            .kv_len = kv_len,
            .dim = dim,
            .q = DType::kF16,
            .k = DType::kF16,
            .v = DType::kF16,
            .out = DType::kF16};
}
Case packed(std::string name, std::vector<int64_t> q, std::vector<int64_t> k) {
    Case c = case_of(std::move(name), 0, 0, 64);
    c.batch = static_cast<int64_t>(q.size());
    c.seqlens_q = std::move(q);
    c.seqlens_k = std::move(k);
    return c;
}

// Whether the build has kernels of it. A chip that lacks the products, FP8 on a C500, says so.
bool is_built(const Problem& problem, const char* recipe, const char* tier) {
    if (takes(with(problem, recipe, tier))) return true;
    const std::string why = clary_last_error();
    const bool lacks = why.find("needs products that xcore1000 does not have") != std::string::npos;
    EXPECT_TRUE((lacks && std::string(recipe).find("fp8") != std::string::npos) ||
                why.find("after padding") != std::string::npos)
        << why;
    return false;
}

void expect_near_exact(const Case& c, const char* recipe) {
    SCOPED_TRACE(c.name);
    Problem problem(c);
    const Output expected = exact(problem);
    for (const char* tier : tiers()) {
        SCOPED_TRACE(std::string(recipe) + " on " + tier);
        if (!is_built(problem, recipe, tier)) continue;
        Output result;
        check(&problem, expected, recipe, tier, &result);
        EXPECT_GE(cosine(result.out, expected.out), 0.99);
    }
}

class Paths : public testing::TestWithParam<const char*> {};

TEST_P(Paths, HeadDimsAndLayouts) {
    for (const int64_t dim : {32, 64, 128})
        for (const Layout layout : {Layout::kHnd, Layout::kNhd}) {
            Case c = case_of(fmt::format("d{}_layout{}", dim, static_cast<int>(layout)), 64, 97, dim);
            c.q_layout = c.kv_layout = c.out_layout = layout;
            expect_near_exact(c, GetParam());
        }
}

INSTANTIATE_TEST_SUITE_P(Matrix, Paths, testing::ValuesIn(kPaths));

// The port's fp16 accumulators: refused, with what is allowed instead.
TEST(Matrix, SumsOfFp16AreRefused) {
    const Problem problem(case_of("accum", 64, 97, 64));
    for (const char* recipe :
         {"int8_fp16:fast+accum=fp16", "int8_fp16:fast+accum=fp16_fp32", "int8_fp8+accum=fp32_fp16"})
        for (const char* tier : tiers()) {
            EXPECT_FALSE(takes(with(problem, recipe, tier))) << recipe;
            EXPECT_NE(std::string(clary_last_error()).find("allowed: accum=fp32"), std::string::npos)
                << clary_last_error();
        }
}

class TwoPaths : public testing::TestWithParam<const char*> {};

TEST_P(TwoPaths, Lengths) {
    for (const int64_t length : {1, 50, 64, 97, 128, 256, 512})
        for (const Causal causal : {Causal::kNone, Causal::kTopLeft}) {
            Case c = case_of(fmt::format("l{}_causal{}", length, static_cast<int>(causal)), length, length, 64);
            c.causal = causal;
            expect_near_exact(c, GetParam());
        }
}

// By all tiles of their last queries.
TEST_P(TwoPaths, LongLengths) {
    for (const int64_t length : {1024, 2048, 4096, 8192, 16384}) {
        Case c = case_of(fmt::format("last_of_{}", length), 32, length, 64);
        c.causal = Causal::kBottomRight;
        expect_near_exact(c, GetParam());
    }
}

TEST_P(TwoPaths, GroupsOfHeads) {
    for (const int64_t heads : {1, 2, 4, 8, 16, 32, 64}) {
        Case c = case_of(fmt::format("heads_{}_1", heads), 9, 70, 64);
        c.q_heads = heads;
        expect_near_exact(c, GetParam());
    }
    Case causal = case_of("heads_128_2_causal", 5, 70, 128);
    causal.q_heads = 128;
    causal.kv_heads = 2;
    causal.causal = Causal::kBottomRight;
    expect_near_exact(causal, GetParam());
}

TEST_P(TwoPaths, Types) {
    for (const DType type : {DType::kF16, DType::kBF16, DType::kF32}) {
        Case c = case_of(fmt::format("type{}", static_cast<int>(type)), 40, 90, 64);
        c.q = c.k = c.v = c.out = type;
        expect_near_exact(c, GetParam());
    }
}

TEST_P(TwoPaths, PackedSequences) {
    expect_near_exact(packed("uniform", {64, 64, 64}, {64, 64, 64}), GetParam());
    expect_near_exact(packed("varying", {1, 50, 97, 128}, {1, 50, 97, 128}), GetParam());
    // One token beside 8192, each way.
    expect_near_exact(packed("one_query", {1, 3}, {8192, 1}), GetParam());
    expect_near_exact(packed("one_key", {8192, 1}, {1, 8192}), GetParam());
    // 8192 x 8192 by its tiles on the diagonal, and by all tiles of its last block of queries.
    Case diagonal = packed("diagonal", {1, 8192}, {1, 8192});
    diagonal.q_heads = 1;
    diagonal.causal = Causal::kTopLeft;
    diagonal.window = {.enabled = true, .left = 64, .right = 0, .keep = 2};
    expect_near_exact(diagonal, GetParam());
    Case last = packed("last", {1, 128}, {1, 8192});
    last.q_heads = 1;
    last.causal = Causal::kBottomRight;
    expect_near_exact(last, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Matrix, TwoPaths, testing::ValuesIn(kTwoPaths));

}  // namespace
}  // namespace clary::cases
