// SPDX-License-Identifier: Apache-2.0
// Cuts attention into tasks (a block of queries of one kv head) and runs them on the context's threads.
#pragma once

#include "core/kernel_table.h"
#include "cpu/tier.h"

namespace clary::cpu {

AttendProblem attend_problem(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q,
                             const void* packed_kv);
// Of the keys of a sequence as long as the desc says; each sequence is cut by its own length.
int attend_pieces(const AttentionDesc& desc);
int64_t attend_workspace(const Tier& tier, const AttentionDesc& desc, const Context& context);
Status attend(const Tier& tier, const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv);

}  // namespace clary::cpu
