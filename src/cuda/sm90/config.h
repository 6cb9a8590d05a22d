// SPDX-License-Identifier: Apache-2.0
// What a Hopper attention kernel is compiled for, and what it reads.
#pragma once

#include <cuda.h>

#include "gpu/attention/config.h"
#include "gpu/attention/params.h"

namespace clary::cuda::sm90 {

inline constexpr int kTileK = 128;                       // keys of a step, the recipe's tile
inline constexpr int kGroupRows = 64;                    // rows of a warpgroup, as many as wgmma multiplies
inline constexpr int kWarpgroups = 2;                    // that compute; one more feeds them
inline constexpr int kTileQ = kWarpgroups * kGroupRows;  // rows of a block
inline constexpr int kStages = 3;                        // tiles of K and V on their way or in use
inline constexpr int kThreads = (kWarpgroups + 1) * 128;
struct Config {
    gpu::Element v;  // of V: kS8, kF16, kBf16; P follows: unsigned bytes, or the same type
    int head_dim;    // padded, of Q, K and V: 64 or 128
    bool key_bias;   // 32 digit columns behind the head dim
    bool want_lse;   // sums of P before rounding too

    CLARY_HD constexpr int value_bytes() const { return gpu::element_bits(v) / 8; }
    // P of 16 bits is taken against the row's reference, so that products of all tiles add up in O itself.
    CLARY_HD constexpr bool direct() const { return value_bytes() == 2; }
    // Presets accurate with such a P have a K scale for each key. Else keys of a run of gpu::kScaleKeys share four.
    CLARY_HD constexpr bool scales_keys() const { return direct() && key_bias; }
    // Tiles of Q on their way or in use; parts that O is stored in, one after the other: what there is room for.
    CLARY_HD constexpr int works() const { return direct() && head_dim == 128 ? 2 : 3; }
    CLARY_HD constexpr int output_parts() const { return direct() && head_dim == 128 ? 8 : 2; }

    // Of a thread. The feeding warpgroup leaves most of its registers to the others: together no more than the block begins
    // with, 168 of each thread.
    CLARY_HD constexpr int registers() const { return head_dim == 64 ? 216 : 232; }
    CLARY_HD constexpr int producer_registers() const { return 3 * 168 - 2 * registers(); }
    // How ptxas orders a tile's instructions decides a tenth of the speed, so these are measured (docs/kernels/sm90.md).
    // Late: T is waited for when the maxima are known; half of T joins O when the next S is under way.
    CLARY_HD constexpr bool waits_late() const { return !direct() && head_dim == 128; }
    CLARY_HD constexpr bool flushes_late() const { return !direct() && head_dim == 128 && key_bias; }
    // Warpgroups make P one after the other. (Not tried where there is an LSE.)
    CLARY_HD constexpr bool takes_turns() const { return (direct() || head_dim == 64) && !want_lse; }
};

// The order of work: chunks of heads whose K and V stay in L2, in each the longest rows first.
struct Schedule {
    int tile_rows;  // rows of a block that exist: the tile's, less what does not divide by the q heads of a kv head
    int q_tiles;    // of a head
    int heads;      // kv heads of all batch items
    int chunk_heads;
    int items;  // q_tiles * heads
};

struct Params {
    gpu::AttentionParams attention;
    CUtensorMap queries;  // bytes of a row, q heads, rows: boxes of head_dim x group x tile_rows / group
    CUtensorMap repeats;  // the same tensor, boxes of 32 columns
    CUtensorMap keys;     // bytes of a row, rows: boxes of head_dim x tile
    CUtensorMap digits;   // the same tensor, boxes of 32 x tile
    CUtensorMap values;   // 8 bit: keys of a tile, channels of all tiles: boxes of tile x head_dim
                          // 16 bit: bytes of a row, rows: boxes of 128 x tile
    Schedule schedule;
};

}  // namespace clary::cuda::sm90
