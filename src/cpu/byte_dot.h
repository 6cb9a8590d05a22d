// SPDX-License-Identifier: Apache-2.0
// What tiers with a dot product of four bytes, u8 x s8, have in common: lanes hold four codes of a query, rows of codes are
// broadcast as they lie. Vec gives dot(), load() and set1().
#pragma once

#include <cstdint>
#include <cstring>

namespace clary::cpu {

template <class Vec>
struct ByteDot {
    static constexpr int kDot = 4;             // bytes per lane and step
    static constexpr int32_t kCodeBias = 128;  // a query's code s is held as the byte s + 128
    // Codes of one query to lane operands: 4 codes each.
    static void spread_codes(const int8_t* codes, int64_t count, int32_t* to, int64_t stride) {
        for (int64_t i = 0; i < count / 4; ++i) {
            uint32_t word;
            std::memcpy(&word, codes + 4 * i, 4);
            to[i * stride] = static_cast<int32_t>(word ^ 0x80808080u);
        }
    }
    // Rows of codes as broadcast operands: they are already.
    static constexpr int64_t kRowScratch = 0;  // bytes per code
    static const int32_t* row_operand(const int8_t* codes, int64_t, void*) {
        return reinterpret_cast<const int32_t*>(codes);
    }
    // sum += P . weights (u8, <= 254) of four tokens: the weight is split as the product's second operand is signed.
    template <typename I>
    static I weigh(I sum, const int32_t* p, int64_t, const uint8_t* weights) {
        uint32_t word;
        std::memcpy(&word, weights, 4);
        const uint32_t half = (word >> 1) & 0x7f7f7f7fu;
        const I lanes = Vec::load(p);
        sum = Vec::dot(sum, lanes, Vec::set1(static_cast<int32_t>(half)));
        return Vec::dot(sum, lanes, Vec::set1(static_cast<int32_t>(word - half)));  // no borrow: a byte is >= its half
    }
};

}  // namespace clary::cpu
