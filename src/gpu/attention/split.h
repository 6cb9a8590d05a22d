// SPDX-License-Identifier: Apache-2.0
// Keys cut into pieces, one block each, for problems whose rows alone would leave most of a GPU idle: a piece leaves its O
// and sums here, and gpu/combine/combine_kernel.h joins them. When, and into how many: pieces_of() in configs.h.
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace clary::gpu {

inline constexpr int kMaxPieces = 128;  // threads of a block that combines: each has a piece's sums

// Of a row over a piece of its keys; O is its part of the result times the sum.
struct alignas(16) RowSums {
    float reference;  // R; -inf: no key was seen
    float sum;        // of P as quantized, in P's units, times 2^-R
    float exact;      // the same before rounding, where there is an LSE to tell; else `sum`
    float unused;
};

struct Split {
    int pieces = 1;           // of the keys that a block's rows see; 1: nothing below is used
    int rows = 0;             // of a kv head, in the longest sequence
    int channels = 0;         // padded head_dim_v
    RowSums* sums = nullptr;  // [batch, kv head, piece, row]
    float* out = nullptr;     // [batch, kv head, piece, row, channel]

    // `head`: kv head, counted over the batch.
    CLARY_HD int64_t row_of(int64_t head, int piece, int row) const { return (head * pieces + piece) * rows + row; }
};

}  // namespace clary::gpu
