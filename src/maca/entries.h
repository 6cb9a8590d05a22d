// SPDX-License-Identifier: Apache-2.0
// The compiled kernels as host code sees them. A unit holds kernels of one architecture.
#pragma once

#include <cstdint>
#include <span>

#include "core/types.h"
#include "gpu/attention/config.h"
#include "gpu/host/entries.h"
#include "gpu/target/machines.h"

namespace clary::maca {

using gpu::Kernel, gpu::QuantizeEntry, gpu::Stage;

struct AttentionEntry {
    Format pv;  // with config.qk the recipe: an int8 V may be that of several
    gpu::AttentionConfig config;
    uint32_t shared_bytes;  // of a block, however little the chip has; 0: it lacks the products
    Kernel kernel;
};
struct MergeEntry {
    Stage merge, combine;
};

// What the build has for a chip; empty and null: nothing.
std::span<const AttentionEntry* const> attention_entries(gpu::Chip chip);
std::span<const QuantizeEntry* const> quantize_entries(gpu::Chip chip);
const MergeEntry* merge_entry(gpu::Chip chip);

}  // namespace clary::maca
