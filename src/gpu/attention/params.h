// SPDX-License-Identifier: Apache-2.0
// What the attention kernels read and write: the problem, with device pointers in it, and the packed Q, K and V in the
// machine's arrangement (gpu/arrangement.h; meanings of the sections: docs/packed_format.md).
#pragma once

#include <cstdint>

#include "core/packed.h"
#include "gpu/attention/split.h"
#include "gpu/header.h"

namespace clary::gpu {

struct AttentionParams {
    AttentionDesc desc;
    PackedRows q_rows, kv_rows;
    Headers headers;  // of the packed buffers; where they do not match, all results are NaN
    float a = 0;      // |softmax scale| log2 e; log2 e where scale is 0
    Split split;

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

// Sequence b with the keys that it has. A cache knows its lengths, which never pass what the buffer holds, whatever it was
// packed as; kv_lengths may see less, and a mask must have a column for every key.
CLARY_HD inline Sequence packed_sequence(const AttentionParams& p, int b) {
    const AttentionDesc& desc = p.desc;
    int64_t keys = clamp(p.lengths[b], 0, p.kv_rows.rows);
    if (desc.varlen()) keys = clamp(keys, 0, sequence_of(desc, b).kv_len);
    if (desc.kv_lengths.given()) keys = clamp(integer_at(desc.kv_lengths, b), 0, keys);
    if (desc.mask_kind != MaskKind::kNone) keys = clamp(keys, 0, desc.mask.shape[3]);
    return sequence_of(desc, b, keys);
}

// What the channels of a kv head's V have: scale and mean, null where they have none; whether V was rotated. Channels
// 0 .. dim - 1 exist.
struct ValueChannels {
    const float* scale;
    const float* mean;
    bool rotated;
    int dim;
};
// `stride`: channels of a head in the packed vectors.
CLARY_HD inline ValueChannels value_channels(const AttentionParams& p, int64_t b, int64_t kv_head, int stride) {
    const int64_t first = (b * p.desc.kv_heads + kv_head) * stride;
    return {p.desc.recipe.v_scale == VScale::kChannel ? p.v_scale + first : nullptr,
            p.v_mean != nullptr ? p.v_mean + first : nullptr, p.desc.recipe.rotate_v,
            static_cast<int>(p.desc.head_dim_v)};
}

}  // namespace clary::gpu
