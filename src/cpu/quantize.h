// SPDX-License-Identifier: Apache-2.0
// Quantizes Q, K and V into the packed format: statistics first (means, channel ranges, the base of Q's scales), then
// tiles of K and V and blocks of Q, all on the context's threads.
#pragma once

#include "core/kernel_table.h"
#include "cpu/tier.h"

namespace clary::cpu {

int64_t quantize_workspace(const Tier& tier, const AttentionDesc& desc, const Context& context);
Status quantize(const Tier& tier, const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv,
                const void* ready);
Status append(const Tier& tier, const Call& call, int64_t kv_capacity, void* packed_kv);

}  // namespace clary::cpu
