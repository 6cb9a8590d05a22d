// SPDX-License-Identifier: Apache-2.0
// The attention kernels of one recipe and one pair of head dims: CLARY_QK and CLARY_V (elements), CLARY_PV (the recipe's
// format), CLARY_HEAD_DIM, CLARY_HEAD_DIM_V.
#include <utility>

#include "gpu/attention/attention_kernel.h"
#include "gpu/host/variants.h"
#include "maca/unit.h"

namespace clary::maca {
namespace {

constexpr gpu::Element kQk = gpu::Element::CLARY_QK, kV = gpu::Element::CLARY_V;

// Shared memory of the kernel, however little the chip has of it; 0 where the chip lacks the products.
template <gpu::AttentionConfig kConfig>
constexpr uint32_t shared_bytes() {
    if constexpr (gpu::has_product(kMachine, kV, kV, kV == gpu::Element::kS8 ? gpu::Element::kS32 : gpu::Element::kF32))
        return gpu::AttentionKernel<Target<kRoomy>, kConfig>::kSharedBytes;
    else
        return 0;
}
template <gpu::AttentionConfig kConfig>
inline constexpr uint32_t kBytes = shared_bytes<kConfig>();

template <gpu::AttentionConfig kConfig>
__global__ void __launch_bounds__(kConfig.waves * 64) attention(const gpu::AttentionParams params) {
    if constexpr (kBytes < kConfig >> 0 && kBytes<kConfig> <= kMachine.shared_bytes)
        gpu::AttentionKernel<Target<kMachine>, kConfig>::run(params);
}

template <int kIndex>
AttentionEntry entry() {
    constexpr gpu::AttentionConfig kConfig = gpu::variant_config(kQk, kV, CLARY_HEAD_DIM, CLARY_HEAD_DIM_V, kIndex);
    return {Format::CLARY_PV,
            kConfig,
            kBytes<kConfig>,
            {CLARY_TEXT(CLARY_UNIT), kernel_symbol(attention<kConfig>), kConfig.waves * 64}};
}
template <int... kIndex>
std::span<const AttentionEntry> all(std::integer_sequence<int, kIndex...>) {
    static const AttentionEntry entries[] = {entry<kIndex>()...};
    return entries;
}

}  // namespace

std::span<const AttentionEntry> CLARY_PASTE(clary_, CLARY_UNIT, _entries)() {
    return all(std::make_integer_sequence<int, gpu::variant_count(kQk, kV)>());
}

}  // namespace clary::maca
