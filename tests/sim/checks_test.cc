// SPDX-License-Identifier: Apache-2.0
// The simulator's checks, each by the smallest kernel that breaks its rule and by one next to it that does not.
#include <array>
#include <string>

#include "testing.h"

namespace clary::sim {
namespace {

using gpu::SharedAddress;

template <class M>
class CheckTest : public testing::Test {
  protected:
    using Target = typename M::T;

    // The kernel breaks the rule in either mode of copies and whatever the order of waves.
    void expect(Check check, int waves, std::function<void()> kernel) {
        for (const Copies copies : {Copies::kEarly, Copies::kLate})
            for (uint64_t seed = 0; seed < 4; ++seed) {
                const Report report = run_block<Target>(waves, 1024, kernel, with(copies, seed));
                EXPECT_EQ(check_name(report.failure.check), std::string(check_name(check))) << report.describe();
            }
    }
    void expect_ok(int waves, std::function<void()> kernel) { expect(Check::kNone, waves, std::move(kernel)); }
    // 16 bytes for each lane of a wave from byte 0, in the order of lanes.
    static SharedAddress chunk() { return {static_cast<uint32_t>(16 * Target::lane())}; }
    // 16 bytes of global memory for each lane.
    static const void* source(int lane) {
        static const std::array<gpu::Bytes16, 64> bytes{};
        return &bytes[static_cast<size_t>(lane)];
    }
    static const void* source() { return source(Target::lane()); }
};
TYPED_TEST_SUITE(CheckTest, Machines, MachineNames);

TYPED_TEST(CheckTest, RaceOfWavesReadAfterWrite) {
    using T = typename TypeParam::T;
    const auto kernel = [](bool sync) {
        if (T::wave() == 0) T::store(SharedAddress{static_cast<uint32_t>(4 * T::lane())}, T::lane());
        if (sync) T::block_sync();
        if (T::wave() == 1) {
            EXPECT_EQ(T::template load<int>({static_cast<uint32_t>(4 * T::lane())}), T::lane());
        }
    };
    this->expect_ok(2, [&] { kernel(true); });
    // Without the sync the reader may also come first.
    for (uint64_t seed = 0; seed < 8; ++seed) {
        const Report report = run_block<T>(
            2, 1024, [&] { kernel(false); }, with(Copies::kLate, seed));
        EXPECT_TRUE(report.failure.check == Check::kRace || report.failure.check == Check::kUninitialised);
    }
}

TYPED_TEST(CheckTest, RaceOfWavesWriteAfterReadAndReadAfterWrite) {
    using T = typename TypeParam::T;
    const auto kernel = [](bool sync) {
        const SharedAddress mine{static_cast<uint32_t>(4 * T::lane())};
        if (T::wave() == 0) T::store(mine, 0);
        T::block_sync();
        if (T::wave() == 0) {
            EXPECT_EQ(T::template load<int>(mine), 0);
        }
        if (sync) T::block_sync();
        if (T::wave() == 1) T::store(mine, 1);
    };
    this->expect_ok(2, [&] { kernel(true); });
    this->expect(Check::kRace, 2, [&] { kernel(false); });
}

TYPED_TEST(CheckTest, RaceOfWavesWriteAfterWrite) {
    using T = typename TypeParam::T;
    this->expect(Check::kRace, 2, [] { T::store(SharedAddress{static_cast<uint32_t>(4 * T::lane())}, 1); });
    this->expect_ok(2,
                    [] { T::store(SharedAddress{static_cast<uint32_t>(4 * (T::lane() + T::wave() * T::kLanes))}, 1); });
}

TYPED_TEST(CheckTest, RaceOfManyReadersAndOneWriter) {
    using T = typename TypeParam::T;
    this->expect(Check::kRace, 3, [] {
        if (T::wave() == 0 && T::lane() == 0) T::store(SharedAddress{0}, 1);
        T::block_sync();
        (void)T::template load<int>({0});
        if (T::wave() == 0 && T::lane() == 0) T::store(SharedAddress{0}, 2);
    });
}

TYPED_TEST(CheckTest, RaceOfLanesEndsWithWaveSyncOnly) {
    using T = typename TypeParam::T;
    const auto kernel = [](int between) {
        T::store(SharedAddress{static_cast<uint32_t>(4 * T::lane())}, T::lane());
        if (between == 0) T::wave_sync();
        if (between == 1) T::block_sync();
        if (between == 2) (void)T::shuffle_xor(1, 1);
        if (between == 3) (void)T::any(true);
        const int other = T::lane() ^ 1;
        EXPECT_EQ(T::template load<int>({static_cast<uint32_t>(4 * other)}), other);
    };
    this->expect_ok(1, [&] { kernel(0); });
    this->expect_ok(1, [&] { kernel(1); });
    this->expect(Check::kRace, 1, [&] { kernel(2); });
    this->expect(Check::kRace, 1, [&] { kernel(3); });
}

TYPED_TEST(CheckTest, BytesOfOneWordAreNoRace) {
    using T = typename TypeParam::T;
    this->expect_ok(2, [] {
        const uint32_t mine = static_cast<uint32_t>(2 * T::lane() + T::wave());
        T::store(SharedAddress{mine}, static_cast<uint8_t>(mine));
        T::block_sync();
        if (T::wave() == 0) {
            EXPECT_EQ(T::template load<uint16_t>({mine}), (mine + 1) << 8 | mine);
        }
    });
}

TYPED_TEST(CheckTest, UninitialisedBytes) {
    using T = typename TypeParam::T;
    this->expect(Check::kUninitialised, 1, [] { (void)T::template load<int>({0}); });
    this->expect(Check::kUninitialised, 1, [] {
        const uint32_t mine = static_cast<uint32_t>(4 * T::lane());
        T::store(SharedAddress{mine}, uint16_t{1});  // the upper half stays poison
        (void)T::template load<int>({mine});
    });
}

TYPED_TEST(CheckTest, PlacesOutsideAndBetween) {
    using T = typename TypeParam::T;
    this->expect(Check::kOutOfRange, 1, [] { T::store(SharedAddress{1024}, 1); });
    this->expect(Check::kOutOfRange, 1, [] { T::store(SharedAddress{0xfffffffcu}, 1); });
    this->expect(Check::kMisaligned, 1, [] { T::store(SharedAddress{2}, 1); });
    this->expect(Check::kMisaligned, 1, [] { T::store(SharedAddress{8}, gpu::Bytes16{}); });
}

TYPED_TEST(CheckTest, CollectivesInUnison) {
    using T = typename TypeParam::T;
    this->expect(Check::kDivergence, 1, [] {
        if (T::lane() % 2 == 0)
            (void)T::any(true);
        else
            (void)T::shuffle_xor(1, 1);
    });
    this->expect(Check::kDivergence, 1, [] {  // the same collective at two places
        if (T::lane() % 2 == 0)
            T::wave_sync();
        else
            T::wave_sync();
    });
    this->expect(Check::kDivergence, 1, [] {
        if (T::lane() != 3) T::wave_sync();
    });
    this->expect(Check::kDivergence, 1, [] {
        if (T::lane() == 3) T::wave_sync();
    });
    this->expect(Check::kDivergence, 2, [] {
        if (T::wave() == 0) T::block_sync();
    });
    this->expect(Check::kDivergence, 1, [] { (void)T::shuffle_xor(1, T::lane() % 2 + 1); });
    this->expect_ok(2, [] {  // waves go their own ways between the block's syncs
        if (T::wave() == 0) (void)T::any(true);
        T::block_sync();
    });
}

TYPED_TEST(CheckTest, CopiesThatNothingWaitedFor) {
    using T = typename TypeParam::T;
    const auto kernel = [](auto settle) {
        const SharedAddress mine{static_cast<uint32_t>(16 * T::lane())};
        T::copy16(mine, TestFixture::source(), true);
        T::commit();
        settle(mine);
        T::template wait<0, 1>();
    };
    this->expect_ok(1, [&] { kernel([](SharedAddress) {}); });
    this->expect(Check::kPendingCopy, 1, [&] { kernel([](SharedAddress at) { (void)T::template load<int>(at); }); });
    this->expect(Check::kPendingCopy, 1, [&] { kernel([](SharedAddress at) { T::store(at, 1); }); });
    this->expect(Check::kPendingCopy, 1, [&] {
        kernel([](SharedAddress) { T::template wait<1, 1>(); });
        T::copy16(TestFixture::chunk(), TestFixture::source(), true);  // nothing waits for it
    });
    this->expect(Check::kPendingCopy, 1, [&] {
        kernel([](SharedAddress at) {
            T::template wait<1, 1>();  // lets the only group go on
            (void)T::template load<int>(at);
        });
    });
}

TYPED_TEST(CheckTest, CopiesOfAnotherWaveNeedTheBlocksSync) {
    using T = typename TypeParam::T;
    const auto kernel = [](bool sync) {
        T::store(SharedAddress{static_cast<uint32_t>(4 * (T::lane() + T::wave() * T::kLanes))}, 1);
        T::block_sync();
        if (T::wave() == 0) T::copy16(TestFixture::chunk(), TestFixture::source(), true);
        if (T::wave() == 0) T::commit();
        if (T::wave() == 0) T::template wait<0, 1>();
        if (sync) T::block_sync();
        if (T::wave() == 1) {
            const int value = T::template load<int>({static_cast<uint32_t>(4 * T::lane())});
            EXPECT_TRUE(value == 0 || !sync);
        }
    };
    this->expect_ok(2, [&] { kernel(true); });
    this->expect(Check::kRace, 2, [&] { kernel(false); });
}

TYPED_TEST(CheckTest, CopiesFromOutside) {
    using T = typename TypeParam::T;
    Options options;
    options.global = {{TestFixture::source(0), 16 * (static_cast<size_t>(T::kLanes) - 1)}};  // all but the last lane's
    const auto run = [&](bool last_is_valid) {
        const auto kernel = [&] {
            T::copy16(TestFixture::chunk(), TestFixture::source(), last_is_valid || T::lane() < T::kLanes - 1);
            T::commit();
            T::template wait<0, 1>();
        };
        return run_block<T>(1, 1024, kernel, options).failure;
    };
    EXPECT_EQ(run(false).check, Check::kNone);
    EXPECT_EQ(run(true).check, Check::kGlobalRange);
    EXPECT_EQ(run(true).lane, T::kLanes - 1);
}

TYPED_TEST(CheckTest, DestinationsInTheOrderOfLanes) {
    using T = typename TypeParam::T;
    const auto kernel = [] {
        T::copy16(SharedAddress{static_cast<uint32_t>(16 * (T::lane() ^ 1))}, TestFixture::source(), true);
        T::commit();
        T::template wait<0, 1>();
    };
    const bool metax = T::kChip.vendor == gpu::Vendor::kMetax;
    this->expect(metax ? Check::kCopyDestination : Check::kNone, 1, kernel);
}

TYPED_TEST(CheckTest, BankConflicts) {
    using T = typename TypeParam::T;
    const auto kernel = [] { T::store(SharedAddress{static_cast<uint32_t>(8 * T::lane())}, 1); };
    this->expect(Check::kBankConflict, 1, kernel);
    Options options;
    options.allow_bank_conflicts = true;
    const Report report = run_block<T>(1, 1024, kernel, options);
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.counters.bank_conflicts, T::kLanes == 32 ? 1 : 2);
}

TYPED_TEST(CheckTest, LoopsWithoutEnd) {
    using T = typename TypeParam::T;
    const auto kernel = [] {
        T::store(SharedAddress{static_cast<uint32_t>(4 * T::lane())}, 0);
        while (T::template load<int>({static_cast<uint32_t>(4 * T::lane())}) == 0) {
        }
    };
    EXPECT_EQ(run_block<T>(1, 1024, kernel).failure.check, Check::kStuck);
}

TYPED_TEST(CheckTest, FailureSaysWhere) {
    using T = typename TypeParam::T;
    const int line = __LINE__ + 2;
    const auto kernel = [] {
        if (T::block(1) == 2 && T::wave() == 1 && T::lane() == 5) T::store(SharedAddress{2}, 1);
    };
    const Report report = launch<T>({1, 3, 1}, 2 * T::kLanes, 64, {}, kernel);
    EXPECT_EQ(report.failure.block, (std::array{0, 2, 0}));
    EXPECT_EQ(report.failure.wave, 1);
    EXPECT_EQ(report.failure.lane, 5);
    EXPECT_EQ(report.failure.line, line);
    EXPECT_NE(report.describe().find("checks_test.cc:" + std::to_string(line)), std::string::npos) << report.describe();
}

}  // namespace
}  // namespace clary::sim
