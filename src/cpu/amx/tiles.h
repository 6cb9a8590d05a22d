// SPDX-License-Identifier: Apache-2.0
// AMX's tile registers, all of 16 rows of 64 bytes. A product adds A (16 rows x 64 bytes) times B (16 steps of 4 bytes x 16
// lanes) to C (16 rows x 16 lanes), in 16 cycles whatever the operands; four of them, of two A and two B, use every load
// twice and all eight registers:
//
//                        B0 (lanes 0..15)   B1 (lanes 16..31)
//     A0 (rows 0..15)    C 0                C 1
//     A1 (rows 16..31)   C 2                C 3
//
// In assembly, because GCC 12's intrinsics do not say that they read and write memory.
#pragma once

#include <cstdint>

namespace clary::cpu::amx {

struct Tiles {
    static constexpr int kRows = 16, kRowBytes = 64, kLanes = 16;

    // From here to the end of its life this thread's tile registers are configured.
    Tiles() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int i = 0; i < 8; ++i) config.row_bytes[i] = kRowBytes, config.rows[i] = kRows;
        asm volatile("ldtilecfg %0" ::"m"(config));
        alignas(64) static const char zeros[1024] = {};
        const int64_t stride = 64;
        asm volatile("tileloadd (%0,%1,1), %%tmm0\ntileloadd (%0,%1,1), %%tmm1\ntileloadd (%0,%1,1), %%tmm2\ntileloadd (%0,%1,1), %%tmm3\ntileloadd (%0,%1,1), %%tmm4\ntileloadd (%0,%1,1), %%tmm5\ntileloadd (%0,%1,1), %%tmm6\ntileloadd (%0,%1,1), %%tmm7" ::"r"(zeros), "r"(stride) : "memory");
    }
    ~Tiles() { asm volatile("tilerelease"); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    static void clear() {
        asm volatile("tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3" :::);
    }
    // Strides in bytes. kBoth: rows 16..31 too.
    template <bool kBoth>
    [[gnu::always_inline]] static void load(const void* a, int64_t a_stride, const void* b, int64_t b_stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm6\n tileloadd (%2,%1,1), %%tmm7" ::"r"(b), "r"(b_stride),
                     "r"(static_cast<const char*>(b) + kRowBytes)
                     : "memory");
        asm volatile("tileloadd (%0,%1,1), %%tmm4" ::"r"(a), "r"(a_stride) : "memory");
        if constexpr (kBoth)
            asm volatile("tileloadd (%0,%1,1), %%tmm5" ::"r"(static_cast<const char*>(a) + kRows * a_stride), "r"(a_stride)
                         : "memory");
    }
    template <bool kBoth>
    [[gnu::always_inline]] static void multiply_s8_s8() {
        asm volatile("tdpbssd %%tmm6, %%tmm4, %%tmm0\n tdpbssd %%tmm7, %%tmm4, %%tmm1" :::);
        if constexpr (kBoth) asm volatile("tdpbssd %%tmm6, %%tmm5, %%tmm2\n tdpbssd %%tmm7, %%tmm5, %%tmm3" :::);
    }
    template <bool kBoth>
    [[gnu::always_inline]] static void multiply_s8_u8() {
        asm volatile("tdpbsud %%tmm6, %%tmm4, %%tmm0\n tdpbsud %%tmm7, %%tmm4, %%tmm1" :::);
        if constexpr (kBoth) asm volatile("tdpbsud %%tmm6, %%tmm5, %%tmm2\n tdpbsud %%tmm7, %%tmm5, %%tmm3" :::);
    }
    template <bool kBoth>
    [[gnu::always_inline]] static void multiply_bf16() {
        asm volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1" :::);
        if constexpr (kBoth) asm volatile("tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3" :::);
    }
    // C to [32 rows][32 lanes] of 4 bytes.
    template <bool kBoth>
    [[gnu::always_inline]] static void store(void* to) {
        char* const at = static_cast<char*>(to);
        const int64_t stride = 2 * kRowBytes;
        asm volatile("tilestored %%tmm0, (%0,%2,1)\n tilestored %%tmm1, (%1,%2,1)" ::"r"(at), "r"(at + kRowBytes), "r"(stride)
                     : "memory");
        if constexpr (kBoth)
            asm volatile("tilestored %%tmm2, (%0,%2,1)\n tilestored %%tmm3, (%1,%2,1)" ::"r"(at + kRows * stride),
                         "r"(at + kRows * stride + kRowBytes), "r"(stride)
                         : "memory");
    }
};

}  // namespace clary::cpu::amx
