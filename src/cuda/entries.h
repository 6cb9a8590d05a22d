// SPDX-License-Identifier: Apache-2.0
// The kernels of the .cu files as host code sees them.
#pragma once

#include <span>

#include "core/types.h"
#include "gpu/attention/config.h"
#include "gpu/host/entries.h"
#include "gpu/target/machines.h"

namespace clary::cuda {

using gpu::Kernel, gpu::QuantizeEntry, gpu::Stage;

struct AttentionEntry {
    Format pv;  // with config.qk the recipe: an int8 V may be that of several
    gpu::AttentionConfig config;
    uint32_t shared_bytes[3];  // of a block on sm75, sm80, sm89; 0 where the products are missing
    Kernel kernel;

    uint32_t shared_on(const gpu::Machine& machine) const {
        return shared_bytes[machine.chip == gpu::Chip::kSm75 ? 0 : machine.fp8 ? 2 : 1];
    }
};

extern const Stage merge_stage, combine_stage;
std::span<const AttentionEntry* const> attention_entries();
std::span<const QuantizeEntry* const> quantize_entries();

}  // namespace clary::cuda
