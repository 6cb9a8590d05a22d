// SPDX-License-Identifier: Apache-2.0
// Every case of the list on every tier and recipe: one shot, two phases, the oracle on the same packed operands, exact
// float64 attention, and nothing read or written that should not be.
#include <algorithm>
#include <cmath>

#include "cases/tolerances.h"
#include "cpu/run.h"
#include "reference/unpack.h"

namespace clary::cases {
namespace {

class Conformance : public testing::TestWithParam<Case> {};

// (d) LSE: infinities at the same places, the rest within the tolerance.
void expect_lse(const std::vector<float>& lse, const std::vector<float>& expected) {
    ASSERT_EQ(lse.size(), expected.size());
    double largest = 0;
    for (size_t i = 0; i < lse.size(); ++i) {
        if (std::isfinite(expected[i])) {
            largest = std::max(largest, std::abs(static_cast<double>(lse[i]) - static_cast<double>(expected[i])) -
                                            lse_rounding(expected[i]));
            continue;
        }
        ASSERT_TRUE(lse[i] == expected[i] || (std::isnan(lse[i]) && std::isnan(expected[i])))
            << "lse[" << i << "] is " << lse[i] << ", expected " << expected[i];
    }
    EXPECT_LE(largest, kLse) << "lse";
}

// Rows that see no key are zero to the bit, not nearly.
void expect_empty_rows(const Output& result, const Output& expected, int64_t dim) {
    for (size_t i = 0; i < expected.out.size(); i += static_cast<size_t>(dim)) {
        const auto row = expected.out.begin() + static_cast<std::ptrdiff_t>(i);
        if (!std::all_of(row, row + dim, [](float x) { return x == 0; })) continue;
        for (size_t d = 0; d < static_cast<size_t>(dim); ++d) ASSERT_EQ(result.out[i + d], 0.0f) << "element " << i + d;
    }
}

void check(Problem* problem, const Output& expected, const char* recipe, const char* tier, bool with_oracle,
           Output* result) {
    const Case& c = problem->spec();
    const clary_attention_params params = with(*problem, recipe, tier);
    const AttentionDesc desc = desc_of(params, recipe);
    const double rounding = output_rounding(c.out);

    run_one_shot(problem, params);
    *result = problem->output();
    const std::vector<unsigned char> bytes = problem->output_bytes();
    for (const float x : result->out) ASSERT_TRUE(std::isfinite(x));

    // Two phases give the same bits.
    const Packed packed = pack(problem, params);
    attend(problem, params, packed);
    ASSERT_EQ(problem->output_bytes(), bytes) << "two phases differ from one shot";

    // Against exact attention.
    if (c.score_gain > 0) {
        EXPECT_LE(relative_l1(result->out, expected.out), error_against_exact(desc.recipe, c) + rounding);
    }
    if (c.values != Values::kZeroV) expect_empty_rows(*result, expected, c.v_dim());

    // Against the oracle, from the same packed buffers.
    if (!with_oracle) return;
    Output oracle;
    const AttentionDesc to = redirect(desc, params, &oracle);
    ASSERT_TRUE(
        reference::attend_packed(to, 0, packed.q->data(), packed.kv->data(), 1, device_under_test().arrangement())
            .is_ok());
    EXPECT_LE(relative_l1(result->out, oracle.out), attend_l1(desc.recipe, c) + rounding);
    const double largest = largest_magnitude(oracle.out);
    EXPECT_LE(largest_difference(result->out, oracle.out), (attend_max(desc.recipe) + rounding) * largest + 1e-30);
    if (c.lse) expect_lse(result->lse, oracle.lse);
}

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
            if (c.values == Values::kHugeV && parsed.pv == Format::kFp16 && !parsed.quantized())
                continue;  // beyond fp16, and nothing scales V
            Output result;
            check(&problem, expected, recipe, tier, true, &result);
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
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conformance);

}  // namespace

}  // namespace clary::cases
