// SPDX-License-Identifier: Apache-2.0
// Every atom on its machine: the tables hold each element once, products equal three plain loops, operand loads bring
// what the tables say.
#include <array>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "gpu/target/products.h"
#include "gpu/target/tile.h"
#include "numerics/formats.h"
#include "testing.h"

namespace clary::sim {
namespace {

using gpu::Element;

template <gpu::Machine kMachine, Element kQuery, Element kOther, Element kResult>
struct Case {
    using T = Sim<kMachine>;
    using Atom = gpu::Product<kMachine, kQuery, kOther, kResult>;
    static_assert(gpu::has_product(kMachine, kQuery, kOther, kResult));
};
template <gpu::Machine kMachine, Element kElement, Element kResult>
using Same = Case<kMachine, kElement, kElement, kResult>;

using Cases = testing::Types<
    Same<gpu::kSm75, Element::kS8, Element::kS32>, Case<gpu::kSm75, Element::kU8, Element::kS8, Element::kS32>,
    Same<gpu::kSm75, Element::kF16, Element::kF32>, Same<gpu::kSm80, Element::kS8, Element::kS32>,
    Case<gpu::kSm80, Element::kU8, Element::kS8, Element::kS32>, Same<gpu::kSm80, Element::kS4, Element::kS32>,
    Same<gpu::kSm80, Element::kF16, Element::kF32>, Same<gpu::kSm80, Element::kF16, Element::kF16>,
    Same<gpu::kSm80, Element::kBf16, Element::kF32>, Same<gpu::kSm89, Element::kE4m3, Element::kF32>,
    Same<gpu::kSm89, Element::kE4m3, Element::kF16>, Same<gpu::kXcore1000, Element::kS8, Element::kS32>,
    Same<gpu::kXcore1000, Element::kF16, Element::kF32>, Same<gpu::kXcore1000, Element::kBf16, Element::kF32>,
    Same<gpu::kXcore1500, Element::kS8, Element::kS32>, Same<gpu::kXcore1500, Element::kF16, Element::kF32>,
    Same<gpu::kXcore1500, Element::kE4m3, Element::kF32>>;

// The names in atoms.h are the products of their machines.
static_assert(std::is_same_v<Same<gpu::kSm75, Element::kS8, Element::kS32>::Atom, gpu::MmaM8N8K16S8>);
static_assert(std::is_same_v<Same<gpu::kSm75, Element::kF16, Element::kF32>::Atom, gpu::MmaM16N8K8F16>);
static_assert(std::is_same_v<Same<gpu::kSm80, Element::kS4, Element::kS32>::Atom, gpu::MmaM16N8K64S4>);
static_assert(std::is_same_v<Same<gpu::kSm89, Element::kE4m3, Element::kF16>::Atom, gpu::MmaM16N8K32E4m3F16>);
static_assert(std::is_same_v<Same<gpu::kXcore1000, Element::kS8, Element::kS32>::Atom, gpu::MetaxK16S8>);
static_assert(std::is_same_v<Same<gpu::kXcore1500, Element::kE4m3, Element::kF32>::Atom, gpu::MetaxK32E4m3>);
static_assert(!gpu::has_product(gpu::kXcore1000, Element::kU8, Element::kS8, Element::kS32));
static_assert(!gpu::has_product(gpu::kSm80, Element::kE4m3, Element::kE4m3, Element::kF32));

// A random code of the type: any integer, any finite float.
uint32_t random_code(Element type, std::mt19937& random) {
    const float x = std::normal_distribution<float>(0.0f, 2.0f)(random);
    switch (type) {
        case Element::kS8:
        case Element::kU8:
            return random() & 0xff;
        case Element::kS4:
            return random() & 0xf;
        case Element::kE4m3:
            return numerics::E4m3::from_float(x).bits;
        case Element::kF16:
            return numerics::Fp16::from_float(x).bits;
        default:
            return numerics::Bf16::from_float(x).bits;
    }
}

float value(Element type, uint32_t code) {
    switch (type) {
        case Element::kS8:
            return static_cast<int8_t>(code);
        case Element::kU8:
            return static_cast<float>(code);
        case Element::kS4:
            return static_cast<float>(code < 8 ? static_cast<int>(code) : static_cast<int>(code) - 16);
        case Element::kE4m3:
            return numerics::E4m3{static_cast<uint8_t>(code)}.to_float();
        case Element::kF16:
            return numerics::Fp16{static_cast<uint16_t>(code)}.to_float();
        default:
            return numerics::Bf16{static_cast<uint16_t>(code)}.to_float();
    }
}

// Element i of packed registers.
uint32_t get(const uint32_t* registers, Element type, int i) {
    const int bits = gpu::element_bits(type), at = i * bits;
    return registers[at / 32] >> (at % 32) & ((1u << bits) - 1);
}
void put(uint32_t* registers, Element type, int i, uint32_t code) {
    const int at = i * gpu::element_bits(type);
    registers[at / 32] |= code << (at % 32);
}

template <class C>
class AtomTest : public testing::Test {};
TYPED_TEST_SUITE(AtomTest, Cases);

TYPED_TEST(AtomTest, TablesHoldEachElementOnce) {
    using Atom = typename TypeParam::Atom;
    const auto covers = [](int elements, int rows, int columns, auto at) {
        std::set<std::pair<int, int>> seen;
        for (int lane = 0; lane < Atom::kLanes; ++lane)
            for (int i = 0; i < elements; ++i) {
                const gpu::Coord c = at(lane, i);
                EXPECT_TRUE(c.row >= 0 && c.row < rows && c.col >= 0 && c.col < columns);
                EXPECT_TRUE(seen.emplace(c.row, c.col).second) << "(" << c.row << ", " << c.col << ") twice";
            }
        EXPECT_EQ(seen.size(), static_cast<size_t>(rows * columns));
    };
    covers(Atom::kQueryElements, Atom::kQueries, Atom::kDepth, Atom::query_at);
    covers(Atom::kOtherElements, Atom::kOthers, Atom::kDepth, Atom::other_at);
    covers(Atom::kResults, Atom::kQueries, Atom::kOthers, Atom::result_at);
}

TYPED_TEST(AtomTest, RowSlotsNameTheRowsOfALane) {
    using Atom = typename TypeParam::Atom;
    for (int lane = 0; lane < Atom::kLanes; ++lane)
        for (int i = 0; i < Atom::kResults; ++i)
            for (int j = 0; j < Atom::kResults; ++j)
                EXPECT_EQ(gpu::row_slot<Atom>(i) == gpu::row_slot<Atom>(j),
                          Atom::result_at(lane, i).row == Atom::result_at(lane, j).row);
}

TYPED_TEST(AtomTest, ProductEqualsPlainLoops) {
    using T = typename TypeParam::T;
    using Atom = typename TypeParam::Atom;
    constexpr bool kInteger = Atom::kResult == Element::kS32, kHalf = Atom::kResult == Element::kF16;
    using R = std::conditional_t<kInteger, int32_t, std::conditional_t<kHalf, uint32_t, float>>;
    std::mt19937 random(7);
    std::array<std::array<uint32_t, Atom::kDepth>, Atom::kQueries> q;
    std::array<std::array<uint32_t, Atom::kDepth>, Atom::kOthers> o;
    for (auto& row : q)
        for (uint32_t& code : row) code = random_code(Atom::kQuery, random);
    for (auto& row : o)
        for (uint32_t& code : row) code = random_code(Atom::kOther, random);
    const auto start = [](int query, int other) { return 1000.0f + static_cast<float>(query * 32 + other); };

    std::vector<gpu::Fragment<R, gpu::kResultRegisters<Atom>>> results(T::kLanes);
    const Report report = run_block<T>(1, 0, [&] {
        gpu::Fragment<uint32_t, gpu::kQueryRegisters<Atom>> query{};
        gpu::Fragment<uint32_t, gpu::kOtherRegisters<Atom>> other{};
        gpu::Fragment<R, gpu::kResultRegisters<Atom>> result{};
        const int lane = T::lane();
        const auto at = [](auto& matrix, gpu::Coord c) {
            return matrix[static_cast<size_t>(c.row)][static_cast<size_t>(c.col)];
        };
        for (int i = 0; i < Atom::kQueryElements; ++i) put(query.r, Atom::kQuery, i, at(q, Atom::query_at(lane, i)));
        for (int i = 0; i < Atom::kOtherElements; ++i) put(other.r, Atom::kOther, i, at(o, Atom::other_at(lane, i)));
        for (int i = 0; i < Atom::kResults; ++i) {
            const gpu::Coord c = Atom::result_at(lane, i);
            if constexpr (kHalf)
                put(result.r, Element::kF16, i, numerics::Fp16::from_float(start(c.row, c.col)).bits);
            else
                result[i] = static_cast<R>(start(c.row, c.col));
        }
        T::template mma<Atom>(query, other, result);
        results[static_cast<size_t>(lane)] = result;
    });
    ASSERT_TRUE(report.ok()) << report.describe();
    EXPECT_EQ(report.counters.products, 1);

    for (int lane = 0; lane < T::kLanes; ++lane)
        for (int i = 0; i < Atom::kResults; ++i) {
            const gpu::Coord c = Atom::result_at(lane, i);
            float expected = start(c.row, c.col);  // integer sums stay below 2^24
            for (size_t k = 0; k < Atom::kDepth; ++k)
                expected += value(Atom::kQuery, q[static_cast<size_t>(c.row)][k]) *
                            value(Atom::kOther, o[static_cast<size_t>(c.col)][k]);
            const auto& result = results[static_cast<size_t>(lane)];
            if constexpr (kHalf)
                EXPECT_EQ(get(result.r, Element::kF16, i), numerics::Fp16::from_float(expected).bits);
            else
                EXPECT_EQ(static_cast<float>(result[i]), expected) << "lane " << lane << " result " << i;
        }
}

TYPED_TEST(AtomTest, OperandLoadsFollowTheTables) {
    using T = typename TypeParam::T;
    using Atom = typename TypeParam::Atom;
    using Tile = gpu::Tile<32, 128>;
    constexpr int kBits = gpu::element_bits(Atom::kQuery);
    const auto byte_of = [](int row, int byte) { return static_cast<uint8_t>(row * 37 + byte * 11 + 5); };
    const auto code_of = [&](int row, int element) {
        const int bit = element * kBits;
        const uint32_t word = byte_of(row, bit / 8) | static_cast<uint32_t>(byte_of(row, bit / 8 + 1)) << 8;
        return word >> (bit % 8) & ((1u << kBits) - 1);
    };
    const Report report = run_block<T>(2, Tile::kBytes + 128, [&] {
        const Tile tile{{128}};
        for (int at = T::wave() * T::kLanes + T::lane(); at < Tile::kBytes; at += 2 * T::kLanes)
            T::store(tile.at(at / 128, at % 128), byte_of(at / 128, at % 128));
        T::block_sync();
        for (const int row : {0, 16})
            for (int depth = 0; depth < 128 * 8 / kBits; depth += Atom::kDepth) {
                const auto query = T::template load_query<Atom>(tile, row, depth);
                const auto other = T::template load_other<Atom>(tile, row, depth);
                for (int i = 0; i < Atom::kQueryElements; ++i) {
                    const gpu::Coord c = Atom::query_at(T::lane(), i);
                    EXPECT_EQ(get(query.r, Atom::kQuery, i), code_of(row + c.row, depth + c.col));
                }
                for (int i = 0; i < Atom::kOtherElements; ++i) {
                    const gpu::Coord c = Atom::other_at(T::lane(), i);
                    EXPECT_EQ(get(other.r, Atom::kOther, i), code_of(row + c.row, depth + c.col));
                }
            }
    });
    EXPECT_TRUE(report.ok()) << report.describe();
}

// row_max() and row_sum() join exactly the lanes that hold a query's results.
TYPED_TEST(AtomTest, RowReductionsJoinTheLanesOfAQuery) {
    using T = typename TypeParam::T;
    using Atom = typename TypeParam::Atom;
    const auto x_of = [](int lane) { return (lane * 29 + 3) % 64; };
    const Report report = run_block<T>(1, 0, [&] {
        const int row = Atom::result_at(T::lane(), 0).row;
        int max = -1, sum = 0;
        for (int lane = 0; lane < T::kLanes; ++lane)
            if (Atom::result_at(lane, 0).row == row) {
                max = std::max(max, x_of(lane));
                sum += x_of(lane);
            }
        const int mine = x_of(T::lane());
        EXPECT_EQ(T::row_max(static_cast<float>(mine)), static_cast<float>(max));
        EXPECT_EQ(T::row_sum(static_cast<float>(mine)), static_cast<float>(sum));
        EXPECT_EQ(T::row_sum(mine), sum);
        EXPECT_EQ(Atom::kRowMasks[0] | Atom::kRowMasks[1], T::kLanes == 32 ? 3 : 48);
    });
    EXPECT_TRUE(report.ok()) << report.describe();
}

}  // namespace
}  // namespace clary::sim
