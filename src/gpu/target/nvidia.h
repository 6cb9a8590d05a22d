// SPDX-License-Identifier: Apache-2.0
// The Target of NVIDIA chips: mma.sync, ldmatrix, cp.async (sm80 and later). The only file of src/gpu with PTX in it.
// Meanings of the members: target.h. PTX: "Matrix fragments for mma.m16n8k*", "ldmatrix", "cp.async" of the PTX ISA.
#pragma once

#include "gpu/target/atoms.h"
#include "gpu/target/machines.h"
#include "gpu/target/target.h"
#include "gpu/target/tile.h"
#include "numerics/formats.h"

// The 16 x 8 products take 4 registers of queries, 2 of others and 4 results, whatever the elements.
#define CLARY_MMA_M16N8K32(instruction, result)                                                 \
    asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : result(d[0]), result(d[1]), result(d[2]), result(d[3])                       \
                 : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]), "r"(o[0]), "r"(o[1]))
#define CLARY_MMA_M16N8K32_F16(instruction)                                     \
    asm volatile(instruction " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" \
                 : "+r"(d[0]), "+r"(d[1])                                       \
                 : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]), "r"(o[0]), "r"(o[1]))
#define CLARY_MMA_M8N8K16(instruction) \
    asm volatile(instruction " {%0, %1}, {%2}, {%3}, {%0, %1};" : "+r"(d[0]), "+r"(d[1]) : "r"(q[0]), "r"(o[0]))

namespace clary::gpu {

// Dynamic shared memory of the block; a SharedAddress counts from here.
extern __shared__ __align__(1024) unsigned char clary_shared_memory[];

template <Machine kMachine>
struct Nvidia {
    static constexpr Machine kChip = kMachine;
    static constexpr int kLanes = 32;
    static constexpr uint32_t kSharedBytes = kMachine.shared_bytes;
    static constexpr bool kAsyncCopies = kMachine.async_copies;

    // -- geometry --
    CLARY_DEVICE static int lane() { return static_cast<int>(threadIdx.x % kLanes); }
    CLARY_DEVICE static int wave() { return static_cast<int>(threadIdx.x / kLanes); }
    CLARY_DEVICE static int waves() { return static_cast<int>(blockDim.x) / kLanes; }
    CLARY_DEVICE static int block(int axis) {
        return static_cast<int>(axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : blockIdx.z);
    }
    CLARY_DEVICE static int slot() {
        int warp;
        asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
        return warp / waves();
    }

    // -- shared memory --
    template <typename V>
    CLARY_DEVICE static V load(SharedAddress from) {
        return *reinterpret_cast<const V*>(clary_shared_memory + from.byte);
    }
    template <typename V>
    CLARY_DEVICE static void store(SharedAddress to, V value) {
        *reinterpret_cast<V*>(clary_shared_memory + to.byte) = value;
    }

    // -- asynchronous copies --
    CLARY_DEVICE static void copy16(SharedAddress to, const void* from, bool valid, bool active = true) {
        if (!active) return;
        if constexpr (kAsyncCopies) {
            const int bytes = valid ? 16 : 0;  // the rest of the 16 is zero-filled
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to)), "l"(from), "r"(bytes)
                         : "memory");
        } else {
            store(to, valid ? *static_cast<const Bytes16*>(from) : Bytes16{});
        }
    }
    CLARY_DEVICE static void commit() {
        if constexpr (kAsyncCopies) asm volatile("cp.async.commit_group;" ::: "memory");
    }
    template <int kYounger, int kCopies>
    CLARY_DEVICE static void wait() {
        if constexpr (kAsyncCopies) asm volatile("cp.async.wait_group %0;" ::"n"(kYounger) : "memory");
    }

    // -- sync and collectives --
    CLARY_DEVICE static void block_sync() { __syncthreads(); }
    CLARY_DEVICE static void wave_sync() { __syncwarp(); }
    // Before sm90 kernels follow each other.
    CLARY_DEVICE static void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    }
    CLARY_DEVICE static void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    }
    template <typename X>
    CLARY_DEVICE static X shuffle_xor(X x, int mask) {
        return __shfl_xor_sync(0xffffffffu, x, mask);
    }
    CLARY_DEVICE static bool any(bool predicate) { return __any_sync(0xffffffffu, predicate) != 0; }
    CLARY_DEVICE static float row_max(float x) {
        x = max(x, shuffle_xor(x, 1));
        return max(x, shuffle_xor(x, 2));
    }
    template <typename X>
    CLARY_DEVICE static X row_sum(X x) {
        x += shuffle_xor(x, 1);
        return x + shuffle_xor(x, 2);
    }

    // -- operands: ldmatrix brings 8 rows of 16 bytes per register, a lane's 4 bytes being what the atoms' tables say.
    // Addresses are the tile's and a lane's part, the same for all tiles, moved by what are mostly constants --
    template <class Atom, class TileType>
    CLARY_DEVICE static Fragment<uint32_t, kQueryRegisters<Atom>> load_query(TileType tile, int row, int depth) {
        constexpr int kHalves = Atom::kQueries / 8;
        const int matrix = lane() / 8 % kQueryRegisters<Atom>;
        const SharedAddress part = TileType{}.at(matrix % kHalves * 8 + lane() % 8, matrix / kHalves * 16);
        return load_matrices<kQueryRegisters<Atom>>(tile.base +
                                                    TileType::move(part, row, depth_byte<Atom>(depth)).byte);
    }
    // kCount atoms: others row, row + 8, ...
    template <class Atom, int kCount = 1, class TileType>
    CLARY_DEVICE static Fragment<uint32_t, kCount * kOtherRegisters<Atom>> load_other(TileType tile, int row,
                                                                                      int depth) {
        constexpr int kRegisters = kOtherRegisters<Atom>;
        const int matrix = lane() / 8 % (kCount * kRegisters);
        const SharedAddress part = TileType{}.at(matrix / kRegisters * 8 + lane() % 8, matrix % kRegisters * 16);
        return load_matrices<kCount * kRegisters>(tile.base + TileType::move(part, row, depth_byte<Atom>(depth)).byte);
    }
    // The tile's rows are depths, its columns others, of 16 bits.
    template <class Atom, int kCount = 1, class TileType>
    CLARY_DEVICE static Fragment<uint32_t, kCount * kOtherRegisters<Atom>> load_other_transposed(TileType tile,
                                                                                                 int depth, int other) {
        static_assert(element_bits(Atom::kOther) == 16);
        constexpr int kRegisters = kOtherRegisters<Atom>;
        const int matrix = lane() / 8 % (kCount * kRegisters);
        const SharedAddress part = TileType{}.at(matrix % kRegisters * 8 + lane() % 8, matrix / kRegisters * 16);
        return load_matrices<kCount * kRegisters, true>(tile.base + TileType::move(part, depth, other * 2).byte);
    }
    CLARY_DEVICE static int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
        return static_cast<int32_t>(__dp4a(a, b, static_cast<uint32_t>(c)));
    }

    // -- products --
    template <class Atom>
    using Query = Fragment<uint32_t, kQueryRegisters<Atom>>;
    template <class Atom>
    using Other = Fragment<uint32_t, kOtherRegisters<Atom>>;
    template <class Atom>
    CLARY_DEVICE static void mma(const Query<Atom>& q, const Other<Atom>& o, Fragment<int32_t, Atom::kResults>& d) {
        if constexpr (is_same<Atom, MmaM16N8K32S8>)
            CLARY_MMA_M16N8K32("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "+r");
        else if constexpr (is_same<Atom, MmaM16N8K32U8S8>)
            CLARY_MMA_M16N8K32("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32", "+r");
        else if constexpr (is_same<Atom, MmaM16N8K64S4>)
            CLARY_MMA_M16N8K32("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32", "+r");
        else if constexpr (is_same<Atom, MmaM8N8K16S8>)
            CLARY_MMA_M8N8K16("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32");
        else if constexpr (is_same<Atom, MmaM8N8K16U8S8>)
            CLARY_MMA_M8N8K16("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32");
        else
            static_assert(!sizeof(Atom), "no such integer product on this chip");
    }
    template <class Atom>
    CLARY_DEVICE static void mma(const Query<Atom>& q, const Other<Atom>& o, Fragment<float, Atom::kResults>& d) {
        if constexpr (is_same<Atom, MmaM16N8K16F16>)
            CLARY_MMA_M16N8K32("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "+f");
        else if constexpr (is_same<Atom, MmaM16N8K16Bf16>)
            CLARY_MMA_M16N8K32("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
        else if constexpr (is_same<Atom, MmaM16N8K32E4m3>)
            CLARY_MMA_M16N8K32("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "+f");
        else if constexpr (is_same<Atom, MmaM16N8K8F16>)
            asm volatile(
                "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(q[0]), "r"(q[1]), "r"(o[0]));
        else
            static_assert(!sizeof(Atom), "no such float product on this chip");
    }
    // Results of fp16.
    template <class Atom>
    CLARY_DEVICE static void mma(const Query<Atom>& q, const Other<Atom>& o,
                                 Fragment<uint32_t, kResultRegisters<Atom>>& d) {
        if constexpr (is_same<Atom, MmaM16N8K16F16F16>)
            CLARY_MMA_M16N8K32_F16("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16");
        else if constexpr (is_same<Atom, MmaM16N8K32E4m3F16>)
            CLARY_MMA_M16N8K32_F16("mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16");
        else if constexpr (is_same<Atom, MmaM16N8K8F16F16>)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
                         : "+r"(d[0]), "+r"(d[1])
                         : "r"(q[0]), "r"(q[1]), "r"(o[0]));
        else
            static_assert(!sizeof(Atom), "no such product with fp16 results on this chip");
    }

    // -- conversion --
    template <Element kTo>
    CLARY_DEVICE static uint32_t pack4(float a, float b, float c, float d) {
        uint32_t word = 0;
        if constexpr (kTo == Element::kU8) {
            asm("{.reg .b32 h; cvt.pack.sat.u8.s32.b32 h, %4, %3, 0; cvt.pack.sat.u8.s32.b32 %0, %2, %1, h;}"
                : "=r"(word)
                : "r"(__float2int_rn(a)), "r"(__float2int_rn(b)), "r"(__float2int_rn(c)), "r"(__float2int_rn(d)));
        } else if constexpr (kTo == Element::kS8) {
            asm("{.reg .b32 h; cvt.pack.sat.s8.s32.b32 h, %4, %3, 0; cvt.pack.sat.s8.s32.b32 %0, %2, %1, h;}"
                : "=r"(word)
                : "r"(__float2int_rn(a)), "r"(__float2int_rn(b)), "r"(__float2int_rn(c)), "r"(__float2int_rn(d)));
        } else if constexpr (!kMachine.fp8) {
            word = e4m3_bits(a) | e4m3_bits(b) << 8 | e4m3_bits(c) << 16 | e4m3_bits(d) << 24;
        } else {
            static_assert(kTo == Element::kE4m3);
            asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; "
                "mov.b32 %0, {l, h};}"
                : "=r"(word)
                : "f"(a), "f"(b), "f"(c), "f"(d));
        }
        return word;
    }
    template <Element kFrom>
    CLARY_DEVICE static float unpack4(uint32_t word, int i) {
        static_assert(kFrom == Element::kE4m3 && kMachine.fp8);
        uint32_t halves;  // every e4m3 is an fp16
        if (i < 2)
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(halves) : "r"(word));
        else
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(halves) : "r"(word));
        return unpack2<Element::kF16>(halves, i % 2);
    }
    template <Element kTo>
    CLARY_DEVICE static uint32_t pack2(float a, float b) {
        uint32_t word = 0;
        if constexpr (kTo == Element::kBf16 && kAsyncCopies)
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
        else if constexpr (kTo == Element::kBf16)
            word = numerics::Bf16::from_float(a).bits | static_cast<uint32_t>(numerics::Bf16::from_float(b).bits) << 16;
        else
            asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
                : "=r"(word)
                : "f"(a), "f"(b));
        return word;
    }
    template <Element kFrom>
    CLARY_DEVICE static float unpack2(uint32_t word, int i) {
        if constexpr (kFrom == Element::kBf16) return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000u);
        float x;
        if (i == 0)
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(x) : "r"(word));
        else
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(word));
        return x;
    }

    CLARY_DEVICE static uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
    }

    // -- global memory: floats from 0 on are ordered as their bits are --
    CLARY_DEVICE static void raise(float* at, float x) { atomicMax(reinterpret_cast<int*>(at), __float_as_int(x)); }

    // -- math: ex2.approx and rcp.approx have a relative error of at most 2^-22 and 2^-23 --
    CLARY_DEVICE static float exp2(float x) {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    CLARY_DEVICE static float log2(float x) {
        float y;
        asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    CLARY_DEVICE static float rcp(float x) {
        float y;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    CLARY_DEVICE static float fma(float a, float b, float c) { return fmaf(a, b, c); }
    CLARY_DEVICE static float max(float a, float b) {
        if constexpr (!kAsyncCopies) return a > b || a != a ? a : b;  // before sm80
        float y;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
        return y;
    }

  private:
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

    CLARY_DEVICE static uint32_t e4m3_bits(float x) { return numerics::E4m3::from_float(x).bits; }
    CLARY_DEVICE static uint32_t address(SharedAddress at) {
        return static_cast<uint32_t>(__cvta_generic_to_shared(clary_shared_memory)) + at.byte;
    }
    template <class Atom>
    CLARY_DEVICE static int depth_byte(int depth) {
        return depth * element_bits(Atom::kQuery) / 8;
    }
    // Lanes 8i .. 8i + 7 give the row addresses of matrix i.
    template <int kCount, bool kTransposed = false>
    CLARY_DEVICE static Fragment<uint32_t, kCount> load_matrices(SharedAddress row) {
        Fragment<uint32_t, kCount> f;
        if constexpr (kCount == 4 && kTransposed)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                         : "r"(address(row))
                         : "memory");
        else if constexpr (kCount == 4)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                         : "r"(address(row))
                         : "memory");
        else if constexpr (kCount == 2 && kTransposed)
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                         : "=r"(f[0]), "=r"(f[1])
                         : "r"(address(row))
                         : "memory");
        else if constexpr (kCount == 2)
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                         : "=r"(f[0]), "=r"(f[1])
                         : "r"(address(row))
                         : "memory");
        else if constexpr (kTransposed)
            asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                         : "=r"(f[0])
                         : "r"(address(row))
                         : "memory");
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                         : "=r"(f[0])
                         : "r"(address(row))
                         : "memory");
        return f;
    }
};

}  // namespace clary::gpu

#undef CLARY_MMA_M16N8K32
#undef CLARY_MMA_M16N8K32_F16
#undef CLARY_MMA_M8N8K16
