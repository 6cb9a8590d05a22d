// SPDX-License-Identifier: Apache-2.0
// The arrangement of packed buffers that a machine's kernels write and read.
#pragma once

#include "core/packed.h"
#include "gpu/target/products.h"

namespace clary::gpu {

constexpr const Arrangement& arrangement_of(const Machine& machine) {
    if (machine.vendor == Vendor::kNvidia) return kMmaArrangement;
    return product_depth(machine, Element::kS8) == 32 ? kMetaxK32Arrangement : kMetaxK16Arrangement;
}

}  // namespace clary::gpu
