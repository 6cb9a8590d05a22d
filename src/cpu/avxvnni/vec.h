// SPDX-License-Identifier: Apache-2.0
// The AVX-VNNI tier's vectors: the AVX2 tier's, with u8 x s8 dot products of 4 by VPDPBUSD (processors without AVX-512).
#pragma once

#include "cpu/avx2/vec.h"
#include "cpu/byte_dot.h"

namespace clary::cpu::avxvnni {

struct Vec : avx2::VecOf<Vec>, ByteDot {
    static constexpr const char* kName = "avxvnni";

    // -- dot products: lanes hold kDot elements of one query, rows are broadcast --
    using ByteDot::code_word;
    using ByteDot::kCodeBias;
    using ByteDot::kDot;
    using ByteDot::kRowScratch;
    using ByteDot::kWeightParts;
    using ByteDot::row_operand;
    using ByteDot::weight_operands;
    static I dot(I sum, I lanes, I row) {
        // (Not the intrinsic: as in the AVX-512 tier.)
        asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(lanes), "x"(row));
        return sum;
    }
    static I dot16(I sum, I a, I b) {  // s16 x s16, pairs
        asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        return sum;
    }
    // P of four tokens to one step of lane operands: bytes in token order, saturated to 0..255.
    static void store_p(int32_t* to, int64_t, I p0, I p1, I p2, I p3) { store(to, by_lane(p_bytes(p0, p1, p2, p3))); }
    // P of 16 tokens of each part's query, four a vector, to operands in the order of V's positions.
    static void store_p_run(int32_t* to, int64_t, I p0, I p1, I p2, I p3) {
        const I order =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
        store(to, _mm256_shuffle_epi8(p_bytes(p0, p1, p2, p3), order));
    }

  private:
    // In each part the four bytes of a vector follow those of the one before it.
    static I p_bytes(I p0, I p1, I p2, I p3) {
        return _mm256_packus_epi16(_mm256_packus_epi32(p0, p1), _mm256_packus_epi32(p2, p3));
    }
};

}  // namespace clary::cpu::avxvnni
