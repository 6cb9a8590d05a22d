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
inline constexpr int kThreads = (kWarpgroups + 1) * 128;
struct Config {
    gpu::Element v;            // of V: kS8, kE4m3, kF16, kBf16; P follows: unsigned bytes, or the same type
    int head_dim, head_dim_v;  // padded, of Q and K; of V
    bool key_bias;             // 32 digit columns behind the head dim
    bool want_lse;             // sums of P before rounding too

    CLARY_HD constexpr int value_bytes() const { return gpu::element_bits(v) / 8; }
    CLARY_HD constexpr bool fp8() const { return v == gpu::Element::kE4m3; }
    // P of 16 bits is taken against the row's reference, so that products of all tiles add up in O itself.
    CLARY_HD constexpr bool direct() const { return value_bytes() == 2; }
    // Presets accurate with such a P have a K scale for each key. Else keys of a run of gpu::kScaleKeys share four.
    CLARY_HD constexpr bool scales_keys() const { return direct() && key_bias; }
    // Of 128 channels registers hold O, S, T and P. Of more, T comes in parts, each of which joins O before the next, and takes
    // the registers that S has before.
    CLARY_HD constexpr int value_parts() const { return !direct() && head_dim_v > 128 ? 2 : 1; }
    // What there is room for in shared memory: tiles of K and V, and of Q, on their way or in use; channels of O in
    // fp32 that are stored at once by way of it, where they are not stored straight from registers.
    CLARY_HD constexpr int stages() const { return head_dim + head_dim_v > 384 ? 2 : 3; }
    CLARY_HD constexpr int works() const { return head_dim > 128 || (direct() && head_dim > 64) ? 2 : 3; }
    CLARY_HD constexpr bool stores_directly() const { return head_dim > 128; }
    CLARY_HD constexpr int output_channels() const { return direct() && head_dim == 128 ? 16 : head_dim_v / 2; }

    // Of a thread. The feeding warpgroup leaves most of its registers to the others: together no more than the block begins
    // with, 168 of each thread.
    CLARY_HD constexpr int registers() const { return head_dim == 64 ? 216 : 232; }
    CLARY_HD constexpr int producer_registers() const { return 3 * 168 - 2 * registers(); }
    // How ptxas orders a tile's instructions decides a tenth of the speed, so these are measured (docs/kernels/sm90.md).
    // Maxima and P are blocks of instructions of their own.
    CLARY_HD constexpr bool splits_tile() const {
        return direct() || value_parts() > 1 || (fp8() && head_dim_v == 128);
    }
    // Late: half of T joins O when the next S is under way.
    CLARY_HD constexpr bool flushes_late() const {
        return !direct() && (fp8() ? head_dim_v == 128 && key_bias : head_dim == 128);
    }
    // P is made of each so many-th run of keys in turn: with the right number ptxas leaves conversions between exponentials up
    // to the end.
    CLARY_HD constexpr int run_stride() const {
        if (direct() || (fp8() && head_dim_v == 128 && !key_bias)) return 1;
        return fp8() && head_dim_v == 64 && key_bias ? 7 : 5;
    }
    // Warpgroups make P one after the other. (Not tried where there is an LSE.)
    CLARY_HD constexpr bool takes_turns() const { return (v != gpu::Element::kS8 || head_dim != 128) && !want_lse; }
};

// A row of Q or K, a multiple of 32 bytes, is copied in boxes of 128, 64 and 32 bytes (kinds 0, 1, 2), the widest first, each
// of which is swizzled over its width.
struct RowBox {
    int begin, kind;  // first byte of the row
    CLARY_HD constexpr int width() const { return 128 >> kind; }
};
// That holds a byte of a row.
CLARY_HD constexpr RowBox row_box(int row_bytes, int byte) {
    for (RowBox box{0, 0};; box.begin += box.width()) {
        while (row_bytes - box.begin < box.width()) ++box.kind;
        if (byte < box.begin + box.width()) return box;
    }
}
static_assert(row_box(96 + 32, 96).width() == 128 && row_box(96, 64).width() == 32 &&
              row_box(256 + 32, 128).begin == 128);

// The order of work: chunks of heads whose K and V stay in L2, in each the longest rows first. Blocks take an item each a round,
// in rounds forwards and backwards in turn, so that each gets as much: if there are enough items, chunks begin with a round, and
// every other one backwards; the shortest then leave some blocks idle.
struct Schedule {
    int tile_rows;  // rows of a block that exist: the tile's, less what does not divide by the q heads of a kv head
    int q_tiles;    // of a head
    int heads;      // kv heads of all batch items
    int chunk_heads, chunk_items, chunk_rounds;
    int items, blocks;
};

struct Params {
    gpu::AttentionParams attention;
    // By kind of box.
    CUtensorMap queries[3];  // bytes of a row, q heads, rows: boxes of a width x group x tile_rows / group
    CUtensorMap keys[3];     // bytes of a row, rows: boxes of a width x tile
    CUtensorMap values;      // 8 bit: keys of a tile, channels of all tiles: boxes of tile x head_dim_v
                             // 16 bit: bytes of a row, rows: boxes of 128 x tile
    Schedule schedule;
};

}  // namespace clary::cuda::sm90
