// SPDX-License-Identifier: Apache-2.0
// A result is what it is whether its LSE is wanted or not; kernels with scores in fixed point, which serve where it is not, stay
// as near as tolerances.h derives.
#include "cases/tolerances.h"
#include "cpu/run.h"

namespace clary::cases {
namespace {

std::vector<Case> cases_with_lse() {
    std::vector<Case> cases;
    for (const Case& c : all_cases())
        if (c.lse) cases.push_back(c);
    // Several blocks of queries over several tiles, at head dims of one, two and more steps of products, and of parts of one.
    for (const int64_t dim : {24, 64, 80, 128, 160, 256}) {
        cases.push_back({.name = "blocks_d" + std::to_string(dim),
                         .q_heads = 2,
                         .kv_heads = 1,
                         .q_len = 150,
                         .kv_len = 700,
                         .dim = dim});
        cases.push_back(cases.back());
        cases.back().name += "_causal";
        cases.back().causal = Causal::kBottomRight;
    }
    return cases;
}

TEST(WithoutLse, IsTheSameResult) {
    for (const Case& c : cases_with_lse()) {
        Problem problem(c);
        const Output expected = exact(problem);
        for (const char* recipe : {"int8_int8", "int8_int8:fast", "int8_int8+v_scale=channel_tile+smooth_v+tile=64",
                                   "int8_int8+granularity=per_token", "int8_bf16", "fp32_fp32"})
            for (const char* tier : tiers()) {
                SCOPED_TRACE(c.name + ", " + recipe + " on " + tier);
                clary_attention_params params = with(problem, recipe, tier);
                if (!takes(params)) continue;
                run_one_shot(&problem, params);
                const Output beside = problem.output();
                params.lse = {};
                run_one_shot(&problem, params);
                const Output alone = problem.output();
                const Recipe parsed = desc_of(problem.params, recipe).recipe;
                const double rounding = output_rounding(c.out);
                EXPECT_LE(relative_l1(alone.out, beside.out), without_lse_l1(parsed, tier, c) + rounding);
                if (c.score_gain > 0) {
                    EXPECT_LE(relative_l1(alone.out, expected.out), error_against_exact(parsed, c) + rounding);
                }
            }
    }
}

}  // namespace
}  // namespace clary::cases
