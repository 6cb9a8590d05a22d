// SPDX-License-Identifier: Apache-2.0
// The compiled kernels as host code sees them. A unit holds kernels of one architecture.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "core/types.h"
#include "gpu/attention/config.h"
#include "gpu/quantize/configs.h"
#include "gpu/target/machines.h"

namespace clary::maca {

// A __global__ function.
struct Kernel {
    const char* name;      // for messages
    const void* function;  // what the runtime calls it
    int threads;           // of a block

    // Bit per device (of the first 64) on which the limit of dynamic shared memory has been raised.
    mutable std::atomic<uint64_t> raised{0};
};
struct Stage {
    Kernel kernel;
    uint32_t shared_bytes;  // of a block
};

struct AttentionEntry {
    Format pv;  // with config.qk the recipe: an int8 V may be that of several
    gpu::AttentionConfig config;
    uint32_t shared_bytes;  // of a block, however little the chip has
    Kernel kernel;
};
// Of one QuantizeConfig.
struct QuantizeEntry {
    gpu::QuantizeConfig config;
    Stage statistics, channel_scale, pack, pack_whole, exact, append, advance;
};
struct MergeEntry {
    Stage merge, combine;
};

// What the build has for a chip; empty and null: nothing.
std::span<const AttentionEntry* const> attention_entries(gpu::Chip chip);
std::span<const QuantizeEntry* const> quantize_entries(gpu::Chip chip);
const MergeEntry* merge_entry(gpu::Chip chip);

}  // namespace clary::maca
