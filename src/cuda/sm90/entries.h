// SPDX-License-Identifier: Apache-2.0
// Hopper's kernels as host code sees them.
#pragma once

#include <span>

#include "cuda/sm90/config.h"
#include "gpu/host/entries.h"

namespace clary::cuda::sm90 {

struct Entry {
    Config config;
    uint32_t shared_bytes;  // of a block
    gpu::Kernel kernel;
};

// Empty in a build without sm_90.
std::span<const std::span<const Entry>> entries();

}  // namespace clary::cuda::sm90
