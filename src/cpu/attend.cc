// SPDX-License-Identifier: Apache-2.0
#include "cpu/attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "numerics/constants.h"

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

// What a caller could get wrong about the buffers, found before any task reads them.
Status check_packed(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
    const PackedLayout kv = packed_kv_layout(desc, kv_capacity);
    CLARY_RETURN_IF_ERROR(check_header("packed_q", desc, packed_q_layout(desc), packed_q));
    CLARY_RETURN_IF_ERROR(check_header("packed_kv", desc, kv, packed_kv));
    const int64_t rows = packed_kv_rows(desc, kv_capacity).rows;
    const int64_t* const lengths = section<int64_t>(kv, packed_kv, "lengths");
    for (int64_t b = 0; b < desc.batch; ++b) {
        if (lengths[b] < 0 || lengths[b] > rows)
            return invalid_argument(fmt::format("packed_kv: lengths[{}] is {}; allowed: 0..{}", b, lengths[b], rows));
        if (desc.mask_kind != MaskKind::kNone && lengths[b] > desc.mask.shape[3])
            return invalid_argument(fmt::format("mask: {} keys, but packed_kv holds {} of sequence {}; allowed: at least "
                                                "as many (give k the shape of all keys)", desc.mask.shape[3],
                                                lengths[b], b));
    }
    return Status::ok();
}

}  // namespace

float score_factor(const AttentionDesc& desc) {
    const double scale = desc.scale == 0 ? 1.0 : std::fabs(desc.scale);
    return static_cast<float>(scale * static_cast<double>(numerics::kLog2E));
}

int64_t attend_workspace(const Tier& tier, const AttentionDesc& desc, const Context& context) {
    return tier.attend_scratch(desc) * context.threads();
}

Status attend(const Tier& tier, const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
    const AttentionDesc& desc = call.desc;
    CLARY_RETURN_IF_ERROR(check_packed(desc, kv_capacity, packed_q, packed_kv));
    const AttendProblem problem = problem_of(desc, kv_capacity, packed_q, packed_kv);
    const int64_t blocks = blocks_per_head(tier, desc);
    const int64_t scratch = tier.attend_scratch(desc);
    call.context.parallel_for(desc.batch * desc.kv_heads * blocks, [&](int64_t piece, int thread) {
        const int64_t head = piece / blocks;
        const int64_t block = blocks - 1 - piece % blocks;  // causal: the longest of a head first
        AttendTask task{.b = head / desc.kv_heads, .kv_head = head % desc.kv_heads, .first_row = block * tier.block,
                        .rows = 0, .sequence = {}};
        task.sequence = sequence_of(desc, task.b, problem.lengths[task.b]);
        const int64_t rows = task.sequence.q_len * desc.q_heads_per_kv() - task.first_row;
        if (rows <= 0) return;
        task.rows = static_cast<int>(std::min<int64_t>(rows, tier.block));
        tier.attend(problem, task, static_cast<char*>(call.workspace) + thread * scratch);
    });
    return Status::ok();
}

}  // namespace clary::cpu
