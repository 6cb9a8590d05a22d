// SPDX-License-Identifier: Apache-2.0
// HeadOperands: what a kernel gets for one kv head of one sequence and the query heads that read it, as plain decoded
// arrays. Made by quantizing (quantize.h) or from packed buffers (unpack.h); read by the oracle (oracle.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/desc.h"

namespace clary::reference {

// The base-2 score of query row i and key j is, with S_ij = sum over d of q_id k_jd and everything fp32 but S,
//
//   (S_ij + q_repeat_i * bias_units_j) * (q_scale_i * a) * k_scale_j + tile_base(tile of j)      (+ ALiBi, mask)
//
// S and the product q_repeat * bias_units are exact for integer codes. The sign of the softmax scale lies in the codes
// of Q, so that a > 0.
struct HeadOperands {
    Recipe recipe;
    int64_t heads = 0;  // query heads of this kv head
    int64_t q_len = 0, kv_len = 0, dim = 0, dim_v = 0;
    float a = 0;  // |scale| log2 e; log2 e where scale is 0 (Q is then zero)

    // Codes are integers (INT8, INT4) or values (16-bit and fp32; FP4 with its group scales multiplied in).
    std::vector<float> q;             // (heads, q_len, dim)
    std::vector<float> q_scale;       // (heads, q_len); NaN: the row comes out NaN
    std::vector<uint8_t> q_repeat;    // (heads, q_len); 0 with a key bias: the bias is added in fp32 (see below)
    std::vector<float> q_shift;       // (heads, q_len): scale * q.c_k in natural units, what smooth_k took from the LSE
    std::vector<float> k;             // (kv_len, dim)
    std::vector<float> k_scale;       // (kv_len)
    std::vector<int16_t> bias_units;  // (kv_len)
    std::vector<float> tile_base;     // (tiles); NaN: every row that sees a key of the tile comes out NaN
    std::vector<float> c_k, c_q;      // (dim), as subtracted
    float q_base = 0;                 // a bias unit of key j is q_base * k_scale_j * a in base 2

    std::vector<float> v;           // (kv_len, dim_v), in token order
    std::vector<float> v_scale;     // channel: (dim_v); channel_tile: (tiles, dim_v); token, fp16: (tiles); else empty
    std::vector<uint8_t> v_weight;  // token: (kv_len); key j counts v_weight / 15 in the row sum
    std::vector<float> v_mean;      // (dim_v), added to the finished output; empty without smooth_v

    // smooth_q_block alone: the means of 128 queries, with the scale's sign, (heads, blocks, dim), and smoothed K
    // (kv_len, dim), whose products a * mean.k' join the score in fp32.
    std::vector<float> q_block_mean, k_smooth;

    int64_t tiles() const { return (kv_len + recipe.tile - 1) / recipe.tile; }
    int64_t q_blocks() const { return (q_len + kQBlock - 1) / kQBlock; }
    bool bias_in_float(int64_t row) const { return recipe.key_bias() && q_repeat[static_cast<size_t>(row)] == 0; }

    static constexpr int64_t kQBlock = 128;
};

}  // namespace clary::reference
