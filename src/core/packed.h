// SPDX-License-Identifier: Apache-2.0
// The packed format: where quantized Q, and quantized K and V, lie in a buffer. Meanings: docs/packed_format.md.
//
// Rows. A "row" is a token of one (batch item, head). Dense problems have one batch item per sequence, each padded to
// a multiple of the tile; varlen problems have a single batch item in which sequence b begins at row
// (cu_seqlens[b] / tile + b) * tile, so that no tile is shared and no prefix sum is needed.
#pragma once

#include <cstdint>
#include <string_view>

#include "clary/clary.h"
#include "core/desc.h"
#include "numerics/permutation.h"

namespace clary {

using PackedLayout = clary_packed_layout;

// Where the rows of each (sequence, head) lie.
struct PackedRows {
    int64_t rows = 0;  // per (batch item, head)
    bool varlen = false;
    int32_t tile = 0;

    // Row index of the sequence's first token, counted over the whole section.
    CLARY_HD int64_t begin(int64_t b, int64_t h, int64_t heads, int64_t token_begin) const {
        return varlen ? h * rows + (tile ? (token_begin / tile + b) * tile : token_begin) : (b * heads + h) * rows;
    }
};
PackedRows packed_q_rows(const AttentionDesc& desc);
PackedRows packed_kv_rows(const AttentionDesc& desc, int64_t kv_capacity);

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// CPU: head dims are padded with zeros to a multiple of this many columns: one vector of 4-byte groups, 16 wide.
inline constexpr int64_t kDimMultiple = 16;
// GPU: to the next head dim that kernels are instantiated for.
inline constexpr int64_t kMmaHeadDims[] = {32, 64, 96, 128, 192, 256};

// Columns of a row of codes: of Q and K, of V.
struct PaddedDims {
    int64_t qk, v;
};

// What the kernels of a backend want to read.
struct Arrangement {
    PaddedDims (*padded_dims)(int64_t head_dim, int64_t head_dim_v);
    // The key bias as kDigitColumns more int8 columns of q_codes (each holds q_repeat) and k_codes (digits), which the
    // MMA adds up; else as k_pair.
    bool digit_columns;
    // Of the keys of a tile of 8-bit V, and of its weights.
    numerics::VOrder v_order = numerics::VOrder::kRunsOf16;
    // Where products have no unsigned operand, P is multiplied as P - 128, and v_sum makes up for it.
    bool v_sums = false;

    // Of a key within its tile.
    constexpr int64_t v_place(int64_t key) const { return numerics::v_position(v_order, key); }
};
constexpr PaddedDims padded_dims_cpu(int64_t head_dim, int64_t head_dim_v) {
    return {round_up(head_dim, kDimMultiple), round_up(head_dim_v, kDimMultiple)};
}
constexpr int64_t padded_dim_mma(int64_t head_dim) {
    for (const int64_t dim : kMmaHeadDims)
        if (head_dim <= dim) return dim;
    return round_up(head_dim, kDimMultiple);  // no kernel takes it
}
// Kernels have one head dim for Q, K and V, but for latent attention's pair; other pairs are both padded to the wider one
// (docs/decisions/0016-pairs-of-head-dims.md).
constexpr PaddedDims padded_dims_mma(int64_t head_dim, int64_t head_dim_v) {
    const PaddedDims own{padded_dim_mma(head_dim), padded_dim_mma(head_dim_v)};
    if (own.qk == 192 && own.v == 128) return own;
    const int64_t wider = own.qk > own.v ? own.qk : own.v;
    return {wider, wider};
}
inline PaddedDims padded_dims_mma(const AttentionDesc& desc) { return padded_dims_mma(desc.head_dim, desc.head_dim_v); }
inline constexpr Arrangement kCpuArrangement{padded_dims_cpu, false};
inline constexpr Arrangement kMmaArrangement{padded_dims_mma, true};
// MetaX, by the depth of 8-bit products.
inline constexpr Arrangement kMetaxK16Arrangement{padded_dims_mma, true, numerics::VOrder::kAsTheyCome, true};
inline constexpr Arrangement kMetaxK32Arrangement{padded_dims_mma, true, numerics::VOrder::kRunsOf32, true};

// kv_capacity 0: exactly kv_len, no room to append.
PackedLayout packed_q_layout(const AttentionDesc& desc, const Arrangement& arrangement);
PackedLayout packed_kv_layout(const AttentionDesc& desc, int64_t kv_capacity, const Arrangement& arrangement);
// The CPU's.
PackedLayout packed_q_layout(const AttentionDesc& desc);
PackedLayout packed_kv_layout(const AttentionDesc& desc, int64_t kv_capacity);

// The first section of every packed buffer: what it was packed as, so that reading it as something else is refused.
struct PackedHeader {
    uint64_t format;     // magic and version of the packed format
    uint64_t layout;     // hash of recipe, shapes and sections
    uint64_t sequences;  // hash of cu_seqlens; 0 for dense problems
    uint64_t vectors;    // vectors_id() of the K and V: the same in a packed Q that was quantized against them
    double scale;        // the key bias is an integer in units that hold the softmax scale
};
inline constexpr uint64_t kPackedFormat = 0x0001'59524c43;  // version 1, "CLRY"
// FNV-1a over 64-bit words.
CLARY_HD constexpr uint64_t mix_hash(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x100000001b3u; }
inline constexpr uint64_t kEmptyHash = 0xcbf29ce484222325u;
// Reads cu_seqlens.
CLARY_HD inline uint64_t sequences_id(const AttentionDesc& desc) {
    if (!desc.varlen()) return 0;
    uint64_t hash = kEmptyHash;
    for (int64_t b = 0; b <= desc.batch; ++b) {
        hash = mix_hash(hash, static_cast<uint64_t>(integer_at(desc.cu_seqlens_q, b)));
        hash = mix_hash(hash, static_cast<uint64_t>(integer_at(desc.cu_seqlens_k, b)));
    }
    return hash;
}
// Without `sequences` and `vectors`, which are hashes of what may lie on a GPU.
PackedHeader expected_header(const AttentionDesc& desc, const PackedLayout& layout);

// Buffers in host memory.
PackedHeader header_of(const PackedLayout& layout, const void* buffer);
void write_header(const AttentionDesc& desc, const PackedLayout& layout, void* buffer, uint64_t vectors);
// Everything but `vectors`. `name`: the argument that the message blames.
Status check_header(const char* name, const AttentionDesc& desc, const PackedLayout& layout, const void* buffer);
// Hash of the smoothing vectors and the base of Q's scales in a packed K and V; 0 where a recipe has none.
uint64_t vectors_id(const PackedLayout& kv_layout, const void* packed_kv);

// Null where the layout has no such section.
inline const clary_section* find_section(const PackedLayout& layout, std::string_view name) {
    for (int32_t i = 0; i < layout.section_count; ++i)
        if (name == layout.sections[i].name) return &layout.sections[i];
    return nullptr;
}
// Start of a section in `buffer`; null where the layout has no such section.
template <typename T>
T* section(const PackedLayout& layout, void* buffer, std::string_view name) {
    const clary_section* found = find_section(layout, name);
    return found ? reinterpret_cast<T*>(static_cast<char*>(buffer) + found->offset) : nullptr;
}
template <typename T>
const T* section(const PackedLayout& layout, const void* buffer, std::string_view name) {
    return section<T>(layout, const_cast<void*>(buffer), name);
}

}  // namespace clary
