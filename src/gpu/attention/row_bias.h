// SPDX-License-Identifier: Apache-2.0
// Biases that are added to base-2 scores one by one: mask tensors and ALiBi.
#pragma once

#include "core/element.h"
#include "gpu/attention/lane_rows.h"
#include "numerics/constants.h"

namespace clary::gpu {

class RowBias {
  public:
    CLARY_DEVICE RowBias(const AttentionDesc& desc, const Sequence& sequence, int b, const Row& row)
        : desc_(desc), position_(static_cast<int>(row.query + sequence.offset)) {
        if (desc.alibi_slopes.given())
            slope_ = numerics::kLog2E *
                     static_cast<const float*>(desc.alibi_slopes.data)[row.head * desc.alibi_slopes.stride[0]];
        const TensorView& mask = desc.mask;
        if (desc.mask_kind != MaskKind::kNone)
            mask_row_ =
                static_cast<const char*>(mask.data) +
                (b * mask.stride[0] + row.head * mask.stride[1] + row.query * mask.stride[2]) * dtype_size(mask.dtype);
    }
    // Base 2; -inf: masked.
    CLARY_DEVICE float operator()(int key) const {
        float bias = -slope_ * static_cast<float>(position_ > key ? position_ - key : key - position_);
        if (desc_.mask_kind == MaskKind::kNone) return bias;
        const TensorView& mask = desc_.mask;
        const char* const at = mask_row_ + key * mask.stride[3] * dtype_size(mask.dtype);
        if (desc_.mask_kind == MaskKind::kBoolean) return *at ? bias : -__builtin_huge_valf();
        return bias + load_element(at, mask.dtype) * numerics::kLog2E;
    }

  private:
    const AttentionDesc& desc_;
    const char* mask_row_ = nullptr;
    int position_;
    float slope_ = 0;
};

}  // namespace clary::gpu
