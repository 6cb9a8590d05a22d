// SPDX-License-Identifier: Apache-2.0
// Launching a kernel: no allocation, no waiting, every error named.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/status.h"

namespace clary::cuda {

// A __global__ function as host code sees it.
struct Kernel {
    const char* name;      // what a profiler shows
    const void* function;  // its host symbol
    int threads;           // of a block

    // Bit per device (of the first 64) on which the limit of dynamic shared memory has been raised.
    mutable std::atomic<uint64_t> raised{0};
};

// One-dimensional grid on `stream` of the current device, whose index is `device`. `params` is the kernel's only
// parameter. No blocks: nothing happens. `overlaps`: it may start before the kernel ahead of it in the stream has ended, if
// that one lets it (T::let_next_start, T::wait_for_previous); for sm90 and later.
Status launch(const Kernel& kernel, int device, int64_t blocks, uint32_t shared_bytes, const void* params, void* stream,
              bool overlaps = false);

}  // namespace clary::cuda
