// SPDX-License-Identifier: Apache-2.0
// Compiled CLARY_PARTS times: part CLARY_PART of the table's kernels.
#include <utility>

#include "gpu/attention/attention_kernel.h"
#include "gpu/combine/combine_kernel.h"
#include "gpu/kernels.h"
#include "gpu/launch.h"

namespace clary::cases {
namespace {

// (Of MetaX chips the memory says which they are, so theirs must fit.)
constexpr gpu::Machine roomy(gpu::Machine machine) {
    if (machine.vendor == gpu::Vendor::kNvidia) machine.shared_bytes = uint32_t{1} << 30;
    return machine;
}

template <size_t kIndex>
Simulated simulated() {
    static constexpr KernelEntry kEntry = kTable.entries[kIndex];
    static constexpr gpu::AttentionConfig kConfig = gpu::config_for(kEntry.needs);
    Simulated result{kEntry, kConfig, nullptr};
    if constexpr (gpu::AttentionKernel<sim::Sim<roomy(kEntry.machine)>, kConfig>::kSharedBytes <=
                  kEntry.machine.shared_bytes) {
        using T = sim::Sim<kEntry.machine>;
        using Kernel = gpu::AttentionKernel<T, kConfig>;
        result.launch = launch_attention<T, Kernel, gpu::CombineKernel<T>>;
    }
    return result;
}

template <size_t... kIndex>
std::vector<Simulated> every_nth(std::index_sequence<kIndex...>) {
    return {simulated<CLARY_PART + kIndex * CLARY_PARTS>()...};
}

}  // namespace

template <>
std::vector<Simulated> kernels_part<CLARY_PART>() {
    return every_nth(std::make_index_sequence<(kTable.count - CLARY_PART + CLARY_PARTS - 1) / CLARY_PARTS>());
}

}  // namespace clary::cases
