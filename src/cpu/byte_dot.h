// SPDX-License-Identifier: Apache-2.0
// What tiers with a dot product of four bytes, u8 x s8, have in common: lanes hold four codes of a query, rows of codes are
// broadcast as they lie.
#pragma once

#include <cstdint>
#include <cstring>

namespace clary::cpu {

struct ByteDot {
    static constexpr int kDot = 4;             // bytes per lane and step
    static constexpr int32_t kCodeBias = 128;  // a query's code s is held as the byte s + 128
    // The next kDot codes of a query as an operand of its lane.
    static int32_t code_word(const int8_t* codes) {
        uint32_t word;
        std::memcpy(&word, codes, 4);
        return static_cast<int32_t>(word ^ 0x80808080u);
    }
    // Rows of codes as broadcast operands: they are already.
    static constexpr int64_t kRowScratch = 0;  // bytes per code
    static const int32_t* row_operand(const int8_t* codes, int64_t, void*) {
        return reinterpret_cast<const int32_t*>(codes);
    }
    // `count` weights (u8, <= 254) as broadcast operands. The second operand of a product is signed: so they are the sum of
    // two parts, each with count / kDot words.
    static constexpr int kWeightParts = 2;
    static void weight_operands(const uint8_t* weights, int count, int32_t* to) {
        auto* const bytes = reinterpret_cast<uint8_t*>(to);
        for (int i = 0; i < count; ++i) {
            bytes[i] = static_cast<uint8_t>(weights[i] / 2);
            bytes[count + i] = static_cast<uint8_t>(weights[i] - weights[i] / 2);
        }
    }
};

}  // namespace clary::cpu
