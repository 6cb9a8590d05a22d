// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "cuda/device.h"
#include "cuda/sm90/entries.h"
#include "cuda/sm90/tensor_maps.h"
#include "gpu/attention/configs.h"

namespace clary::cuda::sm90 {
namespace {

constexpr int64_t kMaxRows = 0x7fffffff;  // kernels and tensor maps count rows in int

const Entry* find(const AttentionDesc& desc) {
    const auto [dim, dim_v] = padded_dims_mma(desc);
    for (const auto& unit : entries())
        for (const Entry& entry : unit)
            if (entry.config.v == gpu::element_of(desc.recipe.pv) && entry.config.head_dim == dim &&
                entry.config.head_dim_v == dim_v && entry.config.key_bias == desc.recipe.key_bias() &&
                entry.config.want_lse == desc.want_lse)
                return &entry;
    return nullptr;
}

Status attribute(int& value, cudaDeviceAttr which, int device) {
    return status_of(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
}

}  // namespace

std::string refusal(const AttentionDesc& desc) {
    const Recipe& r = desc.recipe;
    const Entry* const entry = find(desc);
    if (entry == nullptr)
        return fmt::format("q, v: head_dim {} and {}; allowed: the wider one 33..{}", desc.head_dim, desc.head_dim_v,
                           gpu::element_bits(gpu::element_of(r.pv)) == 8 ? 256 : 128);
    if (entry->config.stores_directly() && dtype_size(desc.out.dtype) != 2)
        return fmt::format("out: dtype {} at head_dim {}; allowed there: fp16, bf16", dtype_name(desc.out.dtype),
                           desc.head_dim);
    if (gpu::sums_for(r.accumulator) != gpu::Sums::kWide)
        return fmt::format("recipe: accum={}; allowed: {}", accumulator_name(r.accumulator),
                           r.pv == Format::kFp8 ? "fp32, fp32_fp32" : "fp32");
    if (r.tile != kTileK) return fmt::format("recipe: tile={}; allowed: {}", r.tile, kTileK);
    if (desc.biased()) return "mask, alibi_slopes: given; allowed: none";
    if (gpu::needs_of(desc).key_scales != gpu::KeyScales::kLane && !entry->config.scales_keys())
        return "recipe: granularity=per_token; allowed: fine, per_thread, per_warp, per_block";
    if (r.v_scale == VScale::kChannelTile) return "recipe: v_scale=channel_tile; allowed: token, channel";
    if (desc.q_heads_per_kv() > kGroupRows)
        return fmt::format("q: {} heads for each kv head; allowed: up to {}", desc.q_heads_per_kv(), kGroupRows);
    if (desc.batch == 0 || desc.q_tokens == 0 || desc.kv_tokens == 0) return "q, k: of 0 tokens; allowed: some";
    const int64_t heads = desc.batch * desc.kv_heads;
    const int64_t rows =
        std::max(heads * (packed_kv_rows(desc, 0).rows + kTileK), desc.batch * desc.q_heads * desc.q_len);
    if (rows > kMaxRows / 2) return fmt::format("q, k: {} rows of all heads; allowed: up to {}", rows, kMaxRows / 2);
    return "";
}

Status attend(const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
    const AttentionDesc& desc = call.desc;
    const DeviceGuard guard(desc.device_index);
    CLARY_RETURN_IF_ERROR(guard.status());
    const Entry& entry = *find(desc);
    int processors = 0, l2_bytes = 0;
    CLARY_RETURN_IF_ERROR(attribute(processors, cudaDevAttrMultiProcessorCount, desc.device_index));
    CLARY_RETURN_IF_ERROR(attribute(l2_bytes, cudaDevAttrL2CacheSize, desc.device_index));
    Params params;
    params.attention = gpu::attention_params(desc, kv_capacity, packed_q, packed_kv);
    CLARY_RETURN_IF_ERROR(prepare(params, processors, l2_bytes));
    return gpu::launch<Runtime>(entry.kernel, desc.device_index, params.schedule.blocks, entry.shared_bytes, &params,
                                call.stream, false);
}

}  // namespace clary::cuda::sm90
