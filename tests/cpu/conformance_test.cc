// SPDX-License-Identifier: Apache-2.0
// Every case of the list on every tier and recipe: one shot, two phases, the oracle on the same packed operands, exact
// float64 attention, and nothing read or written that should not be.
#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "cases/tolerances.h"
#include "cpu/run.h"

namespace clary::cases {
namespace {

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, EveryRecipeAndTier) {
    if (tiers().empty()) GTEST_SKIP() << "no kernel of " << device_under_test().backend() << " runs here";
    const Case& c = GetParam();
    Problem problem(c);
    const Output expected = exact(problem);
    for (const char* recipe : recipes()) {
        Output first;
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            if (!takes(with(problem, recipe, tier))) continue;
            const Recipe parsed = desc_of(problem.params, recipe).recipe;
            if (beyond_fp16(parsed, c)) continue;
            Output result;
            check(&problem, expected, recipe, tier, &result);
            if (HasFatalFailure()) return;
            if (first.out.empty()) first = result;
            EXPECT_LE(relative_l1(result.out, first.out), tiers_l1(parsed, c) + 2 * output_rounding(c.out))
                << "differs from the best tier";
        }
    }
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
    std::string name = info.param.name;
    for (char& letter : name)
        if (letter == '-') letter = 'm';
    return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, Conformance, testing::ValuesIn(all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Lengths, Conformance,
                         testing::ValuesIn(exhaustive() ? exhaustive_length_cases() : std::vector<Case>{}), name_of);
// Of the cases whose head dim is not what they are about, those that kernels of wider ones alone would not see: each at 64, and
// at one of the others in turn.
std::vector<Case> wider_cases() {
    std::vector<Case> cases;
    if (std::string(device_under_test().backend()) != "cuda" && !exhaustive()) return cases;
    constexpr std::pair<int64_t, int64_t> kOthers[] = {{96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
    size_t turn = 0;
    for (const Case& c : all_cases()) {
        if (c.dim_v != 0) continue;
        const auto add = [&](int64_t dim, int64_t dim_v) {
            Case wider = widened(c, dim);
            if (wider.dim == c.dim) return;
            if (dim_v != dim) wider.dim_v = dim_v;
            // Hopper's kernels above 128 have results of 16 bits alone, and at 128 ways of their own to store them.
            if (dim >= 128 && wider.out == DType::kF32) wider.out = DType::kBF16;
            wider.name += dim_v == dim ? fmt::format("_d{}", dim) : fmt::format("_d{}v{}", dim, dim_v);
            cases.push_back(wider);
        };
        add(64, 64);
        const auto [dim, dim_v] = kOthers[turn++ % std::size(kOthers)];
        add(dim, dim_v);
    }
    return cases;
}
INSTANTIATE_TEST_SUITE_P(Wider, Conformance, testing::ValuesIn(wider_cases()), name_of);
// Few queries over caches with one piece of keys, some, and as many as there may be (cpu/attend.cc: 2048 keys each).
std::vector<Case> long_caches() {
    std::vector<Case> cases;
    const auto add = [&](const char* name, int64_t q_heads, int64_t kv_heads, int64_t q_len, int64_t kv_len) -> Case& {
        cases.push_back({.name = name,
                         .topic = "long caches",
                         .q_heads = q_heads,
                         .kv_heads = kv_heads,
                         .q_len = q_len,
                         .kv_len = kv_len,
                         .dim = 32});
        return cases.back();
    };
    add("cache_2047", 4, 1, 1, 2047);
    add("cache_2048", 3, 1, 1, 2048);
    add("cache_2049", 8, 2, 1, 2049);
    add("cache_4096", 5, 1, 1, 4096).dim = 80;
    add("cache_4097", 12, 1, 1, 4097).dim_v = 48;
    add("cache_33000", 2, 1, 1, 33000).dim = 16;
    add("cache_q16_causal", 6, 2, 16, 4100).causal = Causal::kBottomRight;
    add("cache_q17_causal", 6, 2, 17, 2100).causal = Causal::kBottomRight;
    Case& offset = add("cache_offset", 4, 2, 5, 4200);
    offset.causal = Causal::kOffset;  // the second piece is seen by no query, the first query sees nothing
    offset.causal_offset = -1;
    Case& window = add("cache_window", 4, 1, 2, 6500);
    window.causal = Causal::kBottomRight;
    window.window = {.enabled = true, .left = 50, .right = -1, .keep = 3};
    window.sinks = true;
    add("cache_mask", 4, 2, 3, 2500).mask = MaskForm::kBoolean;
    add("cache_mask_f16", 2, 2, 2, 2500).mask = MaskForm::kF16;
    Case& alibi = add("cache_alibi", 4, 1, 2, 2300);
    alibi.alibi = alibi.sinks = true;
    Case& lengths = add("cache_lengths", 4, 2, 1, 4500);
    lengths.batch = 5;
    lengths.kv_lengths = {4500, 0, 2048, 1, 2050};
    lengths.k = lengths.v = DType::kBF16;
    Case& paged = add("cache_paged", 8, 2, 2, 4500);
    paged.batch = 3;
    paged.kv_lengths = {4500, 0, 2049};
    paged.page_size = 16;
    Case& varlen = add("cache_varlen", 6, 2, 0, 0);
    varlen.batch = 5;
    varlen.seqlens_q = {1, 16, 40, 0, 3};
    varlen.seqlens_k = {2100, 4500, 2200, 300, 0};
    varlen.causal = Causal::kBottomRight;
    return cases;
}
INSTANTIATE_TEST_SUITE_P(LongCaches, Conformance, testing::ValuesIn(long_caches()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conformance);

}  // namespace

}  // namespace clary::cases
