// SPDX-License-Identifier: Apache-2.0
// The quantization kernels of one pair of head dims: CLARY_UNIT (a name such as d128), CLARY_HEAD_DIM, CLARY_HEAD_DIM_V.
#include "cuda/entries.h"
#include "cuda/target.cuh"
#include "gpu/quantize/advance_kernel.h"
#include "gpu/quantize/channel_scale_kernel.h"
#include "gpu/quantize/exact_kernel.h"
#include "gpu/quantize/pack_kernel.h"
#include "gpu/quantize/statistics_kernel.h"

namespace clary::cuda {
namespace {

constexpr gpu::QuantizeConfig kConfig{CLARY_HEAD_DIM, CLARY_HEAD_DIM_V};
using Statistics = gpu::StatisticsKernel<Target, kConfig>;
using ChannelScale = gpu::ChannelScaleKernel<Target, kConfig>;
using Pack = gpu::PackKernel<Target, kConfig>;
using Exact = gpu::ExactKernel<Target, kConfig>;
using PackWhole = gpu::PackKernel<Target, kConfig, gpu::PackKind::kWhole>;
using Measure = gpu::PackKernel<Target, kConfig, gpu::PackKind::kMeasure>;
using Append = gpu::PackKernel<Target, kConfig, gpu::PackKind::kAppend>;
using Advance = gpu::AdvanceKernel<Target, kConfig>;

}  // namespace
}  // namespace clary::cuda

#define CLARY_NAME(kernel) CLARY_PASTE(clary_, kernel, CLARY_UNIT)

#define CLARY_KERNEL(name, Class)                                                                           \
    extern "C" __global__ void __launch_bounds__(clary::cuda::Class::kThreads, clary::cuda::Class::kBlocks) \
        CLARY_NAME(name)(const __grid_constant__ clary::gpu::QuantizeParams params) {                       \
        clary::cuda::Class::run(params);                                                                    \
    }
#define CLARY_STAGE(name, Class, ...)                                                   \
    {                                                                                   \
        {CLARY_TEXT(CLARY_NAME(name)), reinterpret_cast<const void*>(CLARY_NAME(name)), \
         Class::kThreads __VA_OPT__(, ) __VA_ARGS__},                                   \
            Class::kSharedBytes                                                         \
    }

CLARY_KERNEL(statistics, Statistics)
CLARY_KERNEL(channel_scale, ChannelScale)
CLARY_KERNEL(measure, Measure)
CLARY_KERNEL(pack, Pack)
CLARY_KERNEL(pack_whole, PackWhole)
CLARY_KERNEL(pack_exact, Exact)
CLARY_KERNEL(append, Append)
CLARY_KERNEL(advance, Advance)

namespace clary::cuda {

extern const QuantizeEntry CLARY_NAME(quantize);
const QuantizeEntry CLARY_NAME(quantize){kConfig,
                                         CLARY_STAGE(statistics, Statistics, true),
                                         CLARY_STAGE(channel_scale, ChannelScale),
                                         CLARY_STAGE(measure, Measure),
                                         CLARY_STAGE(pack, Pack),
                                         CLARY_STAGE(pack_whole, PackWhole, true),
                                         CLARY_STAGE(pack_exact, Exact),
                                         CLARY_STAGE(append, Append),
                                         CLARY_STAGE(advance, Advance)};

}  // namespace clary::cuda
