// SPDX-License-Identifier: Apache-2.0
// Compiled kernels as host code sees them, the same for every vendor.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/quantize/configs.h"

namespace clary::gpu {

// A __global__ function.
struct Kernel {
    const char* name;       // what a profiler and messages show
    const void* function;   // what the runtime launches: its host symbol
    int threads;            // of a block
    bool overlaps = false;  // may run on a multiprocessor beside the next kernel of its stream, or the one before

    // Bit per device (of the first 64) on which it has been made ready (Runtime::prepare).
    mutable std::atomic<uint64_t> prepared{0};
};

struct Stage {
    Kernel kernel;
    uint32_t shared_bytes;  // of a block
};

// Of one QuantizeConfig. Without `measure` scales cannot span whole heads.
struct QuantizeEntry {
    QuantizeConfig config;
    Stage statistics, channel_scale, measure, pack, pack_whole, exact, append, advance;
};

}  // namespace clary::gpu
