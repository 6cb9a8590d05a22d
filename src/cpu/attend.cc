// SPDX-License-Identifier: Apache-2.0
#include "cpu/attend.h"

#include <algorithm>

namespace clary::cpu {
namespace {

int64_t blocks_per_head(const Tier& tier, const AttentionDesc& desc) {
    return (desc.q_len * desc.q_heads_per_kv() + tier.block - 1) / tier.block;
}

AttendProblem problem_of(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
    const PackedLayout q = packed_q_layout(desc), kv = packed_kv_layout(desc, kv_capacity);
    return {
        .desc = desc,
        .q_rows = packed_q_rows(desc),
        .kv_rows = packed_kv_rows(desc, kv_capacity),
        .dim = round_up(desc.head_dim, kDimMultiple),
        .dim_v = round_up(desc.head_dim_v, kDimMultiple),
        .a = score_factor(desc),
        .q_codes = section<void>(q, packed_q, "q_codes"),
        .q_scale = section<float>(q, packed_q, "q_scale"),
        .q_repeat = section<uint8_t>(q, packed_q, "q_repeat"),
        .q_shift = section<float>(q, packed_q, "q_shift"),
        .lengths = section<int64_t>(kv, packed_kv, "lengths"),
        .k_codes = section<void>(kv, packed_kv, "k_codes"),
        .k_scale = section<float>(kv, packed_kv, "k_scale"),
        .k_pair = section<int16_t>(kv, packed_kv, "k_pair"),
        .tile_base = section<float>(kv, packed_kv, "tile_base"),
        .q_base = section<float>(kv, packed_kv, "q_base"),
        .v_codes = section<void>(kv, packed_kv, "v_codes"),
        .v_scale = section<float>(kv, packed_kv, "v_scale"),
        .v_weight = section<uint8_t>(kv, packed_kv, "v_weight"),
        .v_mean = section<float>(kv, packed_kv, "v_mean"),
    };
}

}  // namespace

int64_t attend_workspace(const Tier& tier, const AttentionDesc& desc, const Context& context) {
    return tier.attend_scratch(desc) * context.threads();
}

Status attend(const Tier& tier, const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
    const AttentionDesc& desc = call.desc;
    const AttendProblem problem = problem_of(desc, kv_capacity, packed_q, packed_kv);
    const int64_t blocks = blocks_per_head(tier, desc);
    const int64_t scratch = tier.attend_scratch(desc);
    call.context.parallel_for(desc.batch * desc.kv_heads * blocks, [&](int64_t piece, int thread) {
        const int64_t head = piece / blocks;
        const int64_t block = blocks - 1 - piece % blocks;  // causal: the longest of a head first
        AttendTask task{.b = head / desc.kv_heads,
                        .kv_head = head % desc.kv_heads,
                        .first_row = block * tier.block,
                        .rows = 0,
                        .sequence = {}};
        // A cache knows its lengths; kv_lengths may see less.
        task.sequence =
            desc.kv_lengths.given() ? sequence_of(desc, task.b) : sequence_of(desc, task.b, problem.lengths[task.b]);
        const int64_t rows = task.sequence.q_len * desc.q_heads_per_kv() - task.first_row;
        if (rows <= 0) return;
        task.rows = static_cast<int>(std::min<int64_t>(rows, tier.block));
        tier.attend(problem, task, static_cast<char*>(call.workspace) + thread * scratch);
    });
    return Status::ok();
}

}  // namespace clary::cpu
