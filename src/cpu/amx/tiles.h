// SPDX-License-Identifier: Apache-2.0
// AMX's tile registers, all of 16 rows of 64 bytes. A product adds A (16 rows x 64 bytes: 64 codes of a key or of a channel, or 32
// bf16 of one) times B (16 words of as many x 16 lanes) to C (16 rows x 16 lanes of 4 bytes), in 16 cycles, and is done 52 cycles
// after it began. Rows meet 32 lanes here, so C and B are pairs:
//
//     tmm0, 1 and tmm2, 3   C, two of them: one is multiplied while the other is stored
//     tmm4                  A
//     tmm5, 6               B of the first step, held while rows go by
//     tmm7                  B of other steps, half by half
//
// In assembly, because GCC 12's intrinsics do not say that they read and write memory.
#pragma once

#include <cstdint>

namespace clary::cpu::amx {

struct Tiles {
    static constexpr int kRows = 16, kStepBytes = 64, kLanes = 32;
    static constexpr int64_t kLaneBytes = kLanes * 4;  // of a row of B or C in memory
    static constexpr int kBlock = kRows * kLanes;      // words of a step of B, or of C

    // From here to the end of its life this thread's tile registers are configured.
    Tiles() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int i = 0; i < 8; ++i) config.row_bytes[i] = kStepBytes, config.rows[i] = kRows;
        asm volatile("ldtilecfg %0" ::"m"(config));
        // Products into a register that was only cleared, never loaded, take three times as long.
        alignas(64) static constexpr int32_t kZeros[kRows * kLanes / 2] = {};
        asm volatile(".irp i, 0, 1, 2, 3, 4, 5, 6, 7\n tileloadd (%0,%1,1), %%tmm\\i\n .endr" ::"r"(kZeros),
                     "r"(int64_t{kStepBytes})
                     : "memory");
    }
    ~Tiles() { asm volatile("tilerelease"); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    // B of the first step, [16][kLanes] words.
    [[gnu::always_inline]] static void hold(const int32_t* b) {
        asm volatile("tileloadd (%0,%2,1), %%tmm5\n tileloadd (%1,%2,1), %%tmm6" ::"r"(b), "r"(b + kLanes / 2),
                     "r"(kLaneBytes)
                     : "memory");
    }

    // C number c = A B over `steps`; rows of A lie `stride` bytes apart. b: as given to hold(), and the steps behind it.
#define CLARY_TILE_PRODUCTS_INTO(name, product, c0, c1)                                                            \
    [[gnu::always_inline]] static void name(const void* a, int64_t stride, const int32_t* b, int steps) {          \
        asm volatile("tilezero %%" c0 "\n tilezero %%" c1 "\n tileloadd (%0,%1,1), %%tmm4\n" product               \
                     " %%tmm5, %%tmm4, %%" c0 "\n" product " %%tmm6, %%tmm4, %%" c1 ::"r"(a),                      \
                     "r"(stride)                                                                                   \
                     : "memory");                                                                                  \
        for (int step = 1; step < steps; ++step)                                                                   \
            asm volatile("tileloadd (%0,%1,1), %%tmm4\n tileloadd (%2,%4,1), %%tmm7\n" product                     \
                         " %%tmm7, %%tmm4, %%" c0 "\n tileloadd (%3,%4,1), %%tmm7\n" product                       \
                         " %%tmm7, %%tmm4, %%" c1 ::"r"(static_cast<const char*>(a) + step * kStepBytes),          \
                         "r"(stride), "r"(b + step * kBlock), "r"(b + step * kBlock + kLanes / 2), "r"(kLaneBytes) \
                         : "memory");                                                                              \
    }
#define CLARY_TILE_PRODUCTS(name, product)                                                                       \
    CLARY_TILE_PRODUCTS_INTO(name##_0, product, "tmm0", "tmm1")                                                  \
    CLARY_TILE_PRODUCTS_INTO(name##_1, product, "tmm2", "tmm3")                                                  \
    [[gnu::always_inline]] static void name(int c, const void* a, int64_t stride, const int32_t* b, int steps) { \
        c ? name##_1(a, stride, b, steps) : name##_0(a, stride, b, steps);                                       \
    }
    CLARY_TILE_PRODUCTS(multiply_s8_s8, "tdpbssd")
    CLARY_TILE_PRODUCTS(multiply_s8_u8, "tdpbsud")
    CLARY_TILE_PRODUCTS(multiply_bf16, "tdpbf16ps")
#undef CLARY_TILE_PRODUCTS
#undef CLARY_TILE_PRODUCTS_INTO

    // C number c to [16][kLanes] words.
    [[gnu::always_inline]] static void store(int c, int32_t* to) {
        if (c)
            asm volatile("tilestored %%tmm2, (%0,%2,1)\n tilestored %%tmm3, (%1,%2,1)" ::"r"(to), "r"(to + kLanes / 2),
                         "r"(kLaneBytes)
                         : "memory");
        else
            asm volatile("tilestored %%tmm0, (%0,%2,1)\n tilestored %%tmm1, (%1,%2,1)" ::"r"(to), "r"(to + kLanes / 2),
                         "r"(kLaneBytes)
                         : "memory");
    }
};

// Products in the order of their beginning. Each goes to the C that the one before it does not use, and leaves it in a later round,
// when it is surely done.
class TileQueue {
  public:
    // Rounds from a product to the use of what it stored: a load waits until the store has left the processor's queue.
    static constexpr int kLead = 3;

    // The number of the C for the next product, whose sums go to `to`.
    [[gnu::always_inline]] int begin(int32_t* to) {
        const int c = count_++ % 2;
        store(c);
        to_[c] = to, round_[c] = now_;
        return c;
    }
    [[gnu::always_inline]] void end_round() {
        for (int c = 0; c < 2; ++c)
            if (round_[c] < now_) store(c);
        ++now_;
    }
    void store_all() { store(0), store(1); }

  private:
    [[gnu::always_inline]] void store(int c) {
        if (!to_[c]) return;
        Tiles::store(c, to_[c]);
        to_[c] = nullptr;
    }
    int32_t* to_[2] = {};
    int round_[2] = {};
    int now_ = 0, count_ = 0;
};

}  // namespace clary::cpu::amx
