// SPDX-License-Identifier: Apache-2.0
// What the attention kernels read and write: the problem, with device pointers in it, and the packed Q, K and V in the
// machine's arrangement (gpu/arrangement.h; meanings of the sections: docs/packed_format.md).
#pragma once

#include <cstdint>

#include "core/packed.h"
#include "gpu/header.h"

namespace clary::gpu {

struct AttentionParams {
    AttentionDesc desc;
    PackedRows q_rows, kv_rows;
    Headers headers;  // of the packed buffers; where they do not match, all results are NaN
    float a = 0;      // |softmax scale| log2 e; log2 e where scale is 0

    const void* q_codes = nullptr;      // [.., row, code columns]
    const float* q_scale = nullptr;     // [.., row]; null: exact recipes
    const uint8_t* q_repeat = nullptr;  // [.., row]; null: no key bias
    const float* q_shift = nullptr;     // [.., row]; null: no smooth_k
    const int64_t* lengths = nullptr;   // [sequence]
    const void* k_codes = nullptr;      // [.., row, code columns]
    const float* k_scale = nullptr;     // [.., row]
    const float* tile_base = nullptr;   // [.., tile]
    const float* q_base = nullptr;      // [sequence, kv head]
    const void* v_codes = nullptr;      // 8 bit: [.., tile, dim_v, tile keys]; 16 bit: [.., row, dim_v]
    const int32_t* v_sum = nullptr;     // [.., tile, dim_v]: sums of V's codes; null: not of this arrangement
    const float* v_scale = nullptr;     // by recipe: per channel, per channel and tile, per tile; null: none
    const uint8_t* v_weight = nullptr;  // [.., row], in V's order
    const float* v_mean = nullptr;      // [sequence, kv head, dim_v]
};

}  // namespace clary::gpu
