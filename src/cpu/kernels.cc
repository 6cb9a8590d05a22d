// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"

#include <fmt/format.h>

#include "cpu/attend.h"
#include "cpu/isa.h"
#include "cpu/quantize.h"

namespace clary::cpu {
namespace {

constexpr int64_t kMaxQuantizedHeadDim = 256;  // above it the exact recipe serves

std::string supports(const AttentionDesc& desc) {
    const Recipe& r = desc.recipe;
    if (!r.quantized()) return "";
    for (const auto& [name, dim] : {std::pair{"q: head_dim", desc.head_dim}, {"v: head_dim", desc.head_dim_v}})
        if (dim > kMaxQuantizedHeadDim)
            return fmt::format("{} {}; allowed: 1..{}, or the recipe fp32_fp32", name, dim, kMaxQuantizedHeadDim);
    if (r.smooth_q_block) return "recipe: smooth_q_block; allowed: smooth_q";
    if (r.accumulator != Accumulator::kFp32)
        return fmt::format("recipe: accum={}; allowed: fp32", accumulator_name(r.accumulator));
    const numerics::TileFamily& family = tile_family(r.family);
    if (r.granularity == numerics::Granularity::kPerTensor)
        return "recipe: granularity=per_tensor; allowed: fine, per_token, per_thread, per_warp, per_block";
    if (family.block_k > r.tile && r.granularity != numerics::Granularity::kPerToken)
        return fmt::format("recipe: scale groups of {} keys with tile={}; allowed: tile={}", family.block_k, r.tile,
                           family.block_k);
    return "";
}

template <const Tier& (*kTierOf)()>
struct Row {
    static std::string usable() { return tier_unusable(kTierOf().name); }
    static int64_t workspace(const AttentionDesc& desc, const Context& context) {
        return std::max(attend_workspace(kTierOf(), desc, context), quantize_workspace(kTierOf(), desc, context));
    }
    static Status quantize(const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv, const void* ready) {
        return cpu::quantize(kTierOf(), call, kv_capacity, packed_q, packed_kv, ready);
    }
    static Status attend(const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
        return cpu::attend(kTierOf(), call, kv_capacity, packed_q, packed_kv);
    }
    static Status append(const Call& call, int64_t kv_capacity, void* packed_kv) {
        return cpu::append(kTierOf(), call, kv_capacity, packed_kv);
    }
    static constexpr KernelRow row(const char* name, const char* arch, Format qk, Format pv) {
        return {.name = name,
                .backend = "cpu",
                .arch = arch,
                .qk = qk,
                .pv = pv,
                .usable = usable,
                .supports = supports,
                .q_layout = packed_q_layout,
                .kv_layout = packed_kv_layout,
                .workspace = workspace,
                .quantize = quantize,
                .attend = attend,
                .append = append,
                .attention = nullptr,
                .pieces = attend_pieces};
    }
};

#define CLARY_CPU_ROWS(tier)                                                                   \
    Row<tier##_tier>::row("cpu_" #tier "_int8_int8", #tier, Format::kInt8, Format::kInt8),     \
        Row<tier##_tier>::row("cpu_" #tier "_int8_fp16", #tier, Format::kInt8, Format::kFp16), \
        Row<tier##_tier>::row("cpu_" #tier "_int8_bf16", #tier, Format::kInt8, Format::kBf16), \
        Row<tier##_tier>::row("cpu_" #tier "_fp32_fp32", #tier, Format::kFp32, Format::kFp32)

constexpr KernelRow kRows[] = {
#if defined(__x86_64__)
    CLARY_CPU_ROWS(amx), CLARY_CPU_ROWS(avx512), CLARY_CPU_ROWS(avxvnni), CLARY_CPU_ROWS(avx2),
#elif defined(__aarch64__)
    CLARY_CPU_ROWS(neon),
#endif
    CLARY_CPU_ROWS(generic)};

}  // namespace

KernelTable kernels() { return kRows; }

}  // namespace clary::cpu
