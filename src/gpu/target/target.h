// SPDX-License-Identifier: Apache-2.0
// The seam between kernels and machines. A kernel is a template over a Target and sees the machine through it alone:
// no PTX, no vendor builtin, no raw pointer into shared memory in a kernel file. So the same source runs on NVIDIA
// (mma.sync: sm75, sm80, sm89), on MetaX (xcore1000, xcore1500) and, one fiber per lane, on the host simulator.
//
// A Target T is a struct of static members:
//
//   geometry      kChip                      its Machine (machines.h)
//                 kLanes                     lanes of a wave (NVIDIA: warp): 32, MetaX 64
//                 kSharedBytes               shared memory that a block may use
//                 lane() wave() waves()      of the calling thread; waves() in its block
//                 block(axis)                index of the block, axis 0..2
//                 slot()                     of the calling wave's block among those that its multiprocessor runs now; a hint
//                                            that may change: ask once
//   shared        load<V>(address)           V: a trivially copyable type of 1, 2, 4, 8 or 16 bytes, aligned to its size
//                 store(address, v)
//   async copy    copy16(to, from, valid, active)  16 bytes from global to shared memory; zeros where !valid (from is
//                                            not read); nothing by lanes that are not active.
//                                            Called by all lanes of a wave together; see CopyTile in tile.h, which also
//                                            keeps MetaX's rule that a wave writes 16 * kLanes consecutive bytes.
//                 commit()                   closes a group of copies of this wave
//                 wait<younger, copies>()    until all but the `younger` youngest groups have landed, each of `copies`
//                                            copy16 calls. Other waves see them after a block_sync().
//   sync          block_sync() wave_sync()
//                 let_next_start()           the next kernel of the stream may start, where it was launched so
//                 wait_for_previous()        until the kernel before has ended, and its writes are seen: nothing of it may
//                                            be read before, and no block may end without
//   collectives   shuffle_xor(x, mask)       x of lane ^ mask; 32-bit types
//                 any(predicate)             over the wave
//   fragments     row_max(x) row_sum(x)      over the lanes that hold parts of the same query of an atom's result
//   products      Product<kChip, ...>        (products.h) the atom of given elements: mma<Atom>(query, other, result);
//                                            results of fp16 lie two to a register, as unpack2 takes them
//                 load_query<Atom>(tile, row, depth), load_other<Atom, n>(...): operand fragments from shared tiles, of
//                 n atoms with consecutive others; load_other_transposed: from a 16-bit tile with depth down its rows
//                 dot4(a, b, c)              c + the sum of products of 4 unsigned bytes
//   conversion    pack4<kU8 | kS8 | kE4m3>(a, b, c, d)   4 floats in a register: to the nearest (ties to even), saturating
//                 unpack4<kE4m3>(word, i)    element i back
//                 pack2<kF16 | kBf16>(a, b)  2 floats in a register; unpack2<...>(word, i) back
//                 low_bytes(a, b, c, d)      the low byte of each in a register
//   global        raise(at, x)               *at = max(*at, x) for x >= 0, in one step among all blocks
//   math          log2(x)                    absolute error <= 2^-21 for x within 1/16 .. 16
//                 exp2(x) rcp(x)             fast, relative error <= 2^-21; exp2(-inf) = 0
//                 fma(a, b, c); max(a, b): NaN where one is, as row_max
//
// Everything that masks, scales or stores asks the atom's tables which query and key (or channel) a lane's register
// holds; nothing assumes a layout.
#pragma once

#include <cstdint>
#include <utility>

#include "numerics/host_device.h"

// Code of kernels: device functions under nvcc and mxcc, plain functions in the simulator.
#if defined(__CUDACC__) || defined(__MACACC__)
#define CLARY_DEVICE __device__ __forceinline__
#define CLARY_UNROLL _Pragma("unroll")
#define CLARY_NO_UNROLL _Pragma("unroll 1")
#else
#define CLARY_DEVICE inline
#define CLARY_UNROLL  // g++ does not know the pragma
#define CLARY_NO_UNROLL
#endif

namespace clary::gpu {

// A byte offset into the block's shared memory. Not a pointer: only a Target can follow it.
struct SharedAddress {
    uint32_t byte = 0;

    CLARY_HD constexpr SharedAddress operator+(uint32_t bytes) const { return {byte + bytes}; }
};

// N registers of one lane.
template <typename T, int N>
struct Fragment {
    static constexpr int kSize = N;
    T r[N];

    CLARY_HD constexpr T& operator[](int i) { return r[i]; }
    CLARY_HD constexpr const T& operator[](int i) const { return r[i]; }
    CLARY_HD constexpr void fill(T value) {
        for (int i = 0; i < N; ++i) r[i] = value;
    }
};

// Registers [part * N, ...) of a fragment that holds several.
template <int N, typename T, int M>
CLARY_HD constexpr Fragment<T, N> part_of(const Fragment<T, M>& fragment, int part) {
    Fragment<T, N> result{};
    for (int i = 0; i < N; ++i) result[i] = fragment[part * N + i];
    return result;
}

// static_for<A, B, ..>(f): f(a, b, ..) for all 0 <= a < A, 0 <= b < B, .., each index a constant of a type of its own, so
// that it can stand in a constant expression and registers are chosen when the kernel is compiled.
template <int I>
struct Index {
    CLARY_HD constexpr operator int() const { return I; }
};
namespace detail {
template <int A, int B, int C, int... I, class F>
CLARY_DEVICE void static_for_all(std::integer_sequence<int, I...>, F&& f) {
    if constexpr (B == 0)
        (f(Index<I>{}), ...);
    else if constexpr (C == 0)
        (f(Index<I / B>{}, Index<I % B>{}), ...);
    else
        (f(Index<I / C / B>{}, Index<I / C % B>{}, Index<I % C>{}), ...);
}
}  // namespace detail
template <int A, int B = 0, int C = 0, class F>
CLARY_DEVICE void static_for(F&& f) {
    constexpr int kCount = A * (B == 0 ? 1 : B) * (C == 0 ? 1 : C);
    detail::static_for_all<A, B, C>(std::make_integer_sequence<int, kCount>{}, f);
}

struct alignas(16) Bytes16 {
    uint32_t word[4];
};

}  // namespace clary::gpu
