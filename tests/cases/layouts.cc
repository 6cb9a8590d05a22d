// SPDX-License-Identifier: Apache-2.0
// Memory layouts, strides, storage offsets, and element types that differ between the tensors.
#include "cases/case.h"

namespace clary::cases {

std::vector<Case> layout_cases() {
    constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
    std::vector<Case> cases;
    const auto add = [&](const char* name, Layout q, Layout kv, Layout out, DType type, int64_t dim) {
        cases.push_back({.name = name,
                         .topic = "layouts",
                         .batch = 2,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .q_len = 37,
                         .kv_len = 141,
                         .dim = dim,
                         .q = type,
                         .k = type,
                         .v = type,
                         .out = type,
                         .q_layout = q,
                         .kv_layout = kv,
                         .out_layout = out});
    };
    add("nhd", Layout::kNhd, Layout::kNhd, Layout::kNhd, kF32, 48);
    add("nhd_bf16", Layout::kNhd, Layout::kNhd, Layout::kNhd, kBF16, 40);
    add("nhd_to_hnd", Layout::kNhd, Layout::kHnd, Layout::kNhd, kF16, 64);
    add("fused_qkv", Layout::kFused, Layout::kFused, Layout::kNhd, kF16, 24);
    add("gaps_odd_offset", Layout::kGaps, Layout::kGaps, Layout::kGaps, kBF16, 33);
    add("gaps_fp32", Layout::kGaps, Layout::kGaps, Layout::kGaps, kF32, 17);
    add("every_second", Layout::kEverySecond, Layout::kEverySecond, Layout::kEverySecond, kF32, 32);
    add("every_second_fp16", Layout::kEverySecond, Layout::kEverySecond, Layout::kEverySecond, kF16, 20);
    add("transposed", Layout::kTransposed, Layout::kTransposed, Layout::kTransposed, kBF16, 64);
    add("kv_broadcast_batch", Layout::kHnd, Layout::kBroadcastBatch, Layout::kHnd, kF16, 32);
    add("kv_broadcast_heads", Layout::kNhd, Layout::kBroadcastHeads, Layout::kHnd, kF32, 32);
    add("reversed_tokens", Layout::kReversed, Layout::kReversed, Layout::kReversed, kF32, 32);

    const auto types = [&](const char* name, DType q, DType k, DType v, DType out) {
        cases.push_back({.name = name,
                         .topic = "element types",
                         .q_heads = 2,
                         .kv_heads = 1,
                         .q_len = 33,
                         .kv_len = 150,
                         .dim = 40,
                         .q = q,
                         .k = k,
                         .v = v,
                         .out = out});
    };
    types("fp16", kF16, kF16, kF16, kF16);
    types("bf16", kBF16, kBF16, kBF16, kBF16);
    types("fp32_qk_bf16_v", kF32, kF32, kBF16, kBF16);
    types("bf16_qk_fp16_v", kBF16, kBF16, kF16, kF32);
    types("fp16_q_fp32_k", kF16, kF32, kF16, kBF16);
    types("fp32_to_fp16", kF32, kF32, kF32, kF16);
    return cases;
}

}  // namespace clary::cases
