// SPDX-License-Identifier: Apache-2.0
// What the quantization kernels read and write: the problem, with device pointers in it, and the packed Q, K and V in the
// machine's arrangement (gpu/arrangement.h; meanings of the sections: docs/packed_format.md).
#pragma once

#include <cstdint>

#include "core/packed.h"
#include "gpu/header.h"
#include "gpu/quantize/groups.h"

namespace clary::gpu {

struct QuantizeParams {
    AttentionDesc desc;
    PackedRows q_rows, kv_rows;
    Headers headers;  // to be written; null where a side is not wanted
    float a = 0;      // |softmax scale| log2 e; log2 e where scale is 0
    bool key_bias = false;
    RowGroup q_group, k_group;  // rows that share a scale
    int32_t q_heads_per_kv = 1;
    int32_t tile_shift = 0;  // log2 of the tile
    int32_t run = 1;         // slabs that a block packs one after the other; above 1: PackKind::kWhole only
    // desc's keys are behind those that the packed K and V hold.
    bool append = false;
    int64_t kv_capacity = 0;

    // Packed Q; q_codes null: not wanted.
    void* q_codes = nullptr;      // [.., row, code columns]
    float* q_scale = nullptr;     // [.., row]
    uint8_t* q_repeat = nullptr;  // [.., row]; null: no key bias
    float* q_shift = nullptr;     // [.., row]; null: no smooth_k
    float* q_amax = nullptr;      // [sequence, head]: largest magnitude; null: scales do not span a head

    // The vectors of K and V. Written where K and V are wanted, else those of the K and V that Q belongs to.
    float* c_k = nullptr;     // [sequence, kv head, dim]
    float* c_q = nullptr;     // [sequence, kv head, dim]
    float* q_base = nullptr;  // [sequence, kv head]
    float* k_amax =
        nullptr;  // [sequence, kv head, 2]: largest magnitude, largest bias less its tile's base; null: likewise

    // Packed K and V; k_codes null: not wanted.
    int64_t* lengths = nullptr;   // [sequence]
    void* k_codes = nullptr;      // [.., row, code columns]
    float* k_scale = nullptr;     // [.., row]
    float* tile_base = nullptr;   // [.., tile]; null: exact recipes
    void* v_codes = nullptr;      // 8 bit: [.., tile, dim_v, tile keys]; 16 bit: [.., row, dim_v]
    int32_t* v_sum = nullptr;     // [.., tile, dim_v]; null: not of this arrangement
    float* v_scale = nullptr;     // by recipe: per channel, per channel and tile, per tile; null: none
    uint8_t* v_weight = nullptr;  // [.., row], in V's order
    float* v_mean = nullptr;      // [sequence, kv head, dim_v]; null: no smooth_v
    float* tail_k = nullptr;      // [sequence, kv head, tile, head_dim]; null: no cache, or an exact recipe
    float* tail_v = nullptr;      // [sequence, kv head, tile, head_dim_v]
};

// packed_q, packed_kv, ready (a packed K and V that Q is to be packed against): as in clary_quantize, each may be null.
inline QuantizeParams quantize_params(const AttentionDesc& desc, int64_t kv_capacity, void* packed_q, void* packed_kv,
                                      const void* ready, const Arrangement& arrangement = kMmaArrangement) {
    const PackedLayout q_layout = packed_q_layout(desc, arrangement);
    const PackedLayout kv_layout = packed_kv_layout(desc, kv_capacity, arrangement);
    QuantizeParams p;
    p.desc = desc;
    p.q_rows = packed_q_rows(desc);
    p.kv_rows = packed_kv_rows(desc, kv_capacity);
    p.kv_capacity = kv_capacity;
    p.headers.expected_q = expected_header(desc, q_layout);
    p.headers.expected_kv = expected_header(desc, kv_layout);
    p.a = score_factor(desc);
    p.key_bias = desc.recipe.key_bias();
    p.q_group = q_row_group(desc.recipe);
    p.k_group = k_row_group(desc.recipe);
    p.q_heads_per_kv = static_cast<int32_t>(desc.q_heads_per_kv());
    p.tile_shift = desc.recipe.tile == 64 ? 6 : 7;
    if (packed_q != nullptr) {
        p.headers.q = section<PackedHeader>(q_layout, packed_q, "header");
        p.q_codes = section<void>(q_layout, packed_q, "q_codes");
        p.q_scale = section<float>(q_layout, packed_q, "q_scale");
        p.q_repeat = section<uint8_t>(q_layout, packed_q, "q_repeat");
        p.q_shift = section<float>(q_layout, packed_q, "q_shift");
        p.q_amax = section<float>(q_layout, packed_q, "q_amax");
    }
    void* const vectors = packed_kv != nullptr ? packed_kv : const_cast<void*>(ready);
    if (vectors != nullptr) {
        p.c_k = section<float>(kv_layout, vectors, "c_k");
        p.c_q = section<float>(kv_layout, vectors, "c_q");
        p.q_base = section<float>(kv_layout, vectors, "q_base");
    }
    if (packed_kv == nullptr) return p;
    p.headers.kv = section<PackedHeader>(kv_layout, packed_kv, "header");
    p.lengths = section<int64_t>(kv_layout, packed_kv, "lengths");
    p.k_amax = section<float>(kv_layout, packed_kv, "k_amax");
    p.k_codes = section<void>(kv_layout, packed_kv, "k_codes");
    p.k_scale = section<float>(kv_layout, packed_kv, "k_scale");
    p.tile_base = section<float>(kv_layout, packed_kv, "tile_base");
    p.v_codes = section<void>(kv_layout, packed_kv, "v_codes");
    p.v_sum = section<int32_t>(kv_layout, packed_kv, "v_sum");
    p.v_scale = section<float>(kv_layout, packed_kv, "v_scale");
    p.v_weight = section<uint8_t>(kv_layout, packed_kv, "v_weight");
    p.v_mean = section<float>(kv_layout, packed_kv, "v_mean");
    p.tail_k = section<float>(kv_layout, packed_kv, "tail_k");
    p.tail_v = section<float>(kv_layout, packed_kv, "tail_v");
    return p;
}

inline QuantizeParams append_params(const AttentionDesc& desc, int64_t kv_capacity, void* packed_kv,
                                    const Arrangement& arrangement = kMmaArrangement) {
    QuantizeParams p = quantize_params(desc, kv_capacity, nullptr, packed_kv, nullptr, arrangement);
    p.append = true;
    return p;
}

}  // namespace clary::gpu
