// SPDX-License-Identifier: Apache-2.0
// What an attention kernel needs of a machine.
#pragma once

#include "gpu/attention/attention_kernel.h"

namespace clary::gpu {

// The machine with shared memory for any kernel.
CLARY_HD constexpr Machine roomy(Machine machine) {
    machine.shared_bytes = 1u << 30;
    return machine;
}

// Whether the machine has the kernel's products.
CLARY_HD constexpr bool multiplies(const Machine& machine, const AttentionConfig& c) {
    constexpr Element kS8 = Element::kS8, kU8 = Element::kU8;
    if (!has_product(machine, c.qk, c.qk, c.qk == kS8 ? Element::kS32 : Element::kF32)) return false;
    if (c.v == kS8)
        return has_product(machine, kU8, kS8, Element::kS32) || has_product(machine, kS8, kS8, Element::kS32);
    return has_product(machine, c.v, c.v, c.sums == Sums::kWide ? Element::kF32 : Element::kF16);
}

// Shared memory of a block, in bytes; 0 where the products are missing. T is the Target of a roomy machine.
template <class T, AttentionConfig kConfig>
CLARY_HD constexpr uint32_t shared_bytes_needed() {
    if constexpr (multiplies(T::kChip, kConfig))
        return AttentionKernel<T, kConfig>::kSharedBytes;
    else
        return 0;
}

}  // namespace clary::gpu
