// SPDX-License-Identifier: Apache-2.0
// The Target for MetaX's GPUs (C500, C550: xcore1000; C600: xcore1500). The only file of src/maca with builtins of the
// device; what each is believed to do, and on what evidence: docs/maca.md, and tools/maca_probe, which asks a card.
// Meanings of the members: gpu/target/target.h.
#pragma once

#include "gpu/target/atoms.h"
#include "gpu/target/machines.h"
#include "gpu/target/target.h"
#include "gpu/target/tile.h"
#include "maca/language.h"
#include "numerics/formats.h"

namespace clary::maca {

using gpu::Element, gpu::Fragment, gpu::SharedAddress;

// (Braces, because a wave's 64 lanes are asked for by the type of the mask, not by its value.)
inline constexpr uint64_t kAllLanes{0xffffffffffffffffu};

template <gpu::Machine kMachine>
struct Target {
    static constexpr gpu::Machine kChip = kMachine;
    static constexpr int kLanes = 64;
    static constexpr uint32_t kSharedBytes = kMachine.shared_bytes;
    static constexpr bool kAsyncCopies = true;
    static constexpr bool kIsXcore1500 = kMachine.chip == gpu::Chip::kXcore1500;
    static_assert(kMachine.vendor == gpu::Vendor::kMetax && kMachine.lanes == kLanes);

    // -- geometry --
    CLARY_DEVICE static int lane() { return static_cast<int>(threadIdx.x % kLanes); }
    CLARY_DEVICE static int wave() { return static_cast<int>(threadIdx.x / kLanes); }
    CLARY_DEVICE static int waves() { return static_cast<int>(blockDim.x) / kLanes; }
    CLARY_DEVICE static int block(int axis) {
        return static_cast<int>(axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : blockIdx.z);
    }
    CLARY_DEVICE static int slot() { return block(0); }  // no builtin tells it

    // -- shared memory --
    template <typename V>
    CLARY_DEVICE static V load(SharedAddress from) {
        return *shared_pointer<V>(from.byte);
    }
    template <typename V>
    CLARY_DEVICE static void store(SharedAddress to, V value) {
        *shared_pointer<V>(to.byte) = value;
    }

    // -- asynchronous copies: one instruction of the wave, whose lanes write 16 bytes each behind the first lane's. All
    // lanes execute it, and a predicate (1 == 1 or 0 == 1) switches lanes off, whose places then stay as they are --
    CLARY_DEVICE static void copy16(SharedAddress to, const void* from, bool valid, bool active = true) {
        const auto source = static_cast<const V4i*>(from);
        __builtin_mxc_ldg_b128_bsm_predicator(shared_pointer<V4i>(to.byte), const_cast<V4i*>(source), 0, false, true,
                                              false, true, valid && active ? 1 : 0, 1, MACA_ICMP_EQ);
        if (active && !valid) store(to, gpu::Bytes16{});
    }
    CLARY_DEVICE static void commit() {}  // there are no groups
    // The counter counts loads of the wave, oldest first, plain ones of global memory among them: so it may wait for more
    // than it must, never for less.
    template <int kYounger, int kCopies>
    CLARY_DEVICE static void wait() {
        __builtin_mxc_arrive_gvmcnt(kYounger * kCopies);
    }

    // -- sync and collectives --
    // Of shared memory alone: copies that are not waited for go on.
    CLARY_DEVICE static void block_sync() {
        __builtin_mxc_arrive_bsmcnt(0);
        __builtin_mxc_barrier_inst();
    }
    CLARY_DEVICE static void wave_sync() { __syncwave(); }
    CLARY_DEVICE static void let_next_start() {}  // kernels follow each other
    CLARY_DEVICE static void wait_for_previous() {}
    template <typename X>
    CLARY_DEVICE static X shuffle_xor(X x, int mask) {
        return __shfl_xor_sync(kAllLanes, x, mask);
    }
    CLARY_DEVICE static bool any(bool predicate) { return __ballot_sync(kAllLanes, predicate) != 0; }
    // A query lies in four lanes: two steps.
    CLARY_DEVICE static float row_max(float x) {
        x = max(x, shuffle_xor(x, 16));
        return max(x, shuffle_xor(x, 32));
    }
    template <typename X>
    CLARY_DEVICE static X row_sum(X x) {
        x += shuffle_xor(x, 16);
        return x + shuffle_xor(x, 32);
    }

    // -- operands: a lane reads its own run of a row --
    template <class Atom, class TileType>
    CLARY_DEVICE static Fragment<uint32_t, gpu::kQueryRegisters<Atom>> load_query(TileType tile, int row, int depth) {
        return load_run<gpu::kQueryRegisters<Atom>, Atom>(tile, Atom::query_at(lane(), 0), row, depth);
    }
    // kCount atoms: others row, row + 16, ...
    template <class Atom, int kCount = 1, class TileType>
    CLARY_DEVICE static Fragment<uint32_t, kCount * gpu::kOtherRegisters<Atom>> load_other(TileType tile, int row,
                                                                                           int depth) {
        constexpr int kRegisters = gpu::kOtherRegisters<Atom>;
        Fragment<uint32_t, kCount * kRegisters> all;
        CLARY_UNROLL
        for (int i = 0; i < kCount; ++i) {
            const auto one =
                load_run<kRegisters, Atom>(tile, Atom::other_at(lane(), 0), row + i * Atom::kOthers, depth);
            CLARY_UNROLL
            for (int j = 0; j < kRegisters; ++j) all[i * kRegisters + j] = one[j];
        }
        return all;
    }
    // The tile's rows are depths, its columns others, of 16 bits: a lane gets 4 depths of its other.
    template <class Atom, int kCount = 1, class TileType>
    CLARY_DEVICE static Fragment<uint32_t, kCount * 2> load_other_transposed(TileType tile, int depth, int other) {
        static_assert(gpu::element_bits(Atom::kOther) == 16 && gpu::kOtherRegisters<Atom> == 2);
        Fragment<uint32_t, kCount * 2> all;
        CLARY_UNROLL
        for (int i = 0; i < kCount; ++i) {
            const auto one = transposed(tile, depth + Atom::other_at(lane(), 0).col, other + i * Atom::kOthers);
            all[2 * i] = one[0];
            all[2 * i + 1] = one[1];
        }
        return all;
    }
    CLARY_DEVICE static int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
        CLARY_UNROLL
        for (int i = 0; i < 32; i += 8) c += static_cast<int32_t>((a >> i & 255u) * (b >> i & 255u));
        return c;
    }

    // -- products: the builtin's rows are our others and its columns our queries, so that a lane has one query --
    template <class Atom>
    using Query = Fragment<uint32_t, gpu::kQueryRegisters<Atom>>;
    template <class Atom>
    using Other = Fragment<uint32_t, gpu::kOtherRegisters<Atom>>;
    template <class Atom>
    CLARY_DEVICE static void mma(const Query<Atom>& q, const Other<Atom>& o, Fragment<int32_t, 4>& d) {
        const V4i c = {d[0], d[1], d[2], d[3]};
        if constexpr (is_same<Atom, gpu::MetaxK16S8> && !kIsXcore1500)
            put(__builtin_mxc_mma_16x16x16i8(static_cast<int32_t>(o[0]), static_cast<int32_t>(q[0]), c), d);
        else if constexpr (is_same<Atom, gpu::MetaxK32S8> && kIsXcore1500)
            put(__builtin_mxc_mma_16x16x32i8(V2u{o[0], o[1]}, V2u{q[0], q[1]}, c), d);
        else
            static_assert(!sizeof(Atom), "no such integer product on this chip");
    }
    template <class Atom>
    CLARY_DEVICE static void mma(const Query<Atom>& q, const Other<Atom>& o, Fragment<float, 4>& d) {
        const V4f c = {d[0], d[1], d[2], d[3]};
        if constexpr (is_same<Atom, gpu::MetaxK16F16>)
            put(__builtin_mxc_mma_16x16x16f16(V2u{o[0], o[1]}, V2u{q[0], q[1]}, c), d);
        else if constexpr (is_same<Atom, gpu::MetaxK16Bf16>)
            put(__builtin_mxc_mma_16x16x16bf16(V2u{o[0], o[1]}, V2u{q[0], q[1]}, c), d);
        else if constexpr (is_same<Atom, gpu::MetaxK32E4m3> && kIsXcore1500)
            put(__builtin_mxc_mma_16x16x32f8(V2u{o[0], o[1]}, V2u{q[0], q[1]}, c), d);
        else
            static_assert(!sizeof(Atom), "no such float product on this chip");
    }

    // -- conversion --
    template <Element kTo>
    CLARY_DEVICE static uint32_t pack4(float a, float b, float c, float d) {
        if constexpr (kTo == Element::kE4m3 && !kMachine.fp8) {
            const auto bits = [](float x) { return uint32_t{numerics::E4m3::from_float(x).bits}; };
            return low_bytes(bits(a), bits(b), bits(c), bits(d));
        } else if constexpr (kTo == Element::kE4m3) {
            return __builtin_mxc_cvt_pk4_f32tof8(V4f{in_e4m3(a), in_e4m3(b), in_e4m3(c), in_e4m3(d)});
        } else {
            constexpr int kLow = kTo == Element::kU8 ? 0 : -128;
            return low_bytes(whole<kLow>(a), whole<kLow>(b), whole<kLow>(c), whole<kLow>(d));
        }
    }
    template <Element kTo>
    CLARY_DEVICE static uint32_t pack2(float a, float b) {
        if constexpr (kTo == Element::kBf16)
            return numerics::bit_cast<uint32_t>(__builtin_mxc_cvt_pk_f32tobf16(V2f{a, b}));
        else
            return numerics::bit_cast<uint16_t>(__float2half_rn(a)) |
                   static_cast<uint32_t>(numerics::bit_cast<uint16_t>(__float2half_rn(b))) << 16;
    }
    template <Element kFrom>
    CLARY_DEVICE static float unpack2(uint32_t word, int i) {
        if constexpr (kFrom == Element::kBf16)
            return numerics::bit_cast<float>(i == 0 ? word << 16 : word & 0xffff0000u);
        else
            return __half2float(numerics::bit_cast<__half>(static_cast<uint16_t>(word >> (16 * i))));
    }
    template <Element kFrom>
    CLARY_DEVICE static float unpack4(uint32_t word, int i) {
        static_assert(kFrom == Element::kE4m3);
        return numerics::E4m3{static_cast<uint8_t>(word >> (8 * i))}.to_float();
    }
    CLARY_DEVICE static uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        return __builtin_mxc_byte_perm(__builtin_mxc_byte_perm(d, c, 0x04000400),
                                       __builtin_mxc_byte_perm(b, a, 0x04000400), kLowHalves);
    }

    // -- global memory: floats from 0 on are ordered as their bits are --
    CLARY_DEVICE static void raise(float* at, float x) {
        atomicMax(reinterpret_cast<int*>(at), numerics::bit_cast<int>(x));
    }

    // -- math --
    CLARY_DEVICE static float exp2(float x) { return __builtin_exp2f(x); }
    CLARY_DEVICE static float log2(float x) { return __log2f(x); }
    CLARY_DEVICE static float rcp(float x) { return __builtin_mxc_rcpf(x); }
    CLARY_DEVICE static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
    CLARY_DEVICE static float max(float a, float b) { return a > b || a != a ? a : b; }

  private:
    using V4i = __NATIVE_VECTOR__(4, int32_t);
    using V2u = __NATIVE_VECTOR__(2, uint32_t);
    using V4f = __NATIVE_VECTOR__(4, float);
    using V2f = __NATIVE_VECTOR__(2, float);

    // Two words in the order (second, first): the low halves of both, the high halves.
    static constexpr uint32_t kLowHalves = 0x05040100, kHighHalves = 0x07060302;

    template <class A, class B>
    struct Same {
        static constexpr bool value = false;
    };
    template <class A>
    struct Same<A, A> {
        static constexpr bool value = true;
    };
    template <class A, class B>
    static constexpr bool is_same = Same<A, B>::value;

    template <class Vector, class Number>
    CLARY_DEVICE static void put(const Vector& from, Fragment<Number, 4>& d) {
        for (int i = 0; i < 4; ++i) d[i] = from[i];
    }
    template <int kLow>
    CLARY_DEVICE static uint32_t whole(float x) {
        const int i = __float2int_rn(x);
        return static_cast<uint32_t>(i < kLow ? kLow : i > kLow + 255 ? kLow + 255 : i);
    }
    CLARY_DEVICE static float in_e4m3(float x) { return x > 448.0f ? 448.0f : x < -448.0f ? -448.0f : x; }  // NaN stays

    template <int kRegisters, class Atom, class TileType>
    CLARY_DEVICE static Fragment<uint32_t, kRegisters> load_run(TileType tile, gpu::Coord first, int row, int depth) {
        constexpr int kRun = Atom::kRun;  // elements of a register
        const SharedAddress from = tile.at(row + first.row, (depth + first.col) * 4 / kRun);
        return load<Fragment<uint32_t, kRegisters>>(from);
    }

    // Of the tile's rows row .. row + 3 the column that is the lane's among 16.
    template <class TileType>
    CLARY_DEVICE static Fragment<uint32_t, 2> transposed(TileType tile, int row, int column) {
        const int mine = lane() % 16;
        if constexpr (kIsXcore1500) {
            const SharedAddress from = tile.at(row + mine / 4, (column + mine % 4 * 4) * 2);
            return numerics::bit_cast<Fragment<uint32_t, 2>>(
                __builtin_mxc_load_shared_trans_4x16_i64(shared_pointer<int64_t>(from.byte)));
        } else {
            // Of a pair of lanes, which has two neighbouring columns, the even one reads rows 0 and 1 of both and the odd
            // one 3 and 2 (in that order the wave's reads meet no bank more often than they must). Then they exchange
            // what is the other's.
            const bool odd = mine % 2 != 0;
            const int byte = (column + mine / 2 * 2) * 2;
            const uint32_t a = load<uint32_t>(tile.at(row + (odd ? 3 : 0), byte));
            const uint32_t b = load<uint32_t>(tile.at(row + (odd ? 2 : 1), byte));
            const uint32_t first = odd ? b : a, second = odd ? a : b;
            const uint32_t low = __builtin_mxc_byte_perm(second, first, kLowHalves);    // the even column
            const uint32_t high = __builtin_mxc_byte_perm(second, first, kHighHalves);  // the odd one
            const uint32_t other = __builtin_mxc_mov_raw_shfl(odd ? low : high, 0x0b1, 0xf, 0xf, false);
            return {{odd ? other : low, odd ? high : other}};
        }
    }
};

}  // namespace clary::maca
