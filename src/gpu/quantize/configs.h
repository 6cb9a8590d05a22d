// SPDX-License-Identifier: Apache-2.0
// Which quantization kernels exist, which one serves a problem, and how they are launched.
//
// Kernels of a call, in this order, on one stream; each is a template over a Target and a QuantizeConfig:
//
//   quantized recipes   StatisticsKernel     statistics_blocks(p)   where K and V are wanted (statistics_kernel.h)
//                       ChannelScaleKernel   channel_blocks(p)      there, if v_scale=channel (channel_scale_kernel.h)
//                       PackKernel           pack_blocks(p)         kMeasure, if spans_heads(p), with p.run = kWholeHead
//                       PackKernel           pack_blocks(p)         always (pack_kernel.h); kWhole where whole(p) and
//                                                                   the machine has room, with p.run = long_run(p)
//   exact recipes       ExactKernel          pack_blocks(p)         always (exact_kernel.h)
//
// of an append:
//
//   quantized recipes   PackKernel           pack_blocks(p)         kAppend
//   exact recipes       ExactKernel          pack_blocks(p)
//   all                 AdvanceKernel        batch                  lengths (advance_kernel.h)
//
// Grids have one dimension (x), blocks kThreads threads and kSharedBytes bytes of shared memory, run(const QuantizeParams&)
// is the body; kBlocks (blocks of a multiprocessor) is meant for __launch_bounds__. A grid is at least 1.
#pragma once

#include <cstdint>
#include <iterator>

#include "gpu/quantize/params.h"

namespace clary::gpu {

struct QuantizeConfig {
    int dim, dim_v;  // padded head dims of Q and K, of V
};

// What a PackKernel is for: any problem; those whose operands are whole(); the new keys of an append; nothing is packed, but
// what scales of a whole head need is found, by a block for each.
enum class PackKind { kAny, kWhole, kAppend, kMeasure };

inline constexpr QuantizeConfig kQuantizeConfigs[] = {{32, 32},   {64, 64},   {96, 96},  {128, 128},
                                                      {192, 192}, {256, 256}, {192, 128}};

// Index into kQuantizeConfigs; -1: no kernel takes these head dims.
inline int find_quantize_config(const AttentionDesc& desc) {
    const auto [dim, dim_v] = padded_dims_mma(desc);
    for (int i = 0; i < static_cast<int>(std::size(kQuantizeConfigs)); ++i)
        if (kQuantizeConfigs[i].dim == dim && kQuantizeConfigs[i].dim_v == dim_v) return i;
    return -1;
}

// Whether the kernels know the recipe: integer Q and K, or 16-bit exact.
inline bool quantizes(const Recipe& recipe) {
    const bool integer = recipe.qk == Format::kInt8 || recipe.qk == Format::kInt4;
    if (integer) return recipe.pv != Format::kFp4 && !recipe.smooth_q_block;
    return (recipe.qk == Format::kFp16 || recipe.qk == Format::kBf16) && recipe.pv == recipe.qk;
}

// A block packs this many rows of a head of Q, or keys of a head of K and V (one tile or two).
inline constexpr int kSlab = 128;
inline constexpr int kLongestRun = 16;      // of slabs that a block packs one after the other
inline constexpr int kWholeHead = 1 << 30;  // of slabs that it measures
inline bool spans_heads(const QuantizeParams& p) { return p.q_amax != nullptr || p.k_amax != nullptr; }

CLARY_HD inline int64_t q_slabs(const QuantizeParams& p) {  // of a head
    return p.q_codes != nullptr ? (p.desc.q_len + kSlab - 1) / kSlab : 0;
}
CLARY_HD inline int64_t kv_slabs(const QuantizeParams& p) {
    if (p.append) return (p.desc.kv_len + p.kv_rows.tile - 1 + kSlab - 1) / kSlab;  // behind any length
    return p.k_codes != nullptr ? ((p.kv_rows.varlen ? p.desc.kv_len : p.kv_rows.rows) + kSlab - 1) / kSlab : 0;
}
// Blocks for the slabs of a head.
CLARY_HD inline int64_t runs(int64_t slabs, int run) { return (slabs + run - 1) / run; }

inline int64_t pack_blocks(const QuantizeParams& p) {
    const int64_t blocks =
        p.desc.batch * (p.desc.kv_heads * runs(kv_slabs(p), p.run) + p.desc.q_heads * runs(q_slabs(p), p.run));
    return blocks > 0 ? blocks : 1;  // the first block also writes headers and lengths
}
// 16-byte loads of a row: runs of 8 channels that exist as a whole, all aligned.
CLARY_HD inline bool loads_whole_runs(const Operand& operand, int64_t head_dim) {
    const int64_t size = dtype_size(operand.dtype);
    const int64_t strides = operand.batch_stride | operand.head_stride | operand.token_stride;
    return operand.dim_stride == 1 && head_dim % 8 == 0 && strides * size % 16 == 0 &&
           reinterpret_cast<uintptr_t>(operand.data) % 16 == 0;
}
// 16-bit operands in such runs, of head dims that are not padded, not in pages.
inline bool whole(const QuantizeParams& p) {
    const AttentionDesc& desc = p.desc;
    const auto is_whole = [](const Operand& operand, int64_t dim) {
        return operand.dtype != DType::kF32 && loads_whole_runs(operand, dim);
    };
    const PaddedDims padded = padded_dims_mma(desc);
    return desc.page_size == 0 && padded.qk == desc.head_dim && padded.v == desc.head_dim_v &&
           (p.q_codes == nullptr || is_whole(desc.q, desc.head_dim)) &&
           (p.k_codes == nullptr || (is_whole(desc.k, desc.head_dim) && is_whole(desc.v, desc.head_dim_v)));
}
// Slabs of a run: as many as leave some 130 multiprocessors twice the blocks that they hold at once.
inline int32_t long_run(const QuantizeParams& p) {
    const int64_t enough_blocks = 65536 / padded_dims_mma(p.desc).qk;
    return static_cast<int32_t>(clamp(pack_blocks(p) / enough_blocks, 1, kLongestRun));
}

inline int64_t channel_blocks(const QuantizeParams& p) {
    const int64_t blocks = p.desc.batch * p.desc.kv_heads * kv_slabs(p);
    return blocks > 0 ? blocks : 1;
}
// Two for a kv head: one for K and V, one for the queries.
inline int64_t statistics_blocks(const QuantizeParams& p) {
    const int64_t blocks = p.desc.batch * p.desc.kv_heads * 2;
    return blocks > 0 ? blocks : 1;
}

}  // namespace clary::gpu
