// SPDX-License-Identifier: Apache-2.0
// HeadOperands from packed buffers (core/packed.h), so that a kernel's attend can be held against the oracle on
// identical inputs.
#pragma once

#include "core/packed.h"
#include "core/status.h"
#include "reference/operands.h"

namespace clary::reference {

// Operands of (sequence b, kv_head) in buffers laid out by packed_q_layout() and packed_kv_layout() for the
// arrangement. Fails with kUnsupported where the packed format does not hold all that the recipe needs: FP4 (group
// scales) and smooth_q_block (means per block).
Status unpack_head(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q, const void* packed_kv,
                   int64_t b, int64_t kv_head, HeadOperands* operands,
                   const Arrangement& arrangement = kCpuArrangement);

// The oracle's attend phase: every head unpacked and attended; key lengths come from packed_kv. Buffers packed as
// something else are refused.
Status attend_packed(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q, const void* packed_kv,
                     int threads = 0, const Arrangement& arrangement = kCpuArrangement);

}  // namespace clary::reference
