// SPDX-License-Identifier: Apache-2.0
#include "core/desc.h"

#include <algorithm>

namespace clary {

namespace {

int64_t integer(const TensorView& tensor, int64_t element) {
    return tensor.dtype == DType::kI64 ? static_cast<const int64_t*>(tensor.data)[element]
                                       : static_cast<const int32_t*>(tensor.data)[element];
}

}  // namespace

int64_t integer_at(const TensorView& vector, int64_t index) { return integer(vector, index * vector.stride[0]); }

int64_t integer_at(const TensorView& matrix, int64_t row, int64_t column) {
    return integer(matrix, row * matrix.stride[0] + column * matrix.stride[1]);
}

Sequence sequence_of(const AttentionDesc& desc, int64_t b, int64_t kv_len_override) {
    Sequence s{.q_begin = 0, .q_len = desc.q_len, .kv_begin = 0, .kv_len = desc.kv_len, .offset = 0};
    if (desc.varlen() && desc.cu_seqlens_q.data != nullptr) {
        s.q_begin = integer_at(desc.cu_seqlens_q, b);
        s.q_len = integer_at(desc.cu_seqlens_q, b + 1) - s.q_begin;
        s.kv_begin = integer_at(desc.cu_seqlens_k, b);
        s.kv_len = integer_at(desc.cu_seqlens_k, b + 1) - s.kv_begin;
    }
    if (desc.kv_lengths.given() && desc.kv_lengths.data != nullptr)
        s.kv_len = std::clamp<int64_t>(integer_at(desc.kv_lengths, b), 0, s.kv_len);
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

KeyRange key_range(const AttentionDesc& desc, const Sequence& sequence, int64_t position) {
    KeyRange range{.keep_end = 0, .begin = 0, .end = sequence.kv_len};
    if (desc.causal != Causal::kNone) range.end = std::clamp<int64_t>(position + 1, 0, sequence.kv_len);
    if (!desc.window.enabled) return range;
    range.keep_end = std::min(desc.window.keep, range.end);
    if (desc.window.left >= 0) range.begin = std::clamp<int64_t>(position - desc.window.left, 0, sequence.kv_len);
    if (desc.window.right >= 0) range.end = std::clamp<int64_t>(position + desc.window.right + 1, 0, range.end);
    return range;
}

const void* TokenAddress::operator()(int64_t token) const {
    int64_t batch = b;
    int64_t row = token_begin + token;
    if (paged) {
        batch = integer_at(desc.block_table, b, row / desc.page_size);
        row %= desc.page_size;
    }
    const int64_t element = batch * operand.batch_stride + h * operand.head_stride + row * operand.token_stride;
    return static_cast<const char*>(operand.data) + element * dtype_size(operand.dtype);
}

TokenAddress token_address(const AttentionDesc& desc, const Operand& operand, int64_t b, int64_t h,
                           const Sequence& sequence, bool is_q) {
    return {desc, operand, b, h, is_q ? sequence.q_begin : sequence.kv_begin, !is_q && desc.page_size > 0};
}

}  // namespace clary
