// SPDX-License-Identifier: Apache-2.0
// Kernels that join results over disjoint keys: clary_merge's, and that behind attention whose keys are cut into pieces.
#include "cuda/entries.h"
#include "cuda/target.cuh"
#include "gpu/combine/combine_kernel.h"
#include "gpu/combine/merge_kernel.h"

extern "C" __global__ void __launch_bounds__(clary::gpu::kMergeThreads)
    clary_merge_rows(const __grid_constant__ clary::MergeViews views) {
    clary::gpu::MergeKernel<clary::cuda::Target>::run(views);
}

extern "C" __global__ void __launch_bounds__(clary::gpu::kMaxPieces)
    clary_combine_pieces(const __grid_constant__ clary::gpu::AttentionParams params) {
    clary::gpu::CombineKernel<clary::cuda::Target>::run(params);
}

namespace clary::cuda {

static_assert(gpu::CombineKernel<Target>::kThreads == gpu::kMaxPieces);
const Stage combine_stage{
    {"clary_combine_pieces", reinterpret_cast<const void*>(clary_combine_pieces), gpu::kMaxPieces},
    gpu::CombineKernel<Target>::kSharedBytes};
const Stage merge_stage{{"clary_merge_rows", reinterpret_cast<const void*>(clary_merge_rows), gpu::kMergeThreads},
                        gpu::MergeKernel<Target>::kSharedBytes};

}  // namespace clary::cuda
