// SPDX-License-Identifier: Apache-2.0
// The kernels of the .cu files as host code sees them.
#pragma once

#include <span>

#include "cuda/launch.h"
#include "gpu/attention/config.h"
#include "gpu/quantize/configs.h"
#include "gpu/target/machines.h"

namespace clary::cuda {

struct AttentionEntry {
    Format pv;  // with config.qk the recipe: an int8 V may be that of several
    gpu::AttentionConfig config;
    uint32_t shared_bytes[3];  // of a block on sm75, sm80, sm89; 0 where the products are missing
    Kernel kernel;

    uint32_t shared_on(const gpu::Machine& machine) const {
        return shared_bytes[machine.chip == gpu::Chip::kSm75 ? 0 : machine.fp8 ? 2 : 1];
    }
};

// Of one QuantizeConfig.
struct QuantizeEntry {
    gpu::QuantizeConfig config;
    struct Stage {
        Kernel kernel;
        uint32_t shared_bytes;
    } statistics, channel_scale, measure, pack, pack_whole, exact, append, advance;
};

extern const Kernel merge_kernel, combine_kernel;
extern const uint32_t combine_shared_bytes;  // of a block
std::span<const std::span<const AttentionEntry>> attention_entries();
std::span<const QuantizeEntry* const> quantize_entries();

}  // namespace clary::cuda
