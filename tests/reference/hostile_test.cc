// SPDX-License-Identifier: Apache-2.0
// int8_int8 accurate on inputs made to break it. The expected errors come from a second, independent implementation of
// the recipe's definition (fp32 tensors in Python) run on the same values: synthetic preset, seed 1, one head of
// 1024 x 128 rounded to bf16, not causal. That one scales K in groups of 16 consecutive keys, this one in the MMA
// fragment's groups of 16 within 64, whence the few per cent of difference.
#include <gtest/gtest.h>

#include "reference/exact.h"
#include "reference/oracle.h"
#include "reference/problem.h"
#include "synthetic/generator.h"

namespace clary::test {
namespace {

struct Case {
    const char* preset;
    double tile128, tile64;  // relative L1
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.preset; }

class Hostile : public testing::TestWithParam<Case> {};

TEST_P(Hostile, ErrorIsThatOfTheDefinition) {
    synthetic::Tensors tensors;
    ASSERT_TRUE(synthetic::generate(GetParam().preset, {1, 1, 1, 1024, 1024, 128}, 1, &tensors).is_ok());
    Problem problem({1, 1, 1, 1024, 1024, 128, 128});
    std::copy(tensors.q.begin(), tensors.q.end(), problem.q.begin());
    std::copy(tensors.k.begin(), tensors.k.end(), problem.k.begin());
    std::copy(tensors.v.begin(), tensors.v.end(), problem.v.begin());
    problem.round_to_bf16();
    ASSERT_TRUE(reference::attend_exact(problem.desc).is_ok());
    const std::vector<float> exact = problem.out;
    for (const auto& [text, expected] :
         {std::pair{"int8_int8", GetParam().tile128}, {"int8_int8+tile=64", GetParam().tile64}}) {
        ASSERT_TRUE(parse_recipe(text, &problem.desc.recipe).is_ok());
        ASSERT_TRUE(reference::attend_recipe(problem.desc).is_ok());
        EXPECT_NEAR(relative_l1(problem.out, exact), expected, 0.06 * expected) << text;
    }
}

INSTANTIATE_TEST_SUITE_P(Reference, Hostile,
                         testing::Values(Case{"gauss", .01380, .01316}, Case{"v_half_zero", .01424, .01350},
                                         Case{"v_eighth_tiny", .01395, .01336}, Case{"v_lognormal", .01445, .01372},
                                         Case{"v_one_loud", .01456, .01323}, Case{"q_one_loud30", .01369, .01301},
                                         Case{"q_one_loud100", .01394, .01330}, Case{"q_zero", .00617, .00584},
                                         Case{"q_constant", .00903, .00806}, Case{"k_equal", .00620, .00588},
                                         Case{"k_half_zero", .01260, .01208}, Case{"sink", .01967, .01644},
                                         Case{"k_bias", .01118, .01027}),
                         [](const auto& test) { return std::string(test.param.preset); });

}  // namespace
}  // namespace clary::test
