// SPDX-License-Identifier: Apache-2.0
// Launches an attention kernel on the simulator as a host does on a GPU, with the kernel that joins pieces behind it.
#pragma once

#include "gpu/attention/configs.h"
#include "sim/sim.h"

namespace clary::cases {

template <class T, class Attention, class Combine>
sim::Report launch_attention(const gpu::AttentionParams& params, const sim::Options& options) {
    const sim::Report report =
        sim::launch<T>({static_cast<int>(gpu::attention_blocks(params, Attention::kTileQ)), 1, 1}, Attention::kThreads,
                       Attention::kSharedBytes, options, [&] { Attention::run(params); });
    if (!report.ok() || params.split.pieces == 1) return report;
    const sim::Report combined =
        sim::launch<T>({static_cast<int>(gpu::combine_blocks(params)), 1, 1}, Combine::kThreads, Combine::kSharedBytes,
                       options, [&] { Combine::run(params); });
    return combined.ok() ? report : combined;
}

}  // namespace clary::cases
