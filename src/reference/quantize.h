// SPDX-License-Identifier: Apache-2.0
// Quantization as a recipe defines it, one kv head at a time. Every backend takes the same decisions; where it does so
// in fp32, the order of operations written in quantize.cc and quantize_v.cc is the definition.
#pragma once

#include "core/desc.h"
#include "reference/operands.h"
#include "reference/smoothing.h"

namespace clary::reference {

// Operands of (sequence b, kv_head) for desc.recipe. Vectors given in the desc (c_k, c_q, q_base) replace the computed
// ones.
HeadOperands quantize_head(const AttentionDesc& desc, int64_t b, int64_t kv_head);

// V of the operands: v, v_scale, v_weight, v_mean. A tile whose V is not finite gets NaN in `poison` (tiles, from 0).
// Only INT8, FP8, FP4 and 16-bit PV of a quantized recipe.
void quantize_v(const Tokens& v, HeadOperands* operands, std::vector<float>* poison);

}  // namespace clary::reference
