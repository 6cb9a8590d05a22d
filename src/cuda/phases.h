// SPDX-License-Identifier: Apache-2.0
// Quantize, append, attend and merge on a GPU: which kernels a problem needs, their parameters, their launches.
#pragma once

#include <string>

#include "core/kernel_table.h"
#include "core/merge.h"
#include "cuda/archs.h"

namespace clary::cuda {

// "" where the kernels for `arch` take the problem, else the argument, its value and what is allowed.
std::string refusal(const Arch& arch, const AttentionDesc& desc);

// Of a problem without refusal. Buffers, workspace and tensors lie on the desc's device; everything runs on call.stream.
// Meanings: KernelRow.
Status quantize(const Arch& arch, const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv,
                const void* ready);
Status append(const Arch& arch, const Call& call, int64_t kv_capacity, void* packed_kv);
// Dense views on GPU `device`.
Status merge(const MergeViews& views, int32_t device, void* stream);
// Bytes that attend() needs; quantize() and append() need none.
int64_t workspace(const AttentionDesc& desc);
Status attend(const Arch& arch, const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv);

}  // namespace clary::cuda
