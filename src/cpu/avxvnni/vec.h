// SPDX-License-Identifier: Apache-2.0
// The AVX-VNNI tier's vectors: the AVX2 tier's, with u8 x s8 dot products of 4 by VPDPBUSD (processors without AVX-512).
#pragma once

#include "cpu/avx2/vec.h"
#include "cpu/byte_dot.h"

namespace clary::cpu::avxvnni {

struct Vec : avx2::VecOf<Vec>, ByteDot<Vec> {
    static constexpr const char* kName = "avxvnni";

    // -- dot products: lanes hold kDot elements of one query, rows are broadcast --
    using ByteDot<Vec>::kDot;
    using ByteDot<Vec>::kCodeBias;
    using ByteDot<Vec>::kRowScratch;
    using ByteDot<Vec>::spread_codes;
    using ByteDot<Vec>::row_operand;
    using ByteDot<Vec>::weigh;
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
    static void store_p(int32_t* to, int64_t, I p0, I p1, I p2, I p3) {
        store(to, by_lane(_mm256_packus_epi16(_mm256_packus_epi32(p0, p1), _mm256_packus_epi32(p2, p3))));
    }
};

}  // namespace clary::cpu::avxvnni
