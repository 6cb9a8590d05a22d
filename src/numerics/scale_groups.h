// SPDX-License-Identifier: Apache-2.0
// Which scale a row of Q or a key of K uses: group indices into the fp32 scale table [batch, head, group].
//
//   granularity   Q group of a row                            K group of a key
//   kPerTensor    0                                           0
//   kPerBlock     row / block_q                               key / block_k
//   kPerWarp      row / warp_q                                key / block_k
//   kPerThread    (row / warp_q) * 8 + row % 8                (key / warp_k) * 4 + (key % 8) / 2
//   kPerToken     row                                         key
//   kFine         row                                         (key / block_k) * 4 + (key % 8) / 2
//
// kPerThread is the ownership of the MMA's accumulator fragment: a thread holds rows g, g + 8, ... and the key pairs
// 2t, 2t + 1 of every 8, so it needs one Q scale and one K scale per tile. kFine (ours) is per_thread for K and
// per_token for Q. Except for kPerTensor, no K group reaches over a boundary of block_k keys: a tile of K
// can be quantized and appended without its neighbours.
//
// Index formulas and table sizes of kPerBlock, kPerWarp and kPerThread are SageAttention 2's, so that tensors quantized
// for it can be read as they are. Its Triton kernels (per_block, 128 x 64) are kMmaFamily.
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace clary::numerics {

enum class Granularity : int32_t { kPerTensor, kPerBlock, kPerWarp, kPerThread, kPerToken, kFine };

// The tile of a kernel family: rows of Q and keys per thread block, and the parts of them that one warp owns.
// warp_q divides block_q, warp_k divides block_k, all are multiples of 8.
struct TileFamily {
    int block_q, warp_q, block_k, warp_k;
};

inline constexpr TileFamily kMmaFamily{128, 32, 64, 64};    // mma.sync kernels (sm80, sm89, sm120, MetaX), CPU
inline constexpr TileFamily kMmaFamily16{128, 16, 64, 64};  // the same with 8 warps: sm80 fp16+fp32 at head dim 128
inline constexpr TileFamily kSm90Family{64, 16, 128, 128};  // wgmma kernels

// Scale index of a Q row (0-based within its sequence), see the table above.
CLARY_HD constexpr int64_t q_group(Granularity granularity, TileFamily family, int64_t row) {
    switch (granularity) {
        case Granularity::kPerTensor:
            return 0;
        case Granularity::kPerBlock:
            return row / family.block_q;
        case Granularity::kPerWarp:
            return row / family.warp_q;
        case Granularity::kPerThread:
            return row / family.warp_q * 8 + row % 8;
        case Granularity::kPerToken:
        case Granularity::kFine:
            return row;
    }
    return 0;
}

// Scale index of a key (0-based within its sequence), see the table above.
CLARY_HD constexpr int64_t k_group(Granularity granularity, TileFamily family, int64_t key) {
    switch (granularity) {
        case Granularity::kPerTensor:
            return 0;
        case Granularity::kPerBlock:
        case Granularity::kPerWarp:
            return key / family.block_k;
        case Granularity::kPerThread:
            return key / family.warp_k * 4 + key % 8 / 2;
        case Granularity::kPerToken:
            return key;
        case Granularity::kFine:
            return key / family.block_k * 4 + key % 8 / 2;
    }
    return 0;
}

// Entries of the Q scale table per head for `length` rows: whole blocks of block_q rows, so that a kernel reads the
// scales of its tile without a bounds check. kPerTensor: 1, even for length 0.
CLARY_HD constexpr int64_t q_group_count(Granularity granularity, TileFamily family, int64_t length) {
    if (granularity == Granularity::kPerTensor) return 1;
    const int64_t padded = (length + family.block_q - 1) / family.block_q * family.block_q;
    return padded == 0 ? 0 : q_group(granularity, family, padded - 1) + 1;
}

// Entries of the K scale table per head for `length` keys: whole blocks of block_k keys. kPerTensor: 1.
CLARY_HD constexpr int64_t k_group_count(Granularity granularity, TileFamily family, int64_t length) {
    if (granularity == Granularity::kPerTensor) return 1;
    const int64_t padded = (length + family.block_k - 1) / family.block_k * family.block_k;
    return padded == 0 ? 0 : k_group(granularity, family, padded - 1) + 1;
}

}  // namespace clary::numerics
