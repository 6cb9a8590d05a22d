// SPDX-License-Identifier: Apache-2.0
// The key bias that the INT8 MMA adds, and the V scales per token that ride on it.
//
// Smoothing Q and scaling V per token both come down to a bias beta_j added to the base-2 score of key j. Q and K get
// kDigitColumns more INT8 columns: every extra column of Q row i holds the row's repeat r_i, the extra columns of key j
// hold digits that sum to bias_units. Then
//
//   (integer score) * q_scale_i * k_scale_j * a  =  a q_i.k_j + beta_j - base(tile)   with
//   q_scale_i = q_base / r_i,   a = softmax scale * log2 e,   unit_j = q_base * k_scale_j * a,
//   bias_units_j = round((beta_j - base) / unit_j),   base = the middle of beta within the key tile (tile_base).
//
// V: token j of a tile with largest need t_tile gets weight w_j, an integer, and scale t_j = 15 t_tile / w_j; its bias
// is log2(t_j / t_tile) and its code's P' counts w_j / 15 in the row sum.
//
// A "need" is amax / 127: the smallest scale that represents a row or token. All scales are fp32 and positive.
// Divisions are IEEE: kernels that use these functions are not compiled with approximate division.
#pragma once

#include <cstdint>

#include "numerics/formats.h"
#include "numerics/host_device.h"

namespace clary::numerics {

inline constexpr int kDigitColumns = 32;                    // one k32 step of the INT8 MMA, two k16 steps
inline constexpr int kDigitMax = kInt8Max;                  // a digit is an INT8 code
inline constexpr int kBiasMax = kDigitColumns * kDigitMax;  // 4064: the largest |bias_units|
inline constexpr int kRepeatMax = kInt8Max;                 // r_i is an INT8 code as well
inline constexpr int kTypicalRepeat = 64;                   // r of a typical row: room for rows twice as quiet, and
                                                            // for rows 64 times as loud
inline constexpr int kTypicalRepeatInt4 = 8;                // the same for INT4, whose scales are 18 times as coarse: a
                                                            // bias unit is r score steps wide, and must stay narrow
inline constexpr int kWeightUnit = 15;                      // weight of the loudest token of a tile
inline constexpr int kWeightMax = 16 * kWeightUnit;         // 240, fits u8: the quietest scale is 1/16 of the loudest
inline constexpr float kScaleFloor = 1e-30f;                // K and V scales: a group of zeros gets codes 0
inline constexpr float kQBaseFloor = 1e-12f;

namespace detail {

CLARY_HD constexpr float larger(float a, float b) { return a < b ? b : a; }

// floor(x) within low..high for x >= 0, infinity included; NaN gives low.
CLARY_HD constexpr int floor_between(float x, int low, int high) {
    if (!(x >= static_cast<float>(low))) return low;
    return x >= static_cast<float>(high) ? high : static_cast<int>(x);
}

}  // namespace detail

// The Q scale of repeat 1, common to all q heads of a kv head. `largest_need` and `typical_need` (the mean) over its
// rows; a sampled estimate is allowed, with head room in largest_need.
CLARY_HD constexpr float q_base_scale(float largest_need, float typical_need, int typical_repeat = kTypicalRepeat) {
    return detail::larger(detail::larger(largest_need, static_cast<float>(typical_repeat) * typical_need), kQBaseFloor);
}

// r in 1..127 of a row: the row's scale is q_base / r, the smallest of that form that is >= need (or q_base / 127).
// A row of zeros (need 0) gets 127.
CLARY_HD constexpr int q_repeat(float q_base, float need) {
    return detail::floor_between(q_base / detail::larger(need, kScaleFloor), 1, kRepeatMax);
}

// The base of a tile whose beta lie in low..high. Whole for P of 16 bits, whose rounding would else depend on it
// (docs/decisions/0021-sixteen-bit-p-against-the-row.md).
CLARY_HD constexpr float tile_base(float low, float high, bool whole) {
    const float middle = (high + low) / 2;
    return whole ? round_half_even(middle) : middle;
}

// Base-2 score per bias unit of a key with this K scale. a = softmax scale * log2 e, of either sign but not 0: a score
// without scale has no unit in which a bias could be counted.
CLARY_HD constexpr float bias_unit(float q_base, float k_scale, float a) { return q_base * k_scale * a; }

// The K scale of a group: its need, raised where the largest |beta - base| of its keys would not fit the digits. a as
// in bias_unit.
CLARY_HD constexpr float k_scale_for_bias(float need, float largest_local_bias, float q_base, float a) {
    const float fit = largest_local_bias / (static_cast<float>(kBiasMax) * q_base * (a < 0 ? -a : a));
    return detail::larger(detail::larger(need, fit), kScaleFloor);
}

// (beta - base) / unit to the nearest integer. k_scale_for_bias makes it fit; the clamp only catches rounding at the
// end of the range. No bias, or a unit that underflowed to 0, gives 0.
CLARY_HD constexpr int16_t bias_units(float local_bias, float unit) {
    const float limit = static_cast<float>(kBiasMax);
    const float units = local_bias == 0 || unit == 0 ? 0.0f : local_bias / unit;
    const float low = units < -limit ? -limit : units;
    const float clamped = low > limit ? limit : low;
    return static_cast<int16_t>(detail::is_nan(units) ? 0.0f : round_half_even(clamped));
}

// Digit of an extra K column (0..31) for |units| <= kBiasMax. The 32 digits sum to units and differ by at most 1:
// sum over c of floor((units + c) / 32) = units (Hermite's identity).
CLARY_HD constexpr int8_t digit(int units, int column) {
    static_assert(kDigitColumns == 32);
    return static_cast<int8_t>((units + column) >> 5);
}

// Those of four columns, the first in the low byte. Columns from 32 - units % 32 on hold the larger of two digits.
CLARY_HD constexpr uint32_t digits(int units, int column) {
    const int smaller = 32 - (units & 31) - column;
    const int shift = 4 * (smaller < 0 ? 0 : smaller > 4 ? 4 : smaller);  // half the bits of smaller ones
    const uint32_t larger = 0xffffffffu << shift << shift;
    const auto digit = static_cast<uint32_t>(units >> 5);
    return (((digit + 1) & 0xff) * 0x01010101u & larger) | ((digit & 0xff) * 0x01010101u & ~larger);
}

// The V need of a tile as the other V functions expect it: floored, so that a tile of zeros has a scale.
CLARY_HD constexpr float v_tile_scale(float largest_need) { return detail::larger(largest_need, kScaleFloor); }

// w in 15..240 of a token with need t in a tile with t_tile = v_tile_scale(largest t): floor(15 t_tile / t). The
// loudest token has 15, a token of zeros 240; in a tile of zeros all have 15.
CLARY_HD constexpr int v_weight(float t_tile, float t) {
    return detail::floor_between(kWeightUnit * t_tile / detail::larger(t, kScaleFloor), kWeightUnit, kWeightMax);
}

// t_j of a token with weight w: the scale that its codes are divided by.
CLARY_HD constexpr float v_token_scale(float t_tile, int weight) {
    return kWeightUnit * t_tile / static_cast<float>(weight);
}

}  // namespace clary::numerics
