// SPDX-License-Identifier: Apache-2.0
// Launches: geometry, collectives' values, several host threads, seeds, refusals.
#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "testing.h"

namespace clary::sim {
namespace {

template <class M>
class LaunchTest : public testing::Test {};
TYPED_TEST_SUITE(LaunchTest, Machines, MachineNames);

TYPED_TEST(LaunchTest, EveryLaneOfEveryBlockRunsOnce) {
    using T = typename TypeParam::T;
    constexpr int kWaves = 3;
    for (const int threads : {1, 3}) {
        Options options;
        options.threads = threads;
        std::vector<std::atomic<int>> runs(static_cast<size_t>(2 * 3 * 4 * kWaves * T::kLanes));
        const Report report = launch<T>({2, 3, 4}, kWaves * T::kLanes, 16, options, [&] {
            const int block = (T::block(2) * 3 + T::block(1)) * 2 + T::block(0);
            ++runs[static_cast<size_t>((block * T::waves() + T::wave()) * T::kLanes + T::lane())];
            T::block_sync();
        });
        EXPECT_TRUE(report.ok()) << report.describe();
        for (const auto& count : runs) EXPECT_EQ(count, 1);
        EXPECT_EQ(report.counters.collectives, 2 * 3 * 4 * kWaves);
    }
}

TYPED_TEST(LaunchTest, ShufflesAndVotes) {
    using T = typename TypeParam::T;
    const Report report = run_block<T>(2, 0, [] {
        for (int mask = 1; mask < T::kLanes; mask *= 2) {
            EXPECT_EQ(T::shuffle_xor(T::lane() + 100 * T::wave(), mask), (T::lane() ^ mask) + 100 * T::wave());
            EXPECT_EQ(T::shuffle_xor(0.5f * static_cast<float>(T::lane()), mask),
                      0.5f * static_cast<float>(T::lane() ^ mask));
        }
        EXPECT_TRUE(T::any(T::lane() == T::kLanes - 1));
        EXPECT_EQ(T::any(T::wave() == 1), T::wave() == 1);
        EXPECT_FALSE(T::any(false));
    });
    EXPECT_TRUE(report.ok()) << report.describe();
}

TYPED_TEST(LaunchTest, Math) {
    using T = typename TypeParam::T;
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(T::exp2(-infinity), 0.0f);
    EXPECT_EQ(T::exp2(3.0f), 8.0f);
    EXPECT_EQ(T::rcp(4.0f), 0.25f);
    EXPECT_EQ(T::fma(3.0f, 1.0f / 3.0f, -1.0f), std::fma(3.0f, 1.0f / 3.0f, -1.0f));
}

TYPED_TEST(LaunchTest, SeedsChangeTheOrderOfWavesAndNothingElse) {
    using T = typename TypeParam::T;
    const auto order = [](uint64_t seed) {
        std::vector<int> waves;
        const Report report = run_block<T>(
            8, 0,
            [&] {
                if (T::lane() == 0) waves.push_back(T::wave());
            },
            with(Copies::kLate, seed));
        EXPECT_TRUE(report.ok());
        return waves;
    };
    std::set<std::vector<int>> orders;
    for (uint64_t seed = 0; seed < 8; ++seed) {
        EXPECT_EQ(order(seed), order(seed));
        EXPECT_EQ(order(seed).size(), 8u);
        orders.insert(order(seed));
    }
    EXPECT_GT(orders.size(), 4u);
}

// Early copies hold their bytes at once, late ones when the wait comes: the source may change until then.
TYPED_TEST(LaunchTest, LateCopiesReadLate) {
    using T = typename TypeParam::T;
    for (const Copies copies : {Copies::kEarly, Copies::kLate}) {
        std::vector<gpu::Bytes16> source(T::kLanes);
        const Report report = run_block<T>(
            1, 16 * T::kLanes,
            [&] {
                const gpu::SharedAddress mine{static_cast<uint32_t>(16 * T::lane())};
                T::copy16(mine, &source[static_cast<size_t>(T::lane())], true);
                T::commit();
                source[static_cast<size_t>(T::lane())].word[0] = 7;
                T::template wait<0, 1>();
                EXPECT_EQ(T::template load<gpu::Bytes16>(mine).word[0], copies == Copies::kLate ? 7u : 0u);
            },
            with(copies));
        EXPECT_TRUE(report.ok()) << report.describe();
    }
}

TYPED_TEST(LaunchTest, Refusals) {
    using T = typename TypeParam::T;
    const auto check = [](Grid grid, int threads, uint32_t bytes) {
        return launch<T>(grid, threads, bytes, {}, [] {}).failure.check;
    };
    EXPECT_EQ(check({}, T::kLanes, T::kSharedBytes), Check::kNone);
    EXPECT_EQ(check({}, T::kLanes, T::kSharedBytes + 1), Check::kTooMuchShared);
    EXPECT_EQ(check({}, T::kLanes + 1, 0), Check::kLaunch);
    EXPECT_EQ(check({}, 1024, 0), Check::kNone);
    EXPECT_EQ(check({}, 1024 + T::kLanes, 0), Check::kLaunch);
    EXPECT_EQ(check({1, 65536, 1}, T::kLanes, 0), Check::kLaunch);
    EXPECT_EQ(check({0, 1, 1}, T::kLanes, 0), Check::kLaunch);
}

// After a failure nothing hangs and the next launch is clean.
TYPED_TEST(LaunchTest, FailureInOneBlockStopsTheLaunch) {
    using T = typename TypeParam::T;
    Options options;
    options.threads = 2;
    for (int round = 0; round < 3; ++round) {
        const Report report = launch<T>({50, 1, 1}, 4 * T::kLanes, 0, options, [] {
            T::block_sync();
            if (T::block(0) == 20 && T::wave() == 2) (void)T::template load<int>({0});
            T::block_sync();
        });
        EXPECT_EQ(report.failure.check, Check::kOutOfRange);
        EXPECT_EQ(report.failure.block[0], 20);
    }
}

}  // namespace
}  // namespace clary::sim
