// SPDX-License-Identifier: Apache-2.0
#include "core/context.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

namespace clary {
namespace {

TEST(Context, EveryPieceOnceAndThreadsWithinRange) {
    for (const int threads : {1, 2, 3, 8}) {
        Context context(threads);
        EXPECT_EQ(context.threads(), threads);
        for (const int64_t pieces : {0, 1, 2, 7, 1000}) {
            std::vector<std::atomic<int>> done(static_cast<size_t>(pieces));
            std::atomic<bool> in_range{true};
            context.parallel_for(pieces, [&](int64_t piece, int thread) {
                ++done[static_cast<size_t>(piece)];
                if (thread < 0 || thread >= threads) in_range = false;
            });
            for (const std::atomic<int>& count : done) ASSERT_EQ(count, 1);
            EXPECT_TRUE(in_range);
        }
    }
}

// No two pieces run under one thread index at a time: it names scratch memory.
TEST(Context, AThreadIndexIsNeverSharedAtOneTime) {
    Context context(4);
    std::atomic<int> inside[4] = {};
    std::atomic<bool> alone{true};
    const auto job = [&] {
        context.parallel_for(200, [&](int64_t, int thread) {
            if (inside[thread].fetch_add(1) != 0) alone = false;
            std::this_thread::yield();
            inside[thread].fetch_sub(1);
        });
    };
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) callers.emplace_back(job);
    for (std::thread& caller : callers) caller.join();
    EXPECT_TRUE(alone);
}

TEST(Context, ManyShortJobs) {
    Context context(3);
    std::atomic<int64_t> sum{0};
    for (int job = 0; job < 2000; ++job) context.parallel_for(5, [&](int64_t piece, int) { sum += piece; });
    EXPECT_EQ(sum, 2000 * 10);
}

TEST(Context, DefaultCountFromTheEnvironment) {
    const char* const before = std::getenv("CLARY_NUM_THREADS");
    const std::string saved = before ? before : "";
    setenv("CLARY_NUM_THREADS", "5", 1);
    EXPECT_EQ(Context::default_thread_count(), 5);
    for (const char* nonsense : {"0", "-3", "many", "99999"}) {
        setenv("CLARY_NUM_THREADS", nonsense, 1);
        EXPECT_GE(Context::default_thread_count(), 1) << nonsense;
        EXPECT_LE(Context::default_thread_count(), 4096) << nonsense;
    }
    unsetenv("CLARY_NUM_THREADS");
    EXPECT_GE(Context::default_thread_count(), 1);
    if (before) setenv("CLARY_NUM_THREADS", saved.c_str(), 1);
}

}  // namespace
}  // namespace clary
