// SPDX-License-Identifier: Apache-2.0
// The Target that runs a kernel on the host, one fiber per lane, as the machine would and with every rule checked.
// Meanings of the members: gpu/target/target.h. `file` and `line` are the kernel's, for the report.
//
// Everything but plain loads, stores and math is a collective here, commit() and wait() too: all lanes of the wave must
// come to the same line.
#pragma once

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "gpu/target/atoms.h"
#include "gpu/target/machines.h"
#include "gpu/target/products.h"
#include "gpu/target/target.h"
#include "numerics/formats.h"
#include "sim/block.h"
#include "sim/launch.h"
#include "sim/operands.h"

// Where the kernel calls from. (std::source_location is not in every compiler that builds this.)
#define CLARY_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace clary::sim {

template <typename X>
concept Word = std::is_trivially_copyable_v<X> && sizeof(X) == 4;

template <typename V>
concept SharedValue = std::is_trivially_copyable_v<V> && std::has_single_bit(sizeof(V)) && sizeof(V) <= 16;

template <gpu::Machine kMachine>
struct Sim {
    static constexpr gpu::Machine kChip = kMachine;
    static constexpr int kLanes = kMachine.lanes;
    static constexpr uint32_t kSharedBytes = kMachine.shared_bytes;
    static constexpr bool kAsyncCopies = kMachine.async_copies;

    // -- geometry --
    static int lane() { return current->index; }
    static int wave() { return current->wave->index; }
    static int waves() { return static_cast<int>(block().waves.size()); }
    static int block(int axis) { return block().index[static_cast<size_t>(axis)]; }
    static int slot() { return block(0); }

    // -- shared memory --
    template <SharedValue V>
    static V load(gpu::SharedAddress from, CLARY_SITE) {
        V value;
        SharedMemory::Fault fault;
        if (!block().shared.template read<sizeof(V)>(my_stamp(), from.byte, &value, fault))
            fail("load() ", fault, {file, line});
        count(from, sizeof(V), false, {file, line});
        return value;
    }
    template <SharedValue V>
    static void store(gpu::SharedAddress to, V value, CLARY_SITE) {
        SharedMemory::Fault fault;
        if (!block().shared.template write<sizeof(V)>(my_stamp(), to.byte, &value, fault))
            fail("store() ", fault, {file, line});
        count(to, sizeof(V), true, {file, line});
    }

    // -- asynchronous copies --
    static void copy16(gpu::SharedAddress to, const void* from, bool valid, bool active = true, CLARY_SITE) {
        struct One {
            gpu::SharedAddress to;
            const void* from;
            bool active;
        } mine{to, valid ? from : nullptr, active};
        meet("copy16()", {file, line}, mine, [=](Met<One> met) {
            WaveCopy copy;
            for (size_t i = 0; i < kLanes; ++i) {
                copy.to[i] = met[static_cast<int>(i)].to;
                copy.from[i] = met[static_cast<int>(i)].from;
                copy.active[i] = met[static_cast<int>(i)].active;
            }
            met.wave.block->start_copies(met.wave, copy, {file, line});
        });
    }
    static void commit(CLARY_SITE) {
        char none{};
        meet("commit()", {file, line}, none, [](Met<char> met) {
            met.wave.groups.push_back(met.wave.open);
            met.wave.open = 0;
        });
    }
    // NVIDIA counts groups; MetaX has none and counts copies.
    template <int kYounger, int kCopies>
    static void wait(CLARY_SITE) {
        static_assert(kYounger >= 0 && kCopies > 0);
        char none{};
        meet("wait()", {file, line}, none, [=](Met<char> met) {
            size_t pending = static_cast<size_t>(kYounger) * kCopies;
            if constexpr (kMachine.vendor == gpu::Vendor::kNvidia) {
                auto& groups = met.wave.groups;
                while (groups.size() > kYounger) groups.pop_front();
                pending = static_cast<size_t>(met.wave.open);
                for (int group : groups) pending += static_cast<size_t>(group);
            }
            met.wave.block->land_copies(met.wave, pending);
        });
    }

    // -- sync --
    static void block_sync(CLARY_SITE) { block().block_sync(*current, {file, line}); }
    static void wave_sync(CLARY_SITE) {
        char none{};
        meet("wave_sync()", {file, line}, none, [](Met<char> met) { ++met.wave.step; });
    }

    // Launches follow each other.
    static void let_next_start() {}
    static void wait_for_previous() {}

    // -- collectives --
    template <Word X>
    static X shuffle_xor(X x, int mask, CLARY_SITE) {
        struct One {
            X x;
            int mask;
            X result;
        } mine{x, mask, x};
        meet("shuffle_xor()", {file, line}, mine, [=](Met<One> met) {
            for (int i = 0; i < kLanes; ++i) {
                if (met[i].mask != mask || mask < 0 || mask >= kLanes)
                    met.wave.block->fail(Check::kDivergence, {file, line}, "shuffle_xor() with a mask of its own",
                                         met.wave.index, i);
                met[i].result = met[i ^ mask].x;
            }
        });
        return mine.result;
    }
    static bool any(bool predicate, CLARY_SITE) {
        bool mine = predicate;
        meet("any()", {file, line}, mine, [](Met<bool> met) {
            bool result = false;
            for (int i = 0; i < kLanes; ++i) result = result || met[i];
            for (int i = 0; i < kLanes; ++i) met[i] = result;
        });
        return mine;
    }
    static float row_max(float x, CLARY_SITE) {
        const auto larger = [](float a, float b) { return a > b || std::isnan(a) ? a : b; };
        return reduce_row("row_max()", x, larger, {file, line});
    }
    template <Word X>
    static X row_sum(X x, CLARY_SITE) {
        return reduce_row("row_sum()", x, [](X a, X b) { return a + b; }, {file, line});
    }

    // -- operands --
    template <class Atom, class TileType>
    static gpu::Fragment<uint32_t, gpu::kQueryRegisters<Atom>> load_query(TileType tile, int row, int depth,
                                                                          CLARY_SITE) {
        return load_operand<QueryOperand<Atom>>("load_query()", tile, row, depth, {file, line});
    }
    template <class Atom, int kCount = 1, class TileType>
    static gpu::Fragment<uint32_t, kCount * gpu::kOtherRegisters<Atom>> load_other(TileType tile, int row, int depth,
                                                                                   CLARY_SITE) {
        gpu::Fragment<uint32_t, kCount * gpu::kOtherRegisters<Atom>> all;
        for (int i = 0; i < kCount; ++i)
            put_part(
                load_operand<OtherOperand<Atom>>("load_other()", tile, row + i * Atom::kOthers, depth, {file, line}), i,
                &all);
        return all;
    }
    template <class Atom, int kCount = 1, class TileType>
    static gpu::Fragment<uint32_t, kCount * gpu::kOtherRegisters<Atom>> load_other_transposed(TileType tile, int depth,
                                                                                              int other, CLARY_SITE) {
        gpu::Fragment<uint32_t, kCount * gpu::kOtherRegisters<Atom>> all;
        for (int i = 0; i < kCount; ++i)
            put_part(load_transposed<OtherOperand<Atom>>(tile, depth, other + i * Atom::kOthers, {file, line}), i,
                     &all);
        return all;
    }
    static int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
        for (int i = 0; i < 32; i += 8) c += static_cast<int32_t>((a >> i & 255u) * (b >> i & 255u));
        return c;
    }

    // -- conversion --
    template <gpu::Element kTo>
    static uint32_t pack4(float a, float b, float c, float d) {
        const auto byte = [](float x) -> uint32_t {
            if constexpr (kTo == gpu::Element::kE4m3) return numerics::E4m3::from_float(x).bits;
            constexpr float kLow = kTo == gpu::Element::kU8 ? 0.0f : -128.0f;
            const float whole = std::isnan(x) ? 0.0f : numerics::round_half_even(std::fmin(std::fmax(x, -1e6f), 1e6f));
            return static_cast<uint32_t>(static_cast<int>(std::fmin(std::fmax(whole, kLow), kLow + 255.0f))) & 255u;
        };
        return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
    }
    template <gpu::Element kFrom>
    static float unpack4(uint32_t word, int i) {
        static_assert(kFrom == gpu::Element::kE4m3);
        return numerics::E4m3{static_cast<uint8_t>(word >> (8 * i))}.to_float();
    }
    template <gpu::Element kTo>
    static uint32_t pack2(float a, float b) {
        using Half = std::conditional_t<kTo == gpu::Element::kBf16, numerics::Bf16, numerics::Fp16>;
        return Half::from_float(a).bits | static_cast<uint32_t>(Half::from_float(b).bits) << 16;
    }
    template <gpu::Element kFrom>
    static float unpack2(uint32_t word, int i) {
        using Half = std::conditional_t<kFrom == gpu::Element::kBf16, numerics::Bf16, numerics::Fp16>;
        return Half{static_cast<uint16_t>(word >> (16 * i))}.to_float();
    }

    static uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        return (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | d << 24;
    }

    // -- global memory --
    static void raise(float* at, float x) {
        std::atomic_ref<float> shared(*at);
        float before = shared.load();
        while (before < x && !shared.compare_exchange_weak(before, x)) {
        }
    }

    // -- products: d += q times o; results of 16 bits lie two to a register --
    template <class Atom, Word R>
    static void mma(const gpu::Fragment<uint32_t, gpu::kQueryRegisters<Atom>>& q,
                    const gpu::Fragment<uint32_t, gpu::kOtherRegisters<Atom>>& o,
                    gpu::Fragment<R, gpu::kResultRegisters<Atom>>& d, CLARY_SITE) {
        static_assert(std::is_same_v<Atom, gpu::Product<kMachine, Atom::kQuery, Atom::kOther, Atom::kResult>> &&
                          gpu::has_product(kMachine, Atom::kQuery, Atom::kOther, Atom::kResult),
                      "no such product on this machine");
        struct One {
            const uint32_t *q, *o;
            R* d;
        } mine{q.r, o.r, d.r};
        meet("mma()", {file, line}, mine, [](Met<One> met) {
            std::array<const uint32_t*, kLanes> queries, others;
            std::array<void*, kLanes> results;
            for (size_t i = 0; i < kLanes; ++i) {
                const One& one = met[static_cast<int>(i)];
                queries[i] = one.q;
                others[i] = one.o;
                results[i] = one.d;
            }
            multiply<Atom>(queries.data(), others.data(), results.data());
            ++met.wave.block->counters.products;
            met.wave.block->counters.multiply_adds += Atom::kQueries * Atom::kOthers * Atom::kDepth;
        });
    }

    // -- math --
    static float log2(float x) { return std::log2(x); }
    static float exp2(float x) { return std::exp2(x); }
    static float rcp(float x) { return 1.0f / x; }
    static float fma(float a, float b, float c) { return std::fma(a, b, c); }
    static float max(float a, float b) { return a > b || a != a ? a : b; }

  private:
    static constexpr int kRowMask = kMachine.vendor == gpu::Vendor::kNvidia ? 1 : 16;  // and twice that

    static Block& block() { return *current->wave->block; }
    static Stamp my_stamp() { return block().stamp(*current->wave, static_cast<uint32_t>(current->index)); }
    [[noreturn]] static void fail(const char* what, const SharedMemory::Fault& fault, Site site) {
        block().fail(fault.check, site, what + fault.text, current->wave->index, current->index);
    }
    static void count(gpu::SharedAddress at, size_t size, bool write, Site site) {
        block().count_access(*current, {at.byte, static_cast<uint8_t>(size), write, static_cast<uint16_t>(site.line)},
                             site);
    }

    // The machines' own order: two exchanges between lanes.
    template <typename X, class Join>
    static X reduce_row(const char* what, X x, Join join, Site site) {
        X mine = x;
        meet(what, site, mine, [join](Met<X> met) {
            for (int mask = kRowMask; mask <= 2 * kRowMask; mask *= 2) {
                std::array<X, kLanes> before;
                for (int i = 0; i < kLanes; ++i) before[static_cast<size_t>(i)] = met[i];
                for (int i = 0; i < kLanes; ++i)
                    met[i] = join(before[static_cast<size_t>(i)], before[static_cast<size_t>(i ^ mask)]);
            }
        });
        return mine;
    }

    template <class Operand, class TileType>
    static gpu::Fragment<uint32_t, Operand::kRegisters> load_operand(const char* what, TileType tile, int row,
                                                                     int depth, Site site) {
        struct One {
            TileType tile;
            int row, depth;
            gpu::Fragment<uint32_t, Operand::kRegisters> result;
        } mine{tile, row, depth, {}};
        meet(what, site, mine, [=](Met<One> met) {
            for (int i = 0; i < kLanes; ++i)
                if (met[i].tile.base.byte != tile.base.byte || met[i].row != row || met[i].depth != depth)
                    met.wave.block->fail(Check::kDivergence, site, std::string(what) + " from a place of its own",
                                         met.wave.index, i);
            check_tile(met, tile, what, site);
            if constexpr (kMachine.vendor == gpu::Vendor::kNvidia)
                load_matrices<Operand>(met, what, site);
            else
                load_runs<Operand>(met, what, site);
        });
        return mine.result;
    }
    // Machines move along a tile by xor (Tile::move), which needs this.
    template <class Met, class TileType>
    static void check_tile(Met met, TileType tile, const char* what, Site site) {
        if (tile.base.byte % 128 != 0)
            met.wave.block->fail(Check::kMisaligned, site,
                                 fmt::format("{} from a tile at byte {}, no multiple of 128", what, tile.base.byte),
                                 met.wave.index, -1);
    }
    template <int N, int M>
    static void put_part(const gpu::Fragment<uint32_t, N>& one, int index, gpu::Fragment<uint32_t, M>* all) {
        for (int i = 0; i < N; ++i) (*all)[index * N + i] = one[i];
    }

    // ldmatrix.trans: each register of the wave is 8 depths of 8 others, and a lane takes two depths of its other.
    // MetaX: a lane gathers its depths one by one.
    template <class Operand, class TileType>
    static gpu::Fragment<uint32_t, Operand::kRegisters> load_transposed(TileType tile, int depth, int other,
                                                                        Site site) {
        struct One {
            TileType tile;
            int depth, other;
            gpu::Fragment<uint32_t, Operand::kRegisters> result;
        } mine{tile, depth, other, {}};
        meet("load_other_transposed()", site, mine, [=](Met<One> met) {
            static_assert(Operand::kRun == 2, "16-bit elements");
            constexpr const char* kWhat = "load_other_transposed()";
            Block& b = *met.wave.block;
            for (int i = 0; i < kLanes; ++i)
                if (met[i].tile.base.byte != tile.base.byte || met[i].depth != depth || met[i].other != other)
                    b.fail(Check::kDivergence, site, std::string(kWhat) + " from a place of its own", met.wave.index,
                           i);
            check_tile(met, tile, kWhat, site);
            for (int reg = 0; reg < Operand::kRegisters; ++reg) {
                if constexpr (kMachine.vendor == gpu::Vendor::kNvidia) {
                    std::array<uint32_t, 8> addresses;
                    for (int row = 0; row < 8; ++row)
                        addresses[static_cast<size_t>(row)] = tile.at(depth + reg * 8 + row, other * 2).byte;
                    b.count_passes(met.wave, addresses.data(), 8, 16, site);
                }
                for (int i = 0; i < kLanes; ++i) {
                    uint16_t halves[2];
                    for (int half = 0; half < 2; ++half) {
                        const gpu::Coord at = Operand::at(i, reg * 2 + half);
                        read<2>(met, Stamp::kMany, tile.at(depth + at.col, (other + at.row) * 2).byte, &halves[half],
                                kWhat, site);
                    }
                    met[i].result[reg] = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
                }
            }
        });
        return mine.result;
    }
    // ldmatrix: each register of the wave is 8 rows of 16 bytes.
    template <class Operand, class Met>
    static void load_matrices(Met met, const char* what, Site site) {
        Block& b = *met.wave.block;
        for (int reg = 0; reg < Operand::kRegisters; ++reg) {
            std::array<gpu::Bytes16, 8> matrix;
            std::array<uint32_t, 8> addresses;
            for (int row = 0; row < 8; ++row) {
                const auto r = static_cast<size_t>(row);
                addresses[r] = address<Operand>(met[0], row * 4, reg);
                read<16>(met, Stamp::kMany, addresses[r], &matrix[r], what, site);
            }
            b.count_passes(met.wave, addresses.data(), 8, 16, site);
            for (int i = 0; i < kLanes; ++i) met[i].result[reg] = matrix[static_cast<size_t>(i / 4)].word[i % 4];
        }
    }
    // MetaX: a lane reads its own run of the depth.
    template <class Operand, class Met>
    static void load_runs(Met met, const char* what, Site site) {
        constexpr uint32_t kBytes = 4 * Operand::kRegisters;
        std::array<uint32_t, kLanes> addresses;
        for (int i = 0; i < kLanes; ++i) {
            const uint32_t at = addresses[static_cast<size_t>(i)] = address<Operand>(met[i], i, 0);
            read<kBytes>(met, static_cast<uint32_t>(i), at, met[i].result.r, what, site);
        }
        met.wave.block->count_passes(met.wave, addresses.data(), kLanes, kBytes, site);
    }
    template <class Operand, class One>
    static uint32_t address(const One& one, int lane, int reg) {
        const gpu::Coord at = Operand::at(lane, reg * Operand::kRun);
        return one.tile.at(one.row + at.row, (one.depth + at.col) * 4 / Operand::kRun).byte;
    }
    template <uint32_t size, class Met>
    static void read(Met met, uint32_t lane, uint32_t at, void* to, const char* what, Site site) {
        SharedMemory::Fault fault;
        if (!met.wave.block->shared.template read<size>(met.wave.block->stamp(met.wave, lane), at, to, fault))
            met.wave.block->fail(fault.check, site, std::string(what) + " " + fault.text, met.wave.index,
                                 lane == Stamp::kMany ? -1 : static_cast<int>(lane));
    }
};

}  // namespace clary::sim

#undef CLARY_SITE
