// SPDX-License-Identifier: Apache-2.0
// The kernels of the .cu files as host code sees them.
#pragma once

#include <span>

#include "cuda/launch.h"
#include "gpu/attention/config.h"
#include "gpu/quantize/configs.h"

namespace clary::cuda {

struct AttentionEntry {
    Format pv;  // with config.qk the recipe: an int8 V may be that of several
    gpu::AttentionConfig config;
    Kernel kernel;
};

// Of one QuantizeConfig.
struct QuantizeEntry {
    gpu::QuantizeConfig config;
    struct Stage {
        Kernel kernel;
        uint32_t shared_bytes;
    } statistics, channel_scale, pack, exact;
};

std::span<const std::span<const AttentionEntry>> attention_entries();
std::span<const QuantizeEntry* const> quantize_entries();

}  // namespace clary::cuda
