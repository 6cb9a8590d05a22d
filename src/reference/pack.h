// SPDX-License-Identifier: Apache-2.0
// HeadOperands into packed buffers (core/packed.h): the inverse of unpack.h, for tests that attend with operands that the
// reference quantized.
#pragma once

#include "core/packed.h"
#include "reference/operands.h"

namespace clary::reference {

// Writes the elements that exist of (sequence b, kv_head); padding and headers are the caller's.
void pack_head(const AttentionDesc& desc, int64_t b, int64_t kv_head, const HeadOperands& operands, void* packed_q,
               void* packed_kv, const Arrangement& arrangement);

}  // namespace clary::reference
