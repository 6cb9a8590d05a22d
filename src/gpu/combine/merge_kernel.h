// SPDX-License-Identifier: Apache-2.0
// clary_merge on a GPU: a wave per row, lanes along its channels. The formula is core/merge.h's.
#pragma once

#include "core/merge.h"
#include "gpu/target/target.h"

namespace clary::gpu {

inline constexpr int kMergeThreads = 128;

inline int64_t merge_blocks(const MergeViews& views, int lanes) {
    const int64_t* const shape = views.out_a.shape;
    const int64_t rows = kMergeThreads / lanes;
    return (shape[0] * shape[1] * shape[2] + rows - 1) / rows;
}

template <class T>
struct MergeKernel {
    static constexpr int kThreads = kMergeThreads;
    static constexpr uint32_t kSharedBytes = 0;

    // Dense views.
    CLARY_DEVICE static void run(const MergeViews& views) {
        const int64_t* const shape = views.out_a.shape;
        const int64_t index = int64_t{T::block(0)} * (kThreads / T::kLanes) + T::wave();
        if (index >= shape[0] * shape[1] * shape[2]) return;
        const int64_t row[3] = {index / shape[2] / shape[1], index / shape[2] % shape[1], index % shape[2]};
        auto* const lse = reinterpret_cast<float*>(row_of(views.lse_a, row));
        const MergeWeights w = merge_weights(*lse, *reinterpret_cast<const float*>(row_of(views.lse_b, row)));
        T::wave_sync();  // all lanes have read it
        if (T::lane() == 0) *lse = w.lse;
        merge_channels(views, row, w, T::lane(), T::kLanes);
    }
};

}  // namespace clary::gpu
