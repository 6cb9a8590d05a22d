// SPDX-License-Identifier: Apache-2.0
// Values and lengths at the edge of what is allowed.
#include <cmath>

#include "cpu/run.h"

namespace clary::cases {
namespace {

const char* const kRecipes[] = {"int8_int8", "int8_fp16", "fp32_fp32"};

Problem small_problem() {
    Case c{.name = "edge", .q_heads = 2, .kv_heads = 1, .q_len = 40, .kv_len = 200, .dim = 32};
    return Problem(c);
}

bool all_finite(const std::vector<float>& values) {
    for (const float x : values)
        if (!std::isfinite(x)) return false;
    return true;
}

// The product of a score and its factor is rounded where the maximum is taken and fused where P is made: at scores of
// 2^30 the two lie far apart.
TEST(Edges, HugeScalesStayFinite) {
    Problem problem = small_problem();
    for (const char* recipe : kRecipes)
        for (const char* tier : tiers())
            for (const double scale : {1e6, 1e10, 1e19, -1e12, 1e-19}) {
                clary_attention_params params = with(problem, recipe, tier);
                params.has_scale = 1;
                params.scale = scale;
                ASSERT_NO_FATAL_FAILURE(run_one_shot(&problem, params));
                EXPECT_TRUE(all_finite(problem.output().out)) << recipe << " " << tier << " " << scale;
            }
}

// A sink far above all scores takes the whole softmax; far below, nothing.
TEST(Edges, SinksOfAnySize) {
    Problem problem = small_problem();
    float sinks[2] = {800, -800};
    for (const char* recipe : kRecipes) {
        clary_attention_params params = with(problem, recipe, "cpu");
        ASSERT_NO_FATAL_FAILURE(run_one_shot(&problem, params));
        const Output without = problem.output();
        params.sinks.data = sinks;
        params.sinks.dtype = CLARY_FP32;
        params.sinks.ndim = 1;
        params.sinks.shape[0] = 2;
        params.sinks.stride[0] = 1;
        ASSERT_NO_FATAL_FAILURE(run_one_shot(&problem, params));
        const Output with_sinks = problem.output();
        const size_t out_head = without.out.size() / 2, lse_head = without.lse.size() / 2;
        for (size_t i = 0; i < out_head; ++i) {
            EXPECT_EQ(with_sinks.out[i], 0) << recipe;
            EXPECT_NEAR(with_sinks.out[out_head + i], without.out[out_head + i], 1e-6) << recipe;
        }
        for (size_t i = 0; i < lse_head; ++i) {
            EXPECT_EQ(with_sinks.lse[i], 800) << recipe;
            EXPECT_NEAR(with_sinks.lse[lse_head + i], without.lse[lse_head + i], 1e-5) << recipe;
        }
    }
}

// kv_lengths at clary_attend see less of what is packed, and never more.
TEST(Edges, AttendingToFewerKeysThanArePacked) {
    Problem problem = small_problem();
    int64_t length = 70;
    for (const char* recipe : {"int8_fp16", "fp32_fp32"}) {
        clary_attention_params params = with(problem, recipe, "cpu");
        const Packed packed = pack(params);
        clary_attention_params shorter = params;
        shorter.k.shape[2] = shorter.v.shape[2] = length;
        ASSERT_NO_FATAL_FAILURE(run_one_shot(&problem, shorter));
        const Output expected = problem.output();
        params.kv_lengths.data = &length;
        params.kv_lengths.dtype = CLARY_INT64;
        params.kv_lengths.ndim = 1;
        params.kv_lengths.shape[0] = 1;
        params.kv_lengths.stride[0] = 1;
        ASSERT_NO_FATAL_FAILURE(attend(&problem, params, packed));
        EXPECT_LT(relative_l1(problem.output().out, expected.out), 0.02) << recipe;  // other means, same keys
    }
    clary_attention_params params = with(problem, "int8_int8", "cpu");
    const Packed cache = [&] {
        clary_attention_params part = params;
        part.k.shape[2] = part.v.shape[2] = 50;
        return pack(part, 200);
    }();
    params.kv_lengths.data = &length;
    params.kv_lengths.dtype = CLARY_INT64;
    params.kv_lengths.ndim = 1;
    params.kv_lengths.shape[0] = 1;
    params.kv_lengths.stride[0] = 1;
    const clary_packed q = cache.q_buffer(), kv = cache.kv_buffer();
    EXPECT_EQ(clary_attend(&params, &q, &kv), CLARY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(clary_last_error()).find("kv_lengths[0]: 70; allowed: 0..50"), std::string::npos)
        << clary_last_error();
}

// Vectors that a recipe would not read, or that would ruin it, are refused.
TEST(Edges, GivenVectors) {
    Problem problem = small_problem();
    std::vector<float> vector(32, INFINITY);
    const auto give = [&](clary_tensor* tensor, int32_t ndim) {
        tensor->data = vector.data();
        tensor->dtype = CLARY_FP32;
        tensor->ndim = ndim;
        tensor->shape[0] = tensor->shape[1] = tensor->stride[2] = 1;
        tensor->shape[2] = tensor->stride[0] = tensor->stride[1] = 32;
    };
    clary_attention_params params = with(problem, "int8_int8", "cpu");
    give(&params.c_k, 3);
    EXPECT_EQ(clary_attention(&params), CLARY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(clary_last_error()).find("c_k: inf"), std::string::npos) << clary_last_error();
    params = with(problem, "int8_int8", "cpu");
    vector[0] = 0;
    give(&params.q_base, 2);
    EXPECT_EQ(clary_attention(&params), CLARY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(clary_last_error()).find("q_base: 0"), std::string::npos) << clary_last_error();
    params = with(problem, "fp32_fp32", "cpu");
    give(&params.c_k, 3);
    EXPECT_EQ(clary_attention(&params), CLARY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(clary_last_error()).find("has no use for it"), std::string::npos) << clary_last_error();
}

}  // namespace
}  // namespace clary::cases
