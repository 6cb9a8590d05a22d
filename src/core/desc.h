// SPDX-License-Identifier: Apache-2.0
// AttentionDesc: one attention problem as a plain value, made by validate() from the C ABI's parameters. Everything
// below the edge (dispatch, kernels, reference, explain) reads this and trusts it.
#pragma once

#include <cstdint>

#include "core/recipe.h"
#include "core/types.h"
#include "numerics/host_device.h"

namespace clary {

// Q, K, V or the output with named strides (elements). With varlen `batch` is 0 and sequences begin at their token.
// With paged K and V `batch` steps from page to page.
struct Operand {
    void* data = nullptr;
    DType dtype = DType::kNone;
    int64_t batch_stride = 0, head_stride = 0, token_stride = 0, dim_stride = 1;
};

enum class Causal : int32_t { kNone = 0, kTopLeft = 1, kBottomRight = 2, kOffset = 3 };
enum class MaskKind : int32_t { kNone, kBoolean, kAdditive };

struct Window {
    bool enabled = false;
    int64_t left = -1, right = -1;  // keys before and after the query's position; -1: unlimited
    int64_t keep = 0;               // the first keys, visible from every position
};

struct AttentionDesc {
    int64_t batch = 0;  // sequences
    int64_t q_heads = 0, kv_heads = 0;
    int64_t q_len = 0, kv_len = 0;         // of the longest sequence
    int64_t head_dim = 0, head_dim_v = 0;  // of Q and K; of V and the output
    int64_t q_tokens = 0, kv_tokens = 0;   // dense: q_len, kv_len (per batch item); varlen: all sequences together

    Operand q, k, v, out;
    float* lse = nullptr;
    int64_t lse_batch_stride = 0, lse_head_stride = 0, lse_token_stride = 0;
    bool want_lse = false;

    double scale = 0;
    Causal causal = Causal::kNone;
    int64_t causal_offset = 0;
    TensorView causal_offsets;  // int32 or int64 [batch]
    Window window;

    MaskKind mask_kind = MaskKind::kNone;
    TensorView mask;                        // strides already 0 where broadcast; shape [batch, q_heads, q_len, kv_len]
    TensorView kv_lengths;                  // int32 or int64 [batch]
    TensorView alibi_slopes;                // fp32 [q_heads]
    TensorView sinks;                       // fp32 [q_heads]
    TensorView cu_seqlens_q, cu_seqlens_k;  // int32 or int64 [batch + 1]
    TensorView block_table;                 // int32 or int64 [batch, max pages]
    int64_t page_size = 0;                  // 0: not paged
    TensorView c_k, c_q, q_base;

    Recipe recipe;
    DeviceType device = DeviceType::kCpu;  // of every tensor
    int32_t device_index = 0;

    CLARY_HD bool varlen() const { return cu_seqlens_q.given(); }
    CLARY_HD int64_t q_heads_per_kv() const { return q_heads / kv_heads; }
    // A bias or predicate per (query, key) beyond causal, window and lengths.
    CLARY_HD bool biased() const { return mask_kind != MaskKind::kNone || alibi_slopes.given(); }
};

// What follows is read by kernels too, there with device pointers in the desc.

// An element of an int32 or int64 vector or matrix.
CLARY_HD inline int64_t integer_at(const TensorView& vector, int64_t index) {
    const int64_t element = index * vector.stride[0];
    return vector.dtype == DType::kI64 ? static_cast<const int64_t*>(vector.data)[element]
                                       : static_cast<const int32_t*>(vector.data)[element];
}
CLARY_HD inline int64_t integer_at(const TensorView& matrix, int64_t row, int64_t column) {
    const int64_t element = row * matrix.stride[0] + column * matrix.stride[1];
    return matrix.dtype == DType::kI64 ? static_cast<const int64_t*>(matrix.data)[element]
                                       : static_cast<const int32_t*>(matrix.data)[element];
}

CLARY_HD constexpr int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

// |scale| log2 e: base-2 scores per unit of a product of Q and K. Q carries the sign in its codes, and a scale of 0 as
// zero queries.
CLARY_HD inline float score_factor(const AttentionDesc& desc) {
    constexpr double kLog2E = 1.4426950408889634074;
    return static_cast<float>((desc.scale == 0 ? 1.0 : desc.scale < 0 ? -desc.scale : desc.scale) * kLog2E);
}

// Queries at most of a decode step: work bound by memory, whose keys backends cut into pieces.
inline constexpr int64_t kShortQuery = 16;

// One sequence of the batch.
struct Sequence {
    int64_t q_begin = 0, q_len = 0;  // q_begin: token offset within its batch item (0 unless varlen)
    int64_t kv_begin = 0, kv_len = 0;
    int64_t offset = 0;  // position of query i is i + offset
};
// Reads cu_seqlens, kv_lengths, causal_offsets. kv_len_override >= 0 replaces the length that the desc says (a cache
// knows its own).
CLARY_HD inline Sequence sequence_of(const AttentionDesc& desc, int64_t b, int64_t kv_len_override = -1) {
    Sequence s{.q_begin = 0, .q_len = desc.q_len, .kv_begin = 0, .kv_len = desc.kv_len, .offset = 0};
    if (desc.varlen() && desc.cu_seqlens_q.data != nullptr) {
        s.q_begin = integer_at(desc.cu_seqlens_q, b);
        s.q_len = integer_at(desc.cu_seqlens_q, b + 1) - s.q_begin;
        s.kv_begin = integer_at(desc.cu_seqlens_k, b);
        s.kv_len = integer_at(desc.cu_seqlens_k, b + 1) - s.kv_begin;
    }
    if (desc.kv_lengths.given() && desc.kv_lengths.data != nullptr)
        s.kv_len = clamp(integer_at(desc.kv_lengths, b), 0, s.kv_len);
    if (kv_len_override >= 0) s.kv_len = kv_len_override;
    switch (desc.causal) {
        case Causal::kTopLeft:
            s.offset = 0;
            break;
        case Causal::kOffset:
            s.offset = desc.causal_offsets.given() && desc.causal_offsets.data != nullptr
                           ? integer_at(desc.causal_offsets, b)
                           : desc.causal_offset;
            break;
        case Causal::kNone:
        case Causal::kBottomRight:
            s.offset = s.kv_len - s.q_len;
            break;
    }
    return s;
}

// The keys that causal mask, window and length leave to the query at `position`: [0, keep_end) and [begin, end).
struct KeyRange {
    int64_t keep_end = 0, begin = 0, end = 0;
    CLARY_HD constexpr bool contains(int64_t j) const { return (j >= begin && j < end) || j < keep_end; }
    CLARY_HD constexpr bool empty() const { return begin >= end && keep_end <= 0; }
};
CLARY_HD inline KeyRange key_range(const AttentionDesc& desc, const Sequence& sequence, int64_t position) {
    KeyRange range{.keep_end = 0, .begin = 0, .end = sequence.kv_len};
    if (desc.causal != Causal::kNone) range.end = clamp(position + 1, 0, sequence.kv_len);
    if (!desc.window.enabled) return range;
    range.keep_end = desc.window.keep < range.end ? desc.window.keep : range.end;
    if (desc.window.left >= 0) range.begin = clamp(position - desc.window.left, 0, sequence.kv_len);
    if (desc.window.right >= 0) range.end = clamp(position + desc.window.right + 1, 0, range.end);
    return range;
}

// First element of token t of (sequence b, head h). The page is looked up where K and V are paged.
struct TokenAddress {
    const AttentionDesc& desc;
    const Operand& operand;
    int64_t b, h, token_begin;
    bool paged;
    CLARY_HD const void* operator()(int64_t token) const {
        int64_t batch = b;
        int64_t row = token_begin + token;
        if (paged) {
            batch = integer_at(desc.block_table, b, row / desc.page_size);
            row %= desc.page_size;
        }
        const int64_t element = batch * operand.batch_stride + h * operand.head_stride + row * operand.token_stride;
        return static_cast<const char*>(operand.data) + element * dtype_size(operand.dtype);
    }
};
CLARY_HD inline TokenAddress token_address(const AttentionDesc& desc, const Operand& operand, int64_t b, int64_t h,
                                           const Sequence& sequence, bool is_q) {
    return {desc, operand, b, h, is_q ? sequence.q_begin : sequence.kv_begin, !is_q && desc.page_size > 0};
}

}  // namespace clary
