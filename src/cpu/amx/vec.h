// SPDX-License-Identifier: Apache-2.0
// The AMX tier's vectors: those of AVX-512, for codes that stay signed (TDPBSSD has no unsigned operand here).
#pragma once

#include "cpu/avx512/vec.h"

namespace clary::cpu::amx {

struct Vec : avx512::Vec {
    static constexpr const char* kName = "amx";
    static constexpr int32_t kCodeBias = 0;
    static int32_t code_word(const int8_t* codes) {
        int32_t word;
        std::memcpy(&word, codes, 4);
        return word;
    }
};

}  // namespace clary::cpu::amx
