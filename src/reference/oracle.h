// SPDX-License-Identifier: Apache-2.0
// The oracle: attention from quantized operands as a kernel computes it, without a kernel's shortcuts.
#pragma once

#include "core/desc.h"
#include "core/status.h"
#include "reference/operands.h"

namespace clary::reference {

// Attends the operands' query heads to their keys; writes out and lse of (sequence b, kv_head). `sequence` must have
// the operands' lengths. Integer scores and P V sums are exact; accumulators that a recipe says are fp16 round as MMAs
// do; all other sums are float64. The lse is that of the recipe's scores, before P is rounded.
void attend_oracle(const HeadOperands& operands, const AttentionDesc& desc, const Sequence& sequence, int64_t b,
                   int64_t kv_head);

// Quantizes as desc.recipe says and attends with the oracle; fp32_fp32 is attend_exact. For empty rows, sinks and
// threads see there. A row whose Q is not finite, and one that sees a key tile in which K or V is not finite, comes out
// NaN.
Status attend_recipe(const AttentionDesc& desc, int threads = 0);

}  // namespace clary::reference
