// SPDX-License-Identifier: Apache-2.0
// The arrangement of packed buffers that a machine's kernels write and read.
#pragma once

#include "core/packed.h"
#include "gpu/target/machines.h"

namespace clary::gpu {

constexpr const Arrangement& arrangement_of(const Machine& machine) {
    return machine.vendor == Vendor::kMetax ? kMetaxArrangement : kMmaArrangement;
}

}  // namespace clary::gpu
