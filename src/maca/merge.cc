// SPDX-License-Identifier: Apache-2.0
// Kernels that join results over disjoint keys: clary_merge's, and that behind attention whose keys are cut into pieces.
#include "gpu/combine/combine_kernel.h"
#include "gpu/combine/merge_kernel.h"
#include "maca/unit.h"

namespace clary::maca {
namespace {

using Combine = gpu::CombineKernel<Target<kMachine>>;
using Merge = gpu::MergeKernel<Target<kMachine>>;

__global__ void __launch_bounds__(Merge::kThreads) merge_rows(const MergeViews views) { Merge::run(views); }
__global__ void __launch_bounds__(Combine::kThreads) combine_pieces(const gpu::AttentionParams params) {
    Combine::run(params);
}

}  // namespace

const MergeEntry& CLARY_PASTE(clary_, CLARY_UNIT, _entry)() {
    static const MergeEntry entry{
        {{"merge_rows", kernel_symbol(merge_rows), Merge::kThreads}, Merge::kSharedBytes},
        {{"combine_pieces", kernel_symbol(combine_pieces), Combine::kThreads}, Combine::kSharedBytes}};
    return entry;
}

}  // namespace clary::maca
