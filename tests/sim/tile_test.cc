// SPDX-License-Identifier: Apache-2.0
// Tiles: the swizzle is one to one, operand loads and copies meet no bank twice, CopyTile brings rows and zeros.
#include <algorithm>
#include <set>
#include <vector>

#include "gpu/target/products.h"
#include "gpu/target/tile.h"
#include "sim/banks.h"
#include "testing.h"

namespace clary::sim {
namespace {

template <int kRowBytes>
struct RowBytes {
    static constexpr int kValue = kRowBytes;
};
using Widths = testing::Types<RowBytes<32>, RowBytes<64>, RowBytes<96>, RowBytes<128>, RowBytes<160>, RowBytes<192>,
                              RowBytes<224>, RowBytes<256>, RowBytes<288>>;

template <class W>
class TileTest : public testing::Test {};
struct WidthNames {
    template <class W>
    static std::string GetName(int) {
        return std::to_string(W::kValue);
    }
};
TYPED_TEST_SUITE(TileTest, Widths, WidthNames);

TYPED_TEST(TileTest, SwizzleIsOneToOne) {
    using Tile = gpu::Tile<64, TypeParam::kValue>;
    std::set<uint32_t> seen;
    for (int row = 0; row < Tile::kRows; ++row)
        for (int byte = 0; byte < Tile::kRowBytes; ++byte) {
            const uint32_t at = Tile{{256}}.at(row, byte).byte;
            EXPECT_TRUE(at >= 256 && at < 256 + Tile::kBytes && seen.insert(at).second);
        }
}

// move() reaches every place of the tile from the lane's part of its first rows, as operand loads use it.
TYPED_TEST(TileTest, MoveIsAt) {
    using Tile = gpu::Tile<64, TypeParam::kValue>;
    const Tile tile{};  // places count from its beginning
    for (int row = 0; row < 16; ++row)
        for (int rows = 0; row + rows < Tile::kRows; rows += 8)
            for (int byte = 0; byte < 32; byte += 16)
                for (int bytes = 0; byte + bytes < Tile::kRowBytes; bytes += byte == 0 ? 16 : 32)
                    ASSERT_EQ(Tile::move(tile.at(row, byte), rows, bytes).byte, tile.at(row + rows, byte + bytes).byte)
                        << row << "+" << rows << ", " << byte << "+" << bytes;
}

// Loads from every place, on every machine, by the atoms of bytes and of halves; any conflict would fail the launch.
template <class T, class Tile, gpu::Element kElement, gpu::Element kResult>
void expect_no_conflicts() {
    using Atom = gpu::Product<T::kChip, kElement, kElement, kResult>;
    std::vector<gpu::Bytes16> rows(Tile::kBytes / 16);
    const Report report = run_block<T>(1, Tile::kBytes, [&] {
        const Tile tile{};
        using Copy = gpu::CopyTile<T, Tile, T::kLanes>;
        Copy::issue(tile, rows.data(), Tile::kRowBytes, Tile::kRows);
        T::commit();
        T::template wait<0, Copy::kCopies>();
        T::block_sync();
        for (int row = 0; row + 16 <= Tile::kRows; row += 16)
            for (int depth = 0; depth < Tile::kRowBytes * 8 / gpu::element_bits(kElement); depth += Atom::kDepth) {
                (void)T::template load_query<Atom>(tile, row, depth);
                (void)T::template load_other<Atom>(tile, row, depth);
            }
    });
    EXPECT_TRUE(report.ok()) << gpu::machine_name(T::kChip) << ": " << report.describe();
}

template <class T, class Tile>
void expect_no_conflicts() {
    expect_no_conflicts<T, Tile, gpu::Element::kS8, gpu::Element::kS32>();
    expect_no_conflicts<T, Tile, gpu::Element::kF16, gpu::Element::kF32>();
}

TYPED_TEST(TileTest, LoadsAndCopiesMeetNoBankTwice) {
    using Tile = gpu::Tile<64, TypeParam::kValue>;
    expect_no_conflicts<Sim<gpu::kSm75>, Tile>();
    expect_no_conflicts<Sim<gpu::kSm80>, Tile>();
    expect_no_conflicts<Sim<gpu::kXcore1000>, Tile>();
    expect_no_conflicts<Sim<gpu::kXcore1500>, Tile>();
}

template <class T, class Tile>
void expect_rows_and_zeros(Copies copies) {
    constexpr int kRows = Tile::kRows - 5, kStride = Tile::kRowBytes + 48;  // of the source
    std::vector<gpu::Bytes16> source(static_cast<size_t>(kRows * kStride / 16));
    auto* bytes = reinterpret_cast<uint8_t*>(source.data());
    for (size_t i = 0; i < source.size() * 16; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256 + 1);
    Options options = with(copies);
    options.global = {{source.data(), source.size() * 16}};
    const Report report = run_block<T>(
        2, Tile::kBytes + 32,
        [&] {
            const Tile tile{{32}};
            using Copy = gpu::CopyTile<T, Tile, 2 * T::kLanes>;
            Copy::issue(tile, source.data(), kStride, kRows);
            T::commit();
            T::template wait<0, Copy::kCopies>();
            T::block_sync();
            for (int row = T::lane() / 4; row < Tile::kRows; row += T::kLanes / 4)
                for (int byte = T::lane() % 4; byte < Tile::kRowBytes; byte += 4)
                    EXPECT_EQ(T::template load<uint8_t>(tile.at(row, byte)),
                              row < kRows ? bytes[row * kStride + byte] : 0);
        },
        [&] {
            options.allow_bank_conflicts = true;  // of the plain loads
            return options;
        }());
    EXPECT_TRUE(report.ok()) << gpu::machine_name(T::kChip) << ": " << report.describe();
}

TYPED_TEST(TileTest, CopyTileBringsRowsAndZeros) {
    using Tile = gpu::Tile<64, TypeParam::kValue>;
    for (const Copies copies : {Copies::kEarly, Copies::kLate}) {
        expect_rows_and_zeros<Sim<gpu::kSm80>, Tile>(copies);
        expect_rows_and_zeros<Sim<gpu::kXcore1000>, Tile>(copies);
    }
}

int excess(gpu::Vendor vendor, std::vector<uint32_t> addresses, uint32_t bytes) {
    return excess_passes(vendor, addresses.data(), static_cast<int>(addresses.size()), bytes);
}
// `lanes` addresses, `stride` bytes apart.
std::vector<uint32_t> strided(int lanes, uint32_t stride) {
    std::vector<uint32_t> addresses;
    for (uint32_t lane = 0; lane < static_cast<uint32_t>(lanes); ++lane) addresses.push_back(lane * stride);
    return addresses;
}

TEST(BanksTest, PassesBeyondThoseNeeded) {
    using enum gpu::Vendor;
    EXPECT_EQ(excess(kNvidia, strided(32, 4), 4), 0);
    EXPECT_EQ(excess(kNvidia, strided(32, 0), 4), 0);  // a broadcast
    EXPECT_EQ(excess(kNvidia, strided(32, 1), 1), 0);  // bytes of the same words
    EXPECT_EQ(excess(kNvidia, strided(32, 8), 4), 1);
    EXPECT_EQ(excess(kNvidia, strided(32, 128), 4), 31);
    EXPECT_EQ(excess(kNvidia, strided(32, 132), 4), 0);
    EXPECT_EQ(excess(kNvidia, strided(32, 8), 8), 0);
    EXPECT_EQ(excess(kNvidia, strided(32, 16), 8), 2);  // each half wave twice
    EXPECT_EQ(excess(kNvidia, strided(32, 16), 16), 0);
    EXPECT_EQ(excess(kNvidia, strided(8, 128), 16), 7);
    EXPECT_EQ(excess(kNvidia, strided(5, 16), 16), 0);
    EXPECT_EQ(excess(kMetax, strided(64, 4), 4), 0);
    EXPECT_EQ(excess(kMetax, strided(64, 8), 4), 2);
    EXPECT_EQ(excess(kMetax, strided(64, 16), 16), 0);
}

}  // namespace
}  // namespace clary::sim
