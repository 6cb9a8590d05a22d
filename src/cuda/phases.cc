// SPDX-License-Identifier: Apache-2.0
#include "cuda/phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cuda/device.h"
#include "cuda/entries.h"
#include "gpu/attention/configs.h"
#include "gpu/combine/combine_kernel.h"
#include "gpu/combine/merge_kernel.h"

namespace clary::cuda {
namespace {

constexpr int64_t kMaxKeys = 0x7fff0000;  // kernels count keys and rows in int

// The least general kernel that serves. Null: none.
const AttentionEntry* find_attention(const AttentionDesc& desc) {
    const AttentionEntry* found = nullptr;
    for (const auto& unit : attention_entries())
        for (const AttentionEntry& entry : unit)
            if (entry.pv == desc.recipe.pv && gpu::serves(entry.config, desc) &&
                (found == nullptr || gpu::generality(entry.config) < gpu::generality(found->config)))
                found = &entry;
    return found;
}

const QuantizeEntry* find_quantize(const AttentionDesc& desc) {
    const int index = gpu::find_quantize_config(desc);
    if (index < 0) return nullptr;
    const gpu::QuantizeConfig& wanted = gpu::kQuantizeConfigs[index];
    for (const QuantizeEntry* entry : quantize_entries())
        if (entry->config.dim == wanted.dim && entry->config.dim_v == wanted.dim_v) return entry;
    return nullptr;
}

uint32_t shared_bytes(const Arch& arch, const AttentionEntry& entry) {
    return entry.shared_on(machine_of(arch.capability));
}
bool fits(const Arch& arch, const AttentionEntry& entry) {
    const uint32_t bytes = shared_bytes(arch, entry);
    return bytes > 0 && bytes <= std::min(arch.shared_bytes, machine_of(arch.capability).shared_bytes);
}

// Of the kernels for the recipe's formats and sums.
std::string dims_text(const Recipe& recipe) {
    std::string text;
    for (const auto& unit : attention_entries()) {
        const gpu::AttentionConfig& c = unit.front().config;
        if (unit.front().pv != recipe.pv || c.qk != gpu::element_of(recipe.qk) ||
            c.sums != gpu::sums_for(recipe.accumulator))
            continue;
        const std::string pair = fmt::format("{}/{}", c.head_dim, c.head_dim_v);
        if (text.find(pair) == std::string::npos) text += (text.empty() ? "" : ", ") + pair;
    }
    return text;
}

}  // namespace

std::string refusal(const Arch& arch, const AttentionDesc& desc) {
    const Recipe& r = desc.recipe;
    for (const auto& [name, dim] : {std::pair{"q: head_dim", desc.head_dim}, {"v: head_dim", desc.head_dim_v}})
        if (dim > 256) return fmt::format("{} {}; allowed: 1..256", name, dim);
    if (desc.kv_len > kMaxKeys) return fmt::format("k: {} keys; allowed: up to {}", desc.kv_len, kMaxKeys);
    if (desc.q_len > kMaxKeys / desc.q_heads_per_kv())
        return fmt::format("q: {} queries of {} heads for each kv head; allowed: up to {} together", desc.q_len,
                           desc.q_heads_per_kv(), kMaxKeys);
    if (r.smooth_q_block) return "recipe: smooth_q_block; allowed: smooth_q";
    if (dims_text(r).empty())
        return fmt::format("recipe: {} with accum={} has no kernel in this build; allowed: {}", recipe_name(r),
                           accumulator_name(r.accumulator),
                           r.accumulator == Accumulator::kFp32 ? "another recipe" : "accum=fp32");
    const numerics::TileFamily& family = tile_family(r.family);
    if (r.quantized() && family.block_k > r.tile && r.granularity != numerics::Granularity::kPerToken)
        return fmt::format("recipe: scale groups of {} keys with tile={}; allowed: tile={}", family.block_k, r.tile,
                           family.block_k);
    const AttentionEntry* const attention = find_attention(desc);
    if (attention == nullptr || find_quantize(desc) == nullptr || !gpu::quantizes(r))
        return fmt::format("q, v: head_dim {} and {}; allowed for {} with accum={} in this build, after padding: {}",
                           desc.head_dim, desc.head_dim_v, recipe_name(r), accumulator_name(r.accumulator),
                           dims_text(r));
    if (fits(arch, *attention)) return "";
    if (shared_bytes(arch, *attention) == 0)
        return fmt::format("recipe: {} needs products that {} does not have; allowed: int8_int8, int8_fp16, fp16_fp16",
                           recipe_name(r), arch.name);
    AttentionDesc smaller = desc;
    smaller.recipe.tile = 64;
    const AttentionEntry* const other = find_attention(smaller);
    const bool helps = r.quantized() && r.tile > 64 && other != nullptr && fits(arch, *other);
    return fmt::format("recipe: {} with tile={} and head_dim {}/{} needs {} KiB of shared memory; allowed on {}: {}",
                       recipe_name(r), r.tile, desc.head_dim, desc.head_dim_v,
                       (shared_bytes(arch, *attention) + 1023) / 1024, arch.name,
                       helps ? "tile=64" : "smaller head dims");
}

Status quantize(const Arch& arch, const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv,
                const void* ready) {
    const AttentionDesc& desc = call.desc;
    const DeviceGuard guard(desc.device_index);
    CLARY_RETURN_IF_ERROR(guard.status());
    const QuantizeEntry& kernels = *find_quantize(desc);
    gpu::QuantizeParams params = gpu::quantize_params(desc, kv_capacity, packed_q, packed_kv, ready);
    const auto run = [&](const QuantizeEntry::Stage& stage, int64_t blocks, bool overlaps = false) {
        return launch(stage.kernel, desc.device_index, blocks, stage.shared_bytes, &params, call.stream, overlaps);
    };
    if (!desc.recipe.quantized()) return run(kernels.exact, gpu::pack_blocks(params));
    if (packed_kv != nullptr) {
        CLARY_RETURN_IF_ERROR(run(kernels.statistics, gpu::statistics_blocks(params)));
        if (desc.recipe.v_scale == VScale::kChannel)
            CLARY_RETURN_IF_ERROR(run(kernels.channel_scale, gpu::channel_blocks(params)));
    }
    if (gpu::spans_heads(params)) {
        gpu::QuantizeParams heads = params;
        heads.run = gpu::kWholeHead;
        const QuantizeEntry::Stage& measure = kernels.measure;
        CLARY_RETURN_IF_ERROR(launch(measure.kernel, desc.device_index, gpu::pack_blocks(heads), measure.shared_bytes,
                                     &heads, call.stream));
    }
    const gpu::Machine machine = machine_of(arch.capability);
    const bool whole = gpu::whole(params) && machine.async_copies &&
                       kernels.pack_whole.shared_bytes <= std::min(arch.shared_bytes, machine.shared_bytes);
    if (whole) params.run = gpu::long_run(params);
    // Behind the kernels above, which let it start.
    return run(whole ? kernels.pack_whole : kernels.pack, gpu::pack_blocks(params),
               packed_kv != nullptr && arch.capability >= 90);
}

Status append(const Arch&, const Call& call, int64_t kv_capacity, void* packed_kv) {
    const AttentionDesc& desc = call.desc;
    const DeviceGuard guard(desc.device_index);
    CLARY_RETURN_IF_ERROR(guard.status());
    const QuantizeEntry& kernels = *find_quantize(desc);
    const gpu::QuantizeParams params = gpu::append_params(desc, kv_capacity, packed_kv);
    const QuantizeEntry::Stage& pack = desc.recipe.quantized() ? kernels.append : kernels.exact;
    CLARY_RETURN_IF_ERROR(
        launch(pack.kernel, desc.device_index, gpu::pack_blocks(params), pack.shared_bytes, &params, call.stream));
    return launch(kernels.advance.kernel, desc.device_index, desc.batch, kernels.advance.shared_bytes, &params,
                  call.stream);
}

Status attend(const Arch& arch, const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
    const AttentionDesc& desc = call.desc;
    const DeviceGuard guard(desc.device_index);
    CLARY_RETURN_IF_ERROR(guard.status());
    const AttentionEntry& entry = *find_attention(desc);
    gpu::AttentionParams params = gpu::attention_params(desc, kv_capacity, packed_q, packed_kv);
    const int pieces = gpu::pieces_of(desc);
    if (pieces > 1) gpu::split_into(&params, pieces, call.workspace);
    CLARY_RETURN_IF_ERROR(launch(entry.kernel, desc.device_index, gpu::attention_blocks(params, entry.config.tile_q),
                                 shared_bytes(arch, entry), &params, call.stream));
    if (pieces == 1) return Status::ok();
    return launch(combine_kernel, desc.device_index, gpu::combine_blocks(params), combine_shared_bytes, &params,
                  call.stream, arch.capability >= 90);
}

int64_t workspace(const AttentionDesc& desc) { return gpu::split_bytes(desc, gpu::pieces_of(desc)); }

Status merge(const MergeViews& views, int32_t device, void* stream) {
    const DeviceGuard guard(device);
    CLARY_RETURN_IF_ERROR(guard.status());
    return launch(merge_kernel, device, gpu::merge_blocks(views, 32), 0, &views, stream);
}

}  // namespace clary::cuda
