// SPDX-License-Identifier: Apache-2.0
// Quantize, append, attend and merge on a GPU: which kernels a problem needs, their parameters, their launches; the same
// for every vendor. A Backend B is a struct of
//
//   Runtime                       for gpu/host/launch.h
//   Arch                          has name, shared_bytes (that a block may use)
//   AttentionEntry                has pv, config, kernel
//   kEverywhere                   the recipes whose products every arch has
//   machine(arch)                 its instructions
//   attention(arch), quantize(arch)   lists of pointers to AttentionEntry and QuantizeEntry
//   shared_bytes(arch, entry)     of a block of an attention kernel; 0 where arch lacks the products
//   merge_stage(arch), combine_stage(arch)
//   overlaps(arch)                whether a kernel may start before the one ahead has ended
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/kernel_table.h"
#include "core/merge.h"
#include "gpu/arrangement.h"
#include "gpu/attention/configs.h"
#include "gpu/combine/combine_kernel.h"
#include "gpu/combine/merge_kernel.h"
#include "gpu/host/launch.h"
#include "gpu/quantize/configs.h"

namespace clary::gpu {

template <class B>
class Phases {
    using Arch = typename B::Arch;
    using AttentionEntry = typename B::AttentionEntry;
    using Runtime = typename B::Runtime;
    using Guard = DeviceGuard<Runtime>;

  public:
    // "" where the kernels for `arch` take the problem, else the argument, its value and what is allowed.
    static std::string refusal(const Arch& arch, const AttentionDesc& desc) {
        const Recipe& r = desc.recipe;
        for (const auto& [name, dim] : {std::pair{"q: head_dim", desc.head_dim}, {"v: head_dim", desc.head_dim_v}})
            if (dim > 256) return fmt::format("{} {}; allowed: 1..256", name, dim);
        if (desc.kv_len > kMaxKeys) return fmt::format("k: {} keys; allowed: up to {}", desc.kv_len, kMaxKeys);
        if (desc.q_len > kMaxKeys / desc.q_heads_per_kv())
            return fmt::format("q: {} queries of {} heads for each kv head; allowed: up to {} together", desc.q_len,
                               desc.q_heads_per_kv(), kMaxKeys);
        if (r.smooth_q_block) return "recipe: smooth_q_block; allowed: smooth_q";
        if (dims_text(arch, r).empty())
            return fmt::format("recipe: {} with accum={} has no kernel in this build; allowed: {}", recipe_name(r),
                               accumulator_name(r.accumulator),
                               sums_for(r.accumulator) == Sums::kWide ? "another recipe" : "accum=fp32");
        const numerics::TileFamily& family = tile_family(r.family);
        if (r.quantized() && family.block_k > r.tile && r.granularity != numerics::Granularity::kPerToken)
            return fmt::format("recipe: scale groups of {} keys with tile={}; allowed: tile={}", family.block_k, r.tile,
                               family.block_k);
        const AttentionEntry* const attention = find_attention(arch, desc);
        const QuantizeEntry* const quantization = find_quantize(arch, desc);
        if (attention == nullptr || quantization == nullptr || !quantizes(r))
            return fmt::format(
                "q, v: head_dim {} and {}; allowed for {} with accum={} in this build, after padding: {}",
                desc.head_dim, desc.head_dim_v, recipe_name(r), accumulator_name(r.accumulator), dims_text(arch, r));
        if (r.quantized() && r.granularity == numerics::Granularity::kPerTensor &&
            quantization->measure.kernel.function == nullptr)
            return "recipe: granularity=per_tensor; allowed: fine, per_token, per_thread, per_warp, per_block";
        if (fits(arch, *attention)) return "";
        if (B::shared_bytes(arch, *attention) == 0)
            return fmt::format("recipe: {} needs products that {} does not have; allowed: {}", recipe_name(r),
                               arch.name, B::kEverywhere);
        AttentionDesc smaller = desc;
        smaller.recipe.tile = 64;
        const AttentionEntry* const other = find_attention(arch, smaller);
        const bool helps = r.quantized() && r.tile > 64 && other != nullptr && fits(arch, *other);
        return fmt::format(
            "recipe: {} with tile={} and head_dim {}/{} needs {} KiB of shared memory; allowed on {}: {}",
            recipe_name(r), r.tile, desc.head_dim, desc.head_dim_v, (B::shared_bytes(arch, *attention) + 1023) / 1024,
            arch.name, helps ? "tile=64" : "smaller head dims");
    }

    // Of a problem without refusal. Buffers, workspace and tensors lie on the desc's device; everything runs on
    // call.stream. Meanings: KernelRow.
    static Status quantize(const Arch& arch, const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv,
                           const void* ready) {
        const AttentionDesc& desc = call.desc;
        const Guard guard(desc.device_index);
        CLARY_RETURN_IF_ERROR(guard.status());
        const QuantizeEntry& kernels = *find_quantize(arch, desc);
        QuantizeParams params =
            quantize_params(desc, kv_capacity, packed_q, packed_kv, ready, arrangement_of(B::machine(arch)));
        if (!desc.recipe.quantized()) return run(kernels.exact, call, pack_blocks(params), params);
        if (packed_kv != nullptr) {
            CLARY_RETURN_IF_ERROR(run(kernels.statistics, call, statistics_blocks(params), params));
            if (desc.recipe.v_scale == VScale::kChannel)
                CLARY_RETURN_IF_ERROR(
                    run(kernels.channel_scale, call, channel_blocks(params), params, B::overlaps(arch)));
        }
        if (spans_heads(params)) {
            QuantizeParams heads = params;
            heads.run = kWholeHead;
            CLARY_RETURN_IF_ERROR(run(kernels.measure, call, pack_blocks(heads), heads));
        }
        const bool is_whole =
            whole(params) && B::machine(arch).async_copies && kernels.pack_whole.shared_bytes <= shared_limit(arch);
        if (is_whole) params.run = long_run(params);
        // Behind the kernels above, which let it start.
        return run(is_whole ? kernels.pack_whole : kernels.pack, call, pack_blocks(params), params,
                   packed_kv != nullptr && B::overlaps(arch));
    }

    static Status append(const Arch& arch, const Call& call, int64_t kv_capacity, void* packed_kv) {
        const AttentionDesc& desc = call.desc;
        const Guard guard(desc.device_index);
        CLARY_RETURN_IF_ERROR(guard.status());
        const QuantizeEntry& kernels = *find_quantize(arch, desc);
        const QuantizeParams params = append_params(desc, kv_capacity, packed_kv, arrangement_of(B::machine(arch)));
        const Stage& pack = desc.recipe.quantized() ? kernels.append : kernels.exact;
        CLARY_RETURN_IF_ERROR(run(pack, call, pack_blocks(params), params));
        return run(kernels.advance, call, desc.batch, params);
    }

    static Status attend(const Arch& arch, const Call& call, int64_t kv_capacity, const void* packed_q,
                         const void* packed_kv) {
        const AttentionDesc& desc = call.desc;
        const Guard guard(desc.device_index);
        CLARY_RETURN_IF_ERROR(guard.status());
        const AttentionEntry& entry = *find_attention(arch, desc);
        AttentionParams params =
            attention_params(desc, kv_capacity, packed_q, packed_kv, arrangement_of(B::machine(arch)));
        const int pieces = pieces_of(desc);
        if (pieces > 1) split_into(&params, pieces, call.workspace);
        CLARY_RETURN_IF_ERROR(launch<Runtime>(entry.kernel, desc.device_index,
                                              attention_blocks(params, entry.config.tile_q),
                                              B::shared_bytes(arch, entry), &params, call.stream, false));
        if (pieces == 1) return Status::ok();
        return run(B::combine_stage(arch), call, combine_blocks(params), params, B::overlaps(arch));
    }
    // Bytes that attend() needs; the others need none.
    static int64_t workspace(const AttentionDesc& desc) { return split_bytes(desc, pieces_of(desc)); }

    // Dense views on GPU `device`.
    static Status merge(const Arch& arch, const MergeViews& views, int32_t device, void* stream) {
        const Guard guard(device);
        CLARY_RETURN_IF_ERROR(guard.status());
        const Stage& stage = B::merge_stage(arch);
        return launch<Runtime>(stage.kernel, device, merge_blocks(views, B::machine(arch).lanes), stage.shared_bytes,
                               &views, stream, false);
    }

  private:
    static constexpr int64_t kMaxKeys = 0x7fff0000;  // kernels count keys and rows in int

    template <class Params>
    static Status run(const Stage& stage, const Call& call, int64_t blocks, const Params& params,
                      bool overlaps = false) {
        return launch<Runtime>(stage.kernel, call.desc.device_index, blocks, stage.shared_bytes, &params, call.stream,
                               overlaps);
    }
    // The least general kernel that serves. Null: none.
    static const AttentionEntry* find_attention(const Arch& arch, const AttentionDesc& desc) {
        const AttentionEntry* found = nullptr;
        for (const AttentionEntry* entry : B::attention(arch))
            if (entry->pv == desc.recipe.pv && serves(entry->config, desc) &&
                (found == nullptr || generality(entry->config) < generality(found->config)))
                found = entry;
        return found;
    }
    static const QuantizeEntry* find_quantize(const Arch& arch, const AttentionDesc& desc) {
        const int index = find_quantize_config(desc);
        if (index < 0) return nullptr;
        const QuantizeConfig& wanted = kQuantizeConfigs[index];
        for (const QuantizeEntry* entry : B::quantize(arch))
            if (entry->config.dim == wanted.dim && entry->config.dim_v == wanted.dim_v) return entry;
        return nullptr;
    }
    static bool fits(const Arch& arch, const AttentionEntry& entry) {
        const uint32_t bytes = B::shared_bytes(arch, entry);
        return bytes > 0 && bytes <= shared_limit(arch);
    }
    static uint32_t shared_limit(const Arch& arch) {
        return std::min(arch.shared_bytes, B::machine(arch).shared_bytes);
    }
    // Of the kernels for the recipe's formats and sums.
    static std::string dims_text(const Arch& arch, const Recipe& recipe) {
        std::string text;
        for (const AttentionEntry* entry : B::attention(arch)) {
            const AttentionConfig& c = entry->config;
            if (entry->pv != recipe.pv || c.qk != element_of(recipe.qk) || c.sums != sums_for(recipe.accumulator))
                continue;
            const std::string pair = fmt::format("{}/{}", c.head_dim, c.head_dim_v);
            if (text.find(pair) == std::string::npos) text += (text.empty() ? "" : ", ") + pair;
        }
        return text;
    }
};

}  // namespace clary::gpu
