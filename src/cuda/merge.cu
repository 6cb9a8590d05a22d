// SPDX-License-Identifier: Apache-2.0
// The kernel of clary_merge.
#include "cuda/entries.h"
#include "cuda/target.cuh"
#include "gpu/combine/merge_kernel.h"

extern "C" __global__ void __launch_bounds__(clary::gpu::kMergeThreads)
    clary_merge_rows(const __grid_constant__ clary::MergeViews views) {
    clary::gpu::MergeKernel<clary::cuda::Target>::run(views);
}

namespace clary::cuda {

const Kernel merge_kernel{"clary_merge_rows", reinterpret_cast<const void*>(clary_merge_rows), gpu::kMergeThreads};

}  // namespace clary::cuda
