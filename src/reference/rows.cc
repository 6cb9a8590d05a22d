// SPDX-License-Identifier: Apache-2.0
#include "reference/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/element.h"

namespace clary::reference {

void load_token(const Operand& operand, const void* token, int64_t dim, float* row) {
    const auto* at = static_cast<const char*>(token);
    const int64_t step = operand.dim_stride * dtype_size(operand.dtype);
    for (int64_t d = 0; d < dim; ++d) row[d] = load_element(at + d * step, operand.dtype);
}

RowView::RowView(const AttentionDesc& desc, const Sequence& sequence, int64_t b, int64_t head, int64_t row)
    : desc_(desc), range_(key_range(desc, sequence, row + sequence.offset)), position_(row + sequence.offset) {
    if (desc.mask_kind != MaskKind::kNone) {
        const int64_t* stride = desc.mask.stride;
        mask_at_ = b * stride[0] + head * stride[1] + row * stride[2];
    }
    if (desc.alibi_slopes.given())
        slope_ = static_cast<const float*>(desc.alibi_slopes.data)[head * desc.alibi_slopes.stride[0]];
}

int64_t RowView::last() const { return std::max({range_.end, range_.keep_end, first()}); }

bool RowView::sees(int64_t j, double* bias) const {
    if (!range_.contains(j)) return false;
    *bias = 0;
    const int64_t at = mask_at_ + j * desc_.mask.stride[3];
    if (desc_.mask_kind == MaskKind::kBoolean && static_cast<const uint8_t*>(desc_.mask.data)[at] == 0) return false;
    if (desc_.mask_kind == MaskKind::kAdditive) {
        const DType dtype = desc_.mask.dtype;
        *bias = load_element(static_cast<const char*>(desc_.mask.data) + at * dtype_size(dtype), dtype);
        if (*bias == -kInfinity) return false;
    }
    *bias -= slope_ * static_cast<double>(std::abs(position_ - j));
    return true;
}

double sink_logit(const AttentionDesc& desc, int64_t head) {
    if (!desc.sinks.given()) return -kInfinity;
    return static_cast<const float*>(desc.sinks.data)[head * desc.sinks.stride[0]];
}

void store_row(const AttentionDesc& desc, const Sequence& sequence, int64_t b, int64_t head, int64_t row,
               const double* output, double lse) {
    auto* out = static_cast<char*>(const_cast<void*>(token_address(desc, desc.out, b, head, sequence, true)(row)));
    const int64_t step = desc.out.dim_stride * dtype_size(desc.out.dtype);
    for (int64_t d = 0; d < desc.head_dim_v; ++d)
        store_element(out + d * step, desc.out.dtype, static_cast<float>(output[d]));
    if (!desc.want_lse) return;
    const int64_t token = sequence.q_begin + row;
    desc.lse[b * desc.lse_batch_stride + head * desc.lse_head_stride + token * desc.lse_token_stride] =
        static_cast<float>(lse);
}

}  // namespace clary::reference
