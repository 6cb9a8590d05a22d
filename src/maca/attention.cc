// SPDX-License-Identifier: Apache-2.0
// The attention kernels of one recipe and one pair of head dims: CLARY_QK and CLARY_PV (Format), CLARY_SUMS (Sums),
// CLARY_VARIANTS (gpu/host/variants.h), CLARY_HEAD_DIM, CLARY_HEAD_DIM_V.
#include "gpu/attention/shared_bytes.h"
#include "gpu/host/variants.h"
#include "maca/unit.h"

namespace clary::maca {
namespace {

constexpr gpu::Unit kUnit{Format::CLARY_QK, Format::CLARY_PV, gpu::Sums::CLARY_SUMS, CLARY_HEAD_DIM, CLARY_HEAD_DIM_V};

template <gpu::AttentionConfig kConfig>
constexpr uint32_t shared_bytes() {
    return gpu::shared_bytes_needed<Target<gpu::roomy(kMachine)>, kConfig>();
}

template <gpu::AttentionConfig kConfig>
__global__ void __launch_bounds__(kConfig.waves * 64) attention(const gpu::AttentionParams params) {
    constexpr uint32_t kBytes = shared_bytes<kConfig>();
    if constexpr (kBytes > 0 && kBytes <= kMachine.shared_bytes)
        gpu::AttentionKernel<Target<kMachine>, kConfig>::run(params);
}

template <gpu::AttentionConfig kConfig>
AttentionEntry entry(const char* name) {
    return {kUnit.pv, kConfig, shared_bytes<kConfig>(), {name, kernel_symbol(attention<kConfig>), kConfig.waves * 64}};
}

}  // namespace

#define CLARY_ENTRY(suffix, ...) entry<kUnit.config(__VA_ARGS__)>(CLARY_TEXT(CLARY_UNIT) "_" #suffix),

std::span<const AttentionEntry> CLARY_PASTE(clary_, CLARY_UNIT, _entries)() {
    static const AttentionEntry entries[] = {CLARY_VARIANTS(CLARY_ENTRY)};
    return entries;
}

}  // namespace clary::maca
