// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernels.h"

#include <fmt/format.h>

#include <utility>

namespace clary::cases {
namespace {

template <int... kPart>
std::vector<Simulated> all(std::integer_sequence<int, kPart...>) {
    std::vector<Simulated> list;
    for (const auto& part : {kernels_part<kPart>()...})
        for (const Simulated& kernel : part)
            if (kernel.launch != nullptr) list.push_back(kernel);
    return list;
}

const char* sums_name(gpu::Sums sums) {
    return sums == gpu::Sums::kWide ? "" : sums == gpu::Sums::kHalf ? "_half" : "_half_row";
}

}  // namespace

const char* element_name(gpu::Element element) {
    return element == gpu::Element::kS8     ? "int8"
           : element == gpu::Element::kE4m3 ? "fp8"
           : element == gpu::Element::kF16  ? "fp16"
                                            : "bf16";
}

const std::vector<Simulated>& kernels() {
    static const std::vector<Simulated> list = all(std::make_integer_sequence<int, CLARY_PARTS_BUILT>());
    return list;
}

std::vector<const Simulated*> kernels_for(const AttentionDesc& desc) {
    std::vector<const Simulated*> found;
    for (const gpu::Chip chip : {gpu::Chip::kSm75, gpu::Chip::kSm80, gpu::Chip::kSm89, gpu::Chip::kXcore1000}) {
        const Simulated* best = nullptr;
        for (const Simulated& kernel : kernels())
            if (kernel.entry.machine.chip == chip && gpu::serves(kernel.config, desc) &&
                (best == nullptr || gpu::generality(kernel.config) < gpu::generality(best->config)))
                best = &kernel;
        if (best != nullptr) found.push_back(best);
    }
    return found;
}

std::string name_of(const KernelEntry& entry) {
    const gpu::AttentionNeeds& n = entry.needs;
    const std::string dims =
        n.head_dim == n.head_dim_v ? fmt::format("{}", n.head_dim) : fmt::format("{}v{}", n.head_dim, n.head_dim_v);
    return fmt::format("{}_{}_{}{}_d{}_t{}{}{}{}", gpu::machine_name(entry.machine), element_name(n.qk),
                       element_name(n.v), sums_name(n.sums), dims, n.tile_k, n.key_bias ? "_bias" : "",
                       n.biased ? "_masked" : "", n.key_scales == gpu::KeyScales::kKey && !n.biased ? "_token" : "");
}

}  // namespace clary::cases
