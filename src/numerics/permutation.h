// SPDX-License-Identifier: Apache-2.0
// The orders in which V's tokens are stored for 8-bit PV: permuted within runs of 16 or 32, so that P needs no shuffle.
//
// The QK accumulator leaves thread t (0..3) of a quad with the scores of keys 2t, 2t+1, 8+2t, 8+2t+1 of every 16; the
// 8-bit A operand of the PV MMA wants four consecutive k positions 4t..4t+3 in it. So position 4t + 2h + b of a run
// holds token 8h + 2t + b (h, b in 0..1). mma.m16n8k32 and wgmma k32 both contract two such runs.
//
// MetaX's products leave lane group g (0..3) with the scores of keys 4g .. 4g+3 of every 16. Those of depth 16 want just
// these; those of depth 32 want positions 8g .. 8g+7, so position 8g + 4h + b of a run of 32 holds token 16h + 4g + b
// (h in 0..1, b in 0..3).
#pragma once

#include <cstdint>
#include <initializer_list>

#include "numerics/host_device.h"

namespace clary::numerics {

inline constexpr int kVRun = 16;  // tokens

// Position p of a run holds token kVTokenPermutation[p]: the layout of SageAttention 2's transposed V.
inline constexpr int kVTokenPermutation[kVRun] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};

// The token (0-based in its sequence) that lies at a position of the permuted sequence.
CLARY_HD constexpr int64_t v_token(int64_t position) {
    const int64_t p = position % kVRun;
    return position - p + p / 2 % 2 * 8 + p / 4 * 2 + p % 2;
}

// The position at which a token lies: the inverse of v_token.
CLARY_HD constexpr int64_t v_position(int64_t token) {
    const int64_t r = token % kVRun;
    return token - r + r / 2 % 4 * 4 + r / 8 * 2 + r % 2;
}

enum class VOrder { kRunsOf16, kAsTheyCome, kRunsOf32 };

// The same for each of the orders.
CLARY_HD constexpr int64_t v_token(VOrder order, int64_t position) {
    if (order == VOrder::kRunsOf16) return v_token(position);
    if (order == VOrder::kAsTheyCome) return position;
    const int64_t p = position % (2 * kVRun);
    return position - p + p / 4 % 2 * 16 + p / 8 * 4 + p % 4;
}
CLARY_HD constexpr int64_t v_position(VOrder order, int64_t token) {
    if (order == VOrder::kRunsOf16) return v_position(token);
    if (order == VOrder::kAsTheyCome) return token;
    const int64_t r = token % (2 * kVRun);
    return token - r + r / 4 % 4 * 8 + r / 16 * 4 + r % 4;
}

namespace detail {

constexpr bool v_permutation_is_consistent() {
    for (int64_t p = 0; p < 3 * kVRun; ++p) {
        if (v_token(p) != p / kVRun * kVRun + kVTokenPermutation[p % kVRun]) return false;
        if (v_position(v_token(p)) != p || v_token(v_position(p)) != p) return false;
        for (const VOrder order : {VOrder::kRunsOf16, VOrder::kAsTheyCome, VOrder::kRunsOf32})
            if (v_position(order, v_token(order, p)) != p || v_token(order, v_position(order, p)) != p) return false;
    }
    return true;
}
static_assert(v_permutation_is_consistent(), "table, v_token and v_position must say the same");

}  // namespace detail

}  // namespace clary::numerics
