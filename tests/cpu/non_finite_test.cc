// SPDX-License-Identifier: Apache-2.0
// NaN and infinity in the inputs: whoever sees them is NaN, nobody else is, and nothing is finite garbage.
#include <cmath>
#include <functional>
#include <limits>

#include "cases/tolerances.h"
#include "cpu/run.h"

namespace clary::cases {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Case base() {
    return {.name = "non_finite",
            .topic = "values",
            .batch = 2,
            .q_heads = 4,
            .kv_heads = 2,
            .q_len = 290,
            .kv_len = 300,
            .dim = 40,
            .causal = Causal::kBottomRight};
}

// Whether query i of the case sees a key of [first, last).
bool sees(const Case& c, int64_t i, int64_t first, int64_t last) {
    const int64_t position = i + c.kv_len - c.q_len;
    const int64_t begin = c.window.enabled ? std::max<int64_t>(position - c.window.left, 0) : 0;
    return std::max(begin, first) < std::min(position + 1, last);
}

// Poisons one place and runs every recipe and tier. (b, kv head, key) or, for Q, (b, head, row) of the poison.
void check(const Case& c, const char* which, std::array<int64_t, 3> at, float value) {
    Problem problem(c);
    const bool q = *which == 'q';
    problem.set(q               ? problem.params.q
                : *which == 'k' ? problem.params.k
                                : problem.params.v,
                {at[0], at[1], at[2], 7}, value);
    problem.freeze_inputs();
    const Output expected = exact(problem);
    for (const char* recipe : recipes()) {
        const Recipe parsed = desc_of(problem.params, recipe).recipe;
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(which) + " " + std::to_string(value) + ", " + recipe + " on " + tier);
            run_one_shot(&problem, with(problem, recipe, tier));
            const Output result = problem.output();
            const auto dim = static_cast<size_t>(c.v_dim());
            double difference = 0, sum = 0;
            for (size_t row = 0; row < result.lse.size(); ++row) {
                const auto r = static_cast<int64_t>(row);
                const int64_t i = r % c.q_len, h = r / c.q_len % c.q_heads, b = r / c.q_len / c.q_heads;
                const int64_t tile = parsed.quantized() ? parsed.tile : 1, first = at[2] / tile * tile;
                const bool same_head = b == at[0] && (q ? h == at[1] : h / (c.q_heads / c.kv_heads) == at[1]);
                const bool must = same_head && (q ? i == at[2] : sees(c, i, at[2], at[2] + 1));
                const bool may = same_head && (q ? i == at[2] : sees(c, i, first, first + tile));
                for (size_t d = 0; d < dim; ++d) {
                    const float x = result.out[row * dim + d], y = expected.out[row * dim + d];
                    if (must) {
                        ASSERT_TRUE(std::isnan(x)) << "b " << b << " h " << h << " row " << i << " is " << x;
                    } else if (!may) {
                        ASSERT_TRUE(std::isfinite(x)) << "b " << b << " h " << h << " row " << i << " is " << x;
                    }
                    if (!std::isfinite(x) || !std::isfinite(y)) continue;
                    difference += std::fabs(static_cast<double>(x - y));
                    sum += std::fabs(static_cast<double>(y));
                }
                ASSERT_EQ(std::isnan(result.lse[row]), std::isnan(result.out[row * dim])) << "lse of row " << i;
            }
            EXPECT_LE(difference / sum, error_against_exact(parsed, c));
        }
    }
}

TEST(NonFinite, QueryRow) {
    for (const float value : {kNan, kInf, -kInf}) check(base(), "q", {1, 2, 77}, value);
}

TEST(NonFinite, KeyToken) {
    for (const float value : {kNan, kInf, -kInf}) check(base(), "k", {0, 1, 133}, value);
}

TEST(NonFinite, ValueToken) {
    for (const float value : {kNan, kInf, -kInf}) check(base(), "v", {0, 0, 133}, value);
}

TEST(NonFinite, InAWindow) {
    Case c = base();
    c.window = {.enabled = true, .left = 20, .right = -1, .keep = 0};
    check(c, "k", {1, 0, 130}, kNan);
    check(c, "v", {1, 1, 129}, kNan);
}

// Every key is poisoned: every row is NaN, its LSE too.
TEST(NonFinite, AllKeys) {
    Case c = base();
    c.causal = Causal::kNone;
    c.kv_len = 16;
    c.q_len = 20;
    Problem problem(c);
    for (int64_t j = 0; j < c.kv_len; ++j)
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t h = 0; h < c.kv_heads; ++h) problem.set(problem.params.k, {b, h, j, 0}, kNan);
    problem.freeze_inputs();
    for (const char* recipe : recipes())
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            run_one_shot(&problem, with(problem, recipe, tier));
            for (const float x : problem.output().out) ASSERT_TRUE(std::isnan(x));
            for (const float x : problem.output().lse) ASSERT_TRUE(std::isnan(x));
        }
}

// Padding hidden by a mask may hold anything in the exact recipe, and in its own tile costs only the quantized ones.
TEST(NonFinite, HiddenByAMask) {
    for (const MaskForm form : {MaskForm::kBoolean, MaskForm::kF32}) {
        Case c = base();
        c.causal = Causal::kNone;
        c.mask = form;
        c.mask_axes[0] = c.mask_axes[1] = c.mask_axes[2] = false;
        Problem problem(c);
        for (int64_t j = 250; j < c.kv_len; ++j) {
            if (form == MaskForm::kBoolean)
                static_cast<uint8_t*>(problem.params.mask.data)[j] = 0;
            else
                problem.set(problem.params.mask, {0, 0, 0, j}, -kInf);
            problem.set(problem.params.k, {0, 0, j, 3}, kNan);
            problem.set(problem.params.v, {1, 1, j, 2}, kInf);
        }
        problem.freeze_inputs();
        const Output expected = exact(problem);
        for (const char* tier : tiers()) {
            run_one_shot(&problem, with(problem, "fp32_fp32", tier));
            EXPECT_LE(relative_l1(problem.output().out, expected.out), kExactError);
        }
    }
}

}  // namespace
}  // namespace clary::cases
