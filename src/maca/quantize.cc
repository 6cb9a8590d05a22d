// SPDX-License-Identifier: Apache-2.0
// The quantization kernels of one pair of head dims: CLARY_HEAD_DIM, CLARY_HEAD_DIM_V.
#include "gpu/quantize/advance_kernel.h"
#include "gpu/quantize/channel_scale_kernel.h"
#include "gpu/quantize/exact_kernel.h"
#include "gpu/quantize/pack_kernel.h"
#include "gpu/quantize/statistics_kernel.h"
#include "maca/unit.h"

namespace clary::maca {
namespace {

constexpr gpu::QuantizeConfig kConfig{CLARY_HEAD_DIM, CLARY_HEAD_DIM_V};
using T = Target<kMachine>;

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) quantization(const gpu::QuantizeParams params) {
    if constexpr (Kernel::kSharedBytes <= kMachine.shared_bytes) Kernel::run(params);
}
template <class Kernel>
Stage stage() {
    return {{CLARY_TEXT(CLARY_UNIT), kernel_symbol(quantization<Kernel>), Kernel::kThreads}, Kernel::kSharedBytes};
}

}  // namespace

const QuantizeEntry& CLARY_PASTE(clary_, CLARY_UNIT, _entry)() {
    static const QuantizeEntry entry{kConfig,
                                     stage<gpu::StatisticsKernel<T, kConfig>>(),
                                     stage<gpu::ChannelScaleKernel<T, kConfig>>(),
                                     stage<gpu::PackKernel<T, kConfig, gpu::PackKind::kMeasure>>(),
                                     stage<gpu::PackKernel<T, kConfig>>(),
                                     stage<gpu::PackKernel<T, kConfig, gpu::PackKind::kWhole>>(),
                                     stage<gpu::ExactKernel<T, kConfig>>(),
                                     stage<gpu::PackKernel<T, kConfig, gpu::PackKind::kAppend>>(),
                                     stage<gpu::AdvanceKernel<T, kConfig>>()};
    return entry;
}

}  // namespace clary::maca
