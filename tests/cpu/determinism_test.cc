// SPDX-License-Identifier: Apache-2.0
// The same bits run to run, on any number of threads, and whoever the neighbours in the batch are.
#include <cstring>
#include <thread>

#include "cpu/run.h"

namespace clary::cases {
namespace {

std::vector<Case> telling_cases() {
    std::vector<Case> cases;
    for (const Case& c : all_cases())
        for (const char* name : {"q300_k256", "heads_9_3", "varlen_causal", "lengths_causal", "window_keep", "decode",
                                 "alibi_and_mask", "paged"})
            if (c.name == name) cases.push_back(c);
    // More tokens than one piece of the statistics takes (1024).
    cases.push_back({.name = "long", .q_heads = 2, .kv_heads = 1, .q_len = 1030, .kv_len = 1100, .dim = 32});
    // The AMX tier, whose blocks are of 128 rows, gives some threads parts of one, the last of 4 rows.
    cases.push_back({.name = "one_block", .q_heads = 1, .kv_heads = 1, .q_len = 100, .kv_len = 700, .dim = 64});
    return cases;
}

TEST(Determinism, AnyNumberOfThreads) {
    for (const Case& c : telling_cases()) {
        Problem problem(c);
        for (const char* recipe : recipes())
            for (const char* tier : tiers())
                for (const bool with_lse : {true, false}) {
                    SCOPED_TRACE(c.name + ", " + recipe + " on " + tier + (with_lse ? "" : " without LSE"));
                    std::vector<unsigned char> first;
                    for (const int threads : {1, 2, 3, 8, 1}) {
                        const ContextOf context(threads);
                        clary_attention_params params = with(problem, recipe, tier, context.context);
                        if (!with_lse) params.lse = {};
                        run_one_shot(&problem, params);
                        if (first.empty()) first = problem.output_bytes();
                        ASSERT_EQ(problem.output_bytes(), first) << threads << " threads";
                    }
                }
    }
}

// Sequence 1 of 3 alone gives what it gives in the batch.
TEST(Determinism, BatchNeighbours) {
    Case whole{.name = "batch", .batch = 3, .q_heads = 4, .kv_heads = 2, .q_len = 75, .kv_len = 200, .dim = 48};
    whole.causal = Causal::kBottomRight;
    Problem problem(whole);
    for (const char* recipe : recipes())
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            run_one_shot(&problem, with(problem, recipe, tier));
            const Output all = problem.output();
            clary_attention_params one = with(problem, recipe, tier);
            Output alone{std::vector<float>(all.out.size() / 3), std::vector<float>(all.lse.size() / 3)};
            for (clary_tensor* t : {&one.q, &one.k, &one.v, &one.out, &one.lse}) {
                t->data = static_cast<float*>(t->data) + t->stride[0];
                t->shape[0] = 1;
            }
            one.out.data = alone.out.data();
            one.lse.data = alone.lse.data();
            one.lse.stride[1] = whole.q_len;
            ASSERT_EQ(clary_attention(&one), CLARY_OK) << clary_last_error();
            ASSERT_EQ(std::memcmp(alone.out.data(), all.out.data() + alone.out.size(), alone.out.size() * 4), 0);
            ASSERT_EQ(std::memcmp(alone.lse.data(), all.lse.data() + alone.lse.size(), alone.lse.size() * 4), 0);
        }
}

TEST(Determinism, CallsFromSeveralThreadsOnOneContextAndOnSeveral) {
    Case c{.name = "concurrent", .q_heads = 4, .kv_heads = 2, .q_len = 140, .kv_len = 300, .dim = 32};
    Problem problem(c);
    run_one_shot(&problem, with(problem, "int8_int8", "cpu"));
    const Output expected = problem.output();
    const ContextOf shared(3);
    for (const bool own_context : {false, true}) {
        std::vector<std::thread> threads;
        std::vector<Output> results(8);
        for (Output& result : results)
            threads.emplace_back([&] {
                const ContextOf mine(2);
                for (int round = 0; round < 5; ++round) {
                    clary_attention_params params =
                        with(problem, "int8_int8", "cpu", own_context ? mine.context : shared.context);
                    result = {std::vector<float>(expected.out.size()), std::vector<float>(expected.lse.size())};
                    params.out.data = result.out.data();
                    params.lse.data = result.lse.data();
                    params.lse.stride[1] = c.q_len;
                    ASSERT_EQ(clary_attention(&params), CLARY_OK) << clary_last_error();
                }
            });
        for (std::thread& thread : threads) thread.join();
        for (const Output& result : results) {
            EXPECT_EQ(result.out, expected.out);
            EXPECT_EQ(result.lse, expected.lse);
        }
    }
}

}  // namespace
}  // namespace clary::cases
