// SPDX-License-Identifier: Apache-2.0
// Few queries over many keys: cut into pieces (cpu/attend.cc) whose borders lie at multiples of 2048 keys, and of 4096 beyond
// 32768 keys.
#include <cmath>
#include <cstring>

#include "cases/tolerances.h"
#include "cpu/run.h"

namespace clary::cases {
namespace {

// One sequence of few queries in a batch with a long prefill and an empty one; and a second of as many queries as are cut.
Case mixed() {
    Case c{.name = "mixed", .q_heads = 6, .kv_heads = 2, .dim = 32, .causal = Causal::kBottomRight};
    c.batch = 4;
    c.seqlens_q = {70, 1, 0, 16};
    c.seqlens_k = {2300, 5000, 0, 4097};
    return c;
}

TEST(Decode, AnyNumberOfThreads) {
    Case single{.name = "decode", .batch = 2, .q_heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 6200, .dim = 32};
    for (const Case& c : {single, mixed()}) {
        Problem problem(c);
        for (const char* recipe : {"int8_int8", "int8_int8:fast", "int8_bf16", "fp32_fp32"})
            for (const char* tier : tiers()) {
                SCOPED_TRACE(c.name + ", " + recipe + " on " + tier);
                std::vector<unsigned char> first;
                for (const int threads : {1, 2, 5}) {
                    const ContextOf context(threads);
                    run_one_shot(&problem, with(problem, recipe, tier, context.context));
                    if (first.empty()) first = problem.output_bytes();
                    ASSERT_EQ(problem.output_bytes(), first) << threads << " threads";
                }
            }
    }
}

// A sequence alone gives what it gives among others.
TEST(Decode, BatchNeighbours) {
    const Case together = mixed();
    Problem problem(together);
    for (const char* recipe : {"int8_int8", "fp32_fp32"})
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            run_one_shot(&problem, with(problem, recipe, tier));
            const Output all = problem.output();
            clary_attention_params one = with(problem, recipe, tier);
            const int32_t q_ends[] = {0, 1}, k_ends[] = {0, 5000};
            const auto cut = [](clary_tensor* t, int64_t first, int64_t count) {
                t->data = static_cast<float*>(t->data) + first * t->stride[0];
                t->shape[0] = count;
            };
            cut(&one.q, 70, 1);
            cut(&one.out, 70, 1);
            cut(&one.k, 2300, 5000);
            cut(&one.v, 2300, 5000);
            one.lse = {};
            for (auto [tensor, ends] : {std::pair{&one.cu_seqlens_q, q_ends}, {&one.cu_seqlens_k, k_ends}}) {
                tensor->data = const_cast<int32_t*>(ends);
                tensor->dtype = CLARY_INT32;
                tensor->shape[0] = 2;
                tensor->stride[0] = 1;
            }
            problem.poison_outputs();
            clary_attention_params without_lse = with(problem, recipe, tier);
            without_lse.lse = {};
            ASSERT_EQ(clary_attention(&without_lse), CLARY_OK) << clary_last_error();
            const Output expected = problem.output();
            problem.poison_outputs();
            ASSERT_EQ(clary_attention(&one), CLARY_OK) << clary_last_error();
            const Output alone = problem.output();
            const size_t row = 70 * 6 * 32, width = 6 * 32;
            ASSERT_EQ(std::memcmp(&alone.out[row], &expected.out[row], width * sizeof(float)), 0);
            EXPECT_LE(relative_l1(expected.out, all.out),
                      without_lse_l1(desc_of(problem.params, recipe).recipe, tier, together));
        }
}

// A cache holds more keys than the call's k has.
TEST(Decode, CacheLongerThanTheCall) {
    Case c{.name = "cache", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 3, .kv_len = 4500, .dim = 32};
    Problem problem(c);
    for (const char* recipe : {"int8_int8", "int8_fp16", "fp32_fp32"})
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            clary_attention_params params = with(problem, recipe, tier);
            const Packed cache = pack(params, 5000);
            ASSERT_NO_FATAL_FAILURE(attend(&problem, params, cache));
            const Output expected = problem.output();
            params.k.shape[2] = params.v.shape[2] = 1;
            ASSERT_NO_FATAL_FAILURE(attend(&problem, params, cache));
            EXPECT_EQ(problem.output().out, expected.out);
            EXPECT_EQ(problem.output().lse, expected.lse);
        }
}

// NaN in one piece is NaN in the rows that see it, and in no others.
TEST(Decode, NonFiniteKeyOfOnePiece) {
    Case c{
        .name = "nan", .q_heads = 4, .kv_heads = 2, .q_len = 4, .kv_len = 4400, .dim = 32, .causal = Causal::kOffset};
    c.causal_offset = 4222;  // queries 0 and 1 end before the tile of key 4224
    Problem problem(c);
    problem.set(problem.params.v, {0, 1, 4224, 5}, NAN);
    problem.freeze_inputs();
    for (const char* recipe : {"int8_int8+tile=64", "fp32_fp32"})
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            run_one_shot(&problem, with(problem, recipe, tier));
            const Output result = problem.output();
            for (int head = 0; head < 4; ++head)
                for (int i = 0; i < 4; ++i)
                    for (int d = 0; d < 32; ++d)
                        ASSERT_EQ(std::isnan(result.out[static_cast<size_t>((head * 4 + i) * 32 + d)]),
                                  head >= 2 && 4222 + i >= 4224)
                            << head << " " << i << " " << d;
        }
}

}  // namespace
}  // namespace clary::cases
