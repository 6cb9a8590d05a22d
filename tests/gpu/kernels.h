// SPDX-License-Identifier: Apache-2.0
// The attention kernels that the simulator runs in these tests: one table, from which kernels_part.cc is compiled in
// parts. A new line here is compiled, run on the case list, drawn into the cover and, where it is sm80 at head dim 64,
// into the full cross.
#pragma once

#include <array>
#include <vector>

#include "core/recipe.h"
#include "gpu/attention/configs.h"
#include "sim/launch.h"

namespace clary::cases {

// What a kernel is compiled for beyond formats, head dims and tile. "Masked" is AttentionConfig::biased.
enum class Variant { kPlain, kBias, kMasked, kBiasMasked, kBiasToken };
inline constexpr Variant kVariants[] = {Variant::kPlain, Variant::kBias, Variant::kMasked, Variant::kBiasMasked,
                                        Variant::kBiasToken};

struct KernelEntry {
    gpu::Machine machine{};
    gpu::AttentionNeeds needs{};
};

constexpr KernelEntry entry(const gpu::Machine& machine, RecipeFormats formats, int dim, int dim_v, int tile,
                            Variant variant, gpu::Sums sums = gpu::Sums::kWide) {
    const bool masked = variant == Variant::kMasked || variant == Variant::kBiasMasked;
    const bool exact = gpu::element_of(formats.qk) != gpu::Element::kS8;
    return {machine,
            {.qk = gpu::element_of(formats.qk),
             .v = gpu::element_of(formats.pv),
             .head_dim = dim,
             .head_dim_v = dim_v,
             .tile_k = tile,
             .key_bias = variant != Variant::kPlain && variant != Variant::kMasked,
             .key_scales = exact                                      ? gpu::KeyScales::kNone
                           : masked || variant == Variant::kBiasToken ? gpu::KeyScales::kKey
                                                                      : gpu::KeyScales::kLane,
             .biased = masked,
             .sums = sums}};
}

// Which of them there is any use for: exact recipes have no digits and no tiles of their own; 8-bit V leaves scores with a
// K scale per token to the masked kernel.
constexpr bool is_variant(RecipeFormats formats, int tile, Variant variant) {
    const bool exact = gpu::element_of(formats.qk) != gpu::Element::kS8;
    if (exact) return tile == 64 && (variant == Variant::kPlain || variant == Variant::kMasked);
    return variant != Variant::kBiasToken || gpu::element_bits(gpu::element_of(formats.pv)) == 16;
}

// Sums of fp16 have kernels for two head dims, those of 16-bit V in steps of 64 keys.
constexpr bool has_sums(RecipeFormats formats, int dim, int dim_v, int tile, Variant variant, gpu::Sums sums) {
    if (sums == gpu::Sums::kWide) return true;
    if (gpu::element_of(formats.qk) != gpu::Element::kS8 || dim != dim_v || (dim != 64 && dim != 128)) return false;
    if (formats.pv == Format::kFp8) return sums == gpu::Sums::kHalf;
    return formats.pv == Format::kFp16 && tile == 64 && variant != Variant::kBias;
}

inline constexpr RecipeFormats kInt8Int8{Format::kInt8, Format::kInt8}, kInt8Fp16{Format::kInt8, Format::kFp16},
    kInt8Bf16{Format::kInt8, Format::kBf16}, kInt8Fp8{Format::kInt8, Format::kFp8},
    kFp16Fp16{Format::kFp16, Format::kFp16}, kBf16Bf16{Format::kBf16, Format::kBf16};
inline constexpr RecipeFormats kGpuRecipes[] = {kInt8Int8, kInt8Fp16, kInt8Bf16, kInt8Fp8, kFp16Fp16, kBf16Bf16};

struct KernelTable {
    std::array<KernelEntry, 160> entries{};
    size_t count = 0;

    constexpr void add(const gpu::Machine& machine, RecipeFormats formats, int dim, int dim_v, int tile,
                       Variant variant, gpu::Sums sums = gpu::Sums::kWide) {
        entries[count++] = entry(machine, formats, dim, dim_v, tile, variant, sums);
    }
};

// Everything on sm80 at head dim 64; beyond it every pair of machine, recipe, head dims, tile and variant that can be
// (tests/gpu/cover_test.cc counts them).
inline constexpr KernelTable kTable = [] {
    KernelTable list;
    for (const RecipeFormats& formats : kGpuRecipes)
        for (const int tile : {64, 128})
            for (const Variant variant : kVariants)
                if (is_variant(formats, tile, variant) && formats.pv != Format::kFp8)
                    list.add(gpu::kSm80, formats, 64, 64, tile, variant);
    list.add(gpu::kSm75, kInt8Int8, 32, 32, 64, Variant::kPlain);
    list.add(gpu::kSm75, kInt8Int8, 64, 64, 64, Variant::kPlain);
    list.add(gpu::kSm75, kInt8Int8, 96, 96, 128, Variant::kMasked);
    list.add(gpu::kSm75, kInt8Int8, 192, 128, 64, Variant::kBiasMasked);
    list.add(gpu::kSm75, kInt8Int8, 192, 192, 64, Variant::kMasked);
    list.add(gpu::kSm75, kInt8Fp16, 32, 32, 64, Variant::kBiasToken);
    list.add(gpu::kSm75, kInt8Fp16, 96, 96, 64, Variant::kBiasToken);
    list.add(gpu::kSm75, kInt8Fp16, 128, 128, 64, Variant::kBias);
    list.add(gpu::kSm75, kFp16Fp16, 32, 32, 64, Variant::kPlain);
    list.add(gpu::kSm80, kInt8Int8, 32, 32, 64, Variant::kBiasMasked);
    list.add(gpu::kSm80, kInt8Int8, 128, 128, 64, Variant::kBias);
    list.add(gpu::kSm80, kInt8Int8, 128, 128, 64, Variant::kBiasMasked);
    list.add(gpu::kSm80, kInt8Int8, 192, 192, 64, Variant::kBiasMasked);
    list.add(gpu::kSm80, kInt8Int8, 192, 192, 128, Variant::kPlain);
    list.add(gpu::kSm80, kInt8Int8, 256, 256, 64, Variant::kPlain);
    list.add(gpu::kSm80, kInt8Int8, 256, 256, 128, Variant::kBias);
    list.add(gpu::kSm80, kInt8Fp16, 192, 128, 64, Variant::kBiasToken);
    list.add(gpu::kSm80, kInt8Fp16, 192, 128, 128, Variant::kPlain);
    list.add(gpu::kSm80, kInt8Fp16, 256, 256, 64, Variant::kMasked);
    list.add(gpu::kSm80, kInt8Fp16, 256, 256, 64, Variant::kBiasToken);
    list.add(gpu::kSm80, kInt8Bf16, 96, 96, 64, Variant::kBiasMasked);
    list.add(gpu::kSm80, kInt8Bf16, 192, 192, 64, Variant::kBias);
    list.add(gpu::kSm80, kInt8Bf16, 256, 256, 64, Variant::kBiasMasked);
    list.add(gpu::kSm80, kFp16Fp16, 128, 128, 64, Variant::kPlain);
    list.add(gpu::kSm80, kFp16Fp16, 192, 128, 64, Variant::kMasked);
    list.add(gpu::kSm80, kFp16Fp16, 192, 192, 64, Variant::kPlain);
    list.add(gpu::kSm80, kFp16Fp16, 256, 256, 64, Variant::kPlain);
    list.add(gpu::kSm80, kBf16Bf16, 96, 96, 64, Variant::kPlain);
    list.add(gpu::kSm80, kBf16Bf16, 192, 128, 64, Variant::kPlain);
    list.add(gpu::kSm80, kBf16Bf16, 192, 192, 64, Variant::kPlain);
    list.add(gpu::kSm80, kBf16Bf16, 256, 256, 64, Variant::kPlain);
    list.add(gpu::kSm89, kInt8Int8, 96, 96, 64, Variant::kPlain);
    list.add(gpu::kSm89, kInt8Int8, 128, 128, 128, Variant::kBiasMasked);
    list.add(gpu::kSm89, kInt8Int8, 256, 256, 64, Variant::kPlain);
    list.add(gpu::kSm89, kInt8Fp16, 32, 32, 128, Variant::kBias);
    list.add(gpu::kSm89, kInt8Fp16, 192, 192, 64, Variant::kBiasToken);
    list.add(gpu::kSm89, kInt8Bf16, 192, 128, 64, Variant::kBias);
    list.add(gpu::kSm89, kFp16Fp16, 64, 64, 64, Variant::kPlain);
    list.add(gpu::kSm89, kBf16Bf16, 128, 128, 64, Variant::kMasked);
    list.add(gpu::kSm89, kInt8Fp8, 32, 32, 64, Variant::kBiasMasked);
    list.add(gpu::kSm89, kInt8Fp8, 64, 64, 64, Variant::kPlain);
    list.add(gpu::kSm89, kInt8Fp8, 64, 64, 128, Variant::kBias);
    list.add(gpu::kSm89, kInt8Fp8, 96, 96, 128, Variant::kMasked);
    list.add(gpu::kSm89, kInt8Fp8, 128, 128, 128, Variant::kBias);
    list.add(gpu::kSm89, kInt8Fp8, 192, 192, 64, Variant::kPlain);
    list.add(gpu::kSm89, kInt8Fp8, 192, 128, 64, Variant::kMasked);
    list.add(gpu::kSm89, kInt8Fp8, 256, 256, 64, Variant::kBias);
    // Sums of fp16: at the head dims that have such kernels.
    list.add(gpu::kSm89, kInt8Fp8, 64, 64, 128, Variant::kBias, gpu::Sums::kHalf);
    list.add(gpu::kSm89, kInt8Fp8, 64, 64, 64, Variant::kBiasMasked, gpu::Sums::kHalf);
    list.add(gpu::kSm89, kInt8Fp8, 128, 128, 128, Variant::kMasked, gpu::Sums::kHalf);
    list.add(gpu::kSm89, kInt8Fp8, 128, 128, 64, Variant::kPlain, gpu::Sums::kHalf);
    list.add(gpu::kSm75, kInt8Fp16, 64, 64, 64, Variant::kBiasToken, gpu::Sums::kHalf);
    list.add(gpu::kSm89, kInt8Fp16, 128, 128, 64, Variant::kMasked, gpu::Sums::kHalf);
    list.add(gpu::kSm80, kInt8Fp16, 128, 128, 64, Variant::kPlain, gpu::Sums::kHalf);
    list.add(gpu::kSm80, kInt8Fp16, 64, 64, 64, Variant::kBiasMasked, gpu::Sums::kHalf);
    list.add(gpu::kSm75, kInt8Fp16, 128, 128, 64, Variant::kPlain, gpu::Sums::kHalfRow);
    list.add(gpu::kSm80, kInt8Fp16, 64, 64, 64, Variant::kBiasToken, gpu::Sums::kHalfRow);
    list.add(gpu::kSm89, kInt8Fp16, 128, 128, 64, Variant::kBiasMasked, gpu::Sums::kHalfRow);
    list.add(gpu::kSm80, kInt8Fp16, 64, 64, 64, Variant::kMasked, gpu::Sums::kHalfRow);
    list.add(gpu::kXcore1000, kInt8Int8, 64, 64, 64, Variant::kBiasMasked);
    list.add(gpu::kXcore1000, kInt8Int8, 192, 128, 64, Variant::kPlain);
    list.add(gpu::kXcore1000, kInt8Int8, 192, 192, 64, Variant::kPlain);
    list.add(gpu::kXcore1000, kInt8Fp16, 96, 96, 64, Variant::kBias);
    list.add(gpu::kXcore1000, kInt8Bf16, 32, 32, 128, Variant::kMasked);
    list.add(gpu::kXcore1000, kInt8Bf16, 128, 128, 64, Variant::kBiasToken);
    list.add(gpu::kXcore1000, kFp16Fp16, 96, 96, 64, Variant::kPlain);
    list.add(gpu::kXcore1000, kBf16Bf16, 32, 32, 64, Variant::kPlain);
    return list;
}();

struct Simulated {
    KernelEntry entry;
    gpu::AttentionConfig config;
    // Null where the kernel needs more shared memory than the machine has.
    sim::Report (*launch)(const gpu::AttentionParams& params, const sim::Options& options);
};

// Entries kPart, kPart + CLARY_PARTS, ... of the table.
template <int kPart>
std::vector<Simulated> kernels_part();

// All that fit their machine, in the order of the parts. (Builds with sanitizers leave parts out.)
const std::vector<Simulated>& kernels();
constexpr bool has_all_parts() { return CLARY_PARTS_BUILT == CLARY_PARTS; }

// The least general kernel of each machine that serves the problem.
std::vector<const Simulated*> kernels_for(const AttentionDesc& desc);

const char* element_name(gpu::Element element);  // as in recipes
// "sm80_int8_fp16_d64_t128_bias_masked"
std::string name_of(const KernelEntry& entry);

}  // namespace clary::cases
