// SPDX-License-Identifier: Apache-2.0
// Attention on packed buffers by Hopper's kernels. They read the same packed buffers as those of other chips.
#pragma once

#include <string>

#include "core/kernel_table.h"

namespace clary::cuda::sm90 {

// "" where a kernel takes the problem, else the argument, its value and what is allowed.
std::string refusal(const AttentionDesc& desc);

// Of a problem without refusal; as KernelRow::attend.
Status attend(const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv);

}  // namespace clary::cuda::sm90
