// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup (sm_90a): D (64 rows x N) += A (64 x 32 bytes) B (N x 32 bytes), both with depth along the row; B of
// 16 bits with columns along the row. Asynchronous: D and A's registers belong to the product from fence() until a wait().
//
// Registers. Warp w of the group has rows 16 w ..; a lane (g = lane / 4, q = lane % 4) holds of D in register i row
// g + 8 (i / 2 % 2), column 8 (i / 4) + 2 q + i % 2; of A in registers 0..3 bytes 4 q ..+3 of row g, of row g + 8, and
// bytes 16 + 4 q ..+3 of the same. (PTX ISA, "wgmma".)
#pragma once

#include <cstdint>

#include "gpu/target/atoms.h"
#include "gpu/target/target.h"

namespace clary::cuda::ptx {

// A tile in shared memory whose rows have 128, 64 or 32 bytes, swizzled over as many (as TMA writes it), at a multiple of
// eight rows: a descriptor, high word a constant, low word sixteenths of the address, so that tiles and steps of depth (32
// bytes) are additions.
struct Matrix {
    uint32_t low, high;
    CLARY_DEVICE Matrix operator+(uint32_t bytes) const { return {low + bytes / 16, high}; }
    CLARY_DEVICE uint64_t descriptor() const { return uint64_t{high} << 32 | low; }
};
template <int kRowBytes>
CLARY_DEVICE Matrix matrix(uint32_t address) {
    static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32);
    constexpr uint32_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
    constexpr uint32_t kEightRows = 8 * kRowBytes / 16;
    return {1u << 16 | address >> 4, kSwizzle << 30 | kEightRows};
}

// A tile of kDepth rows of 64 columns of 16 bits, swizzled likewise, and behind it those of the next 64 columns.
template <int kDepth>
CLARY_DEVICE Matrix matrix_by_depth(uint32_t address) {
    constexpr uint32_t kNextColumns = kDepth * 128 / 16, kEightRows = 8 * 128 / 16;
    return {kNextColumns << 16 | address >> 4, 1u << 30 | kEightRows};
}

CLARY_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CLARY_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the `younger` youngest groups are done.
template <int younger>
CLARY_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(younger) : "memory");
}
// Code that uses the registers stays where it is, relative to fences and waits.
template <int N>
CLARY_DEVICE void pin(int32_t (&r)[N]) {
    CLARY_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(r[i])::"memory");
}
template <int N>
CLARY_DEVICE void pin(uint32_t (&r)[N]) {
    CLARY_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(r[i])::"memory");
}
template <int N>
CLARY_DEVICE void pin(float (&r)[N]) {
    CLARY_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

#define CLARY_TEXT_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define CLARY_TEXT_1 CLARY_TEXT_0 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CLARY_TEXT_2 CLARY_TEXT_1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define CLARY_TEXT_3 CLARY_TEXT_2 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CLARY_TEXT_1_SUM CLARY_TEXT_1 ",%32,%33,%34,%35"
#define CLARY_TEXT_2_SUM CLARY_TEXT_2 ",%48,%49,%50,%51"
#define CLARY_TEXT_3_SUM CLARY_TEXT_3 ",%64,%65,%66,%67"
#define CLARY_FOUR(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define CLARY_SIXTEEN(c, i) CLARY_FOUR(c, i), CLARY_FOUR(c, i + 4), CLARY_FOUR(c, i + 8), CLARY_FOUR(c, i + 12)
#define CLARY_OUT_0(c) CLARY_SIXTEEN(c, 0)
#define CLARY_OUT_1(c) CLARY_OUT_0(c), CLARY_SIXTEEN(c, 16)
#define CLARY_OUT_2(c) CLARY_OUT_1(c), CLARY_SIXTEEN(c, 32)
#define CLARY_OUT_3(c) CLARY_OUT_2(c), CLARY_SIXTEEN(c, 48)
#define CLARY_OUT_1_SUM(c) CLARY_OUT_1(c), CLARY_FOUR(c, 32)
#define CLARY_OUT_2_SUM(c) CLARY_OUT_2(c), CLARY_FOUR(c, 48)
#define CLARY_OUT_3_SUM(c) CLARY_OUT_3(c), CLARY_FOUR(c, 64)
#define CLARY_READ_WRITE(x) "+r"(x)
#define CLARY_WRITE(x) "=r"(x)
#define CLARY_ADD_FLOAT(x) "+f"(x)
#define CLARY_WRITE_FLOAT(x) "=f"(x)

// `adds`: to D. Else D begins at 0 and is only written: with a value before, ptxas would see ordinary code define
// accumulators between products, and make products wait for each other (C7515).
#define CLARY_WGMMA(part, n, types, a, b, ...)                                                                   \
    if constexpr (adds)                                                                                          \
        asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" #n "k32.s32." types \
                     " {" CLARY_TEXT_##part "}, " a ", " b ", p;}"                                               \
                     : CLARY_OUT_##part(CLARY_READ_WRITE)                                                        \
                     : __VA_ARGS__);                                                                             \
    else                                                                                                         \
        asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #n "k32.s32." types \
                     " {" CLARY_TEXT_##part "}, " a ", " b ", p;}"                                               \
                     : CLARY_OUT_##part(CLARY_WRITE)                                                             \
                     : __VA_ARGS__)

// S: A and B in shared memory; P V: A in registers; o..: the numbers of the operands behind D's.
#define CLARY_WGMMAS(part, n, o0, o1, o2, o3, o4)                                                              \
    template <bool adds>                                                                                       \
    CLARY_DEVICE void multiply_s8(int32_t(&d)[n / 2], Matrix a, Matrix b) {                                    \
        CLARY_WGMMA(part, n, "s8.s8", o0, o1, "l"(a.descriptor()), "l"(b.descriptor()));                       \
    }                                                                                                          \
    template <bool adds>                                                                                       \
    CLARY_DEVICE void multiply_u8(int32_t(&d)[n / 2], const uint32_t(&a)[4], Matrix b) {                       \
        CLARY_WGMMA(part, n, "u8.s8", "{" o0 ", " o1 ", " o2 ", " o3 "}", o4, "r"(a[0]), "r"(a[1]), "r"(a[2]), \
                    "r"(a[3]), "l"(b.descriptor()));                                                           \
    }
CLARY_WGMMAS(1, 64, "%32", "%33", "%34", "%35", "%36")
CLARY_WGMMAS(2, 96, "%48", "%49", "%50", "%51", "%52")
CLARY_WGMMAS(3, 128, "%64", "%65", "%66", "%67", "%68")
#undef CLARY_WGMMAS
#undef CLARY_WGMMA

// P V of FP8 (e4m3), and 8 columns more: `adds` as above. Sums within a product and with D keep some 14 bits.
#define CLARY_FP8_WGMMA(part, n, enable, constraint, o0, o1, o2, o3, o4)                                          \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " enable ", 0; wgmma.mma_async.sync.aligned.m64n" #n              \
                 "k32.f32.e4m3.e4m3 {" CLARY_TEXT_##part "}, {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 ", p, 1, 1;}" \
                 : CLARY_OUT_##part(constraint)                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()))
#define CLARY_FP8_WGMMAS(part, n, ...)                                                   \
    template <bool adds>                                                                 \
    CLARY_DEVICE void multiply_e4m3(float(&d)[n / 2], const uint32_t(&a)[4], Matrix b) { \
        if constexpr (adds)                                                              \
            CLARY_FP8_WGMMA(part, n, "1", CLARY_ADD_FLOAT, __VA_ARGS__);                 \
        else                                                                             \
            CLARY_FP8_WGMMA(part, n, "0", CLARY_WRITE_FLOAT, __VA_ARGS__);               \
    }
CLARY_FP8_WGMMAS(1_SUM, 72, "%36", "%37", "%38", "%39", "%40")
CLARY_FP8_WGMMAS(2_SUM, 104, "%52", "%53", "%54", "%55", "%56")
CLARY_FP8_WGMMAS(3_SUM, 136, "%68", "%69", "%70", "%71", "%72")
#undef CLARY_FP8_WGMMAS
#undef CLARY_FP8_WGMMA

// Two numbers to fp16; what is past its range becomes its largest number.
CLARY_DEVICE uint32_t pack_finite_f16(float a, float b) {
    uint32_t word;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
    return word;
}
// P V of 16 bits, added to D in fp32.
#define CLARY_WIDE_WGMMA(part, n, type, o0, o1, o2, o3, o4)                                                          \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
                 " {" CLARY_TEXT_##part "}, {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 ", p, 1, 1, 1;}"                  \
                 : CLARY_OUT_##part(CLARY_ADD_FLOAT)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()))
#define CLARY_WIDE_WGMMAS(part, n, ...)                                                  \
    template <gpu::Element kOf>                                                          \
    CLARY_DEVICE void multiply_wide(float(&d)[n / 2], const uint32_t(&a)[4], Matrix b) { \
        if constexpr (kOf == gpu::Element::kF16)                                         \
            CLARY_WIDE_WGMMA(part, n, "f16", __VA_ARGS__);                               \
        else                                                                             \
            CLARY_WIDE_WGMMA(part, n, "bf16", __VA_ARGS__);                              \
    }
CLARY_WIDE_WGMMAS(1, 64, "%32", "%33", "%34", "%35", "%36")
CLARY_WIDE_WGMMAS(2, 96, "%48", "%49", "%50", "%51", "%52")
CLARY_WIDE_WGMMAS(3, 128, "%64", "%65", "%66", "%67", "%68")
#undef CLARY_WIDE_WGMMAS
#undef CLARY_WIDE_WGMMA

}  // namespace clary::cuda::ptx
