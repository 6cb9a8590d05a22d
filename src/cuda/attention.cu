// SPDX-License-Identifier: Apache-2.0
// The attention kernels of one recipe and one pair of head dims (a unit), given by the build: CLARY_UNIT (a name such as
// int8_int8_d128), CLARY_QK and CLARY_PV (Format), CLARY_SUMS (Sums), CLARY_VARIANTS (gpu/host/variants.h), CLARY_HEAD_DIM,
// CLARY_HEAD_DIM_V.
#include "cuda/entries.h"
#include "cuda/target.cuh"
#include "gpu/attention/shared_bytes.h"
#include "gpu/host/variants.h"

namespace clary::cuda {
namespace {

constexpr gpu::Unit kUnit{Format::CLARY_QK, Format::CLARY_PV, gpu::Sums::CLARY_SUMS, CLARY_HEAD_DIM, CLARY_HEAD_DIM_V};

template <gpu::Machine kMachine, gpu::AttentionConfig kConfig>
__host__ __device__ constexpr uint32_t shared_bytes_on() {
    return gpu::shared_bytes_needed<gpu::Nvidia<gpu::roomy(kMachine)>, kConfig>();
}

template <gpu::AttentionConfig kConfig>
__device__ __forceinline__ void run(const gpu::AttentionParams& params) {
    constexpr uint32_t kBytes = shared_bytes_on<kCompiledFor, kConfig>();
    if constexpr (kBytes > 0 && kBytes <= kCompiledFor.shared_bytes) {
        using Attention = gpu::AttentionKernel<Target, kConfig>;
        static_assert(Attention::kThreads == kConfig.waves * 32 && Attention::kTileQ == kConfig.tile_q);
        Attention::run(params);
    }
}

}  // namespace
}  // namespace clary::cuda

// Plain names, so that a profiler shows clary_int8_int8_d128_bias_t128 and not the whole configuration.
#define CLARY_NAME(suffix) CLARY_PASTE(clary_, CLARY_UNIT, suffix)

#define CLARY_KERNEL(suffix, ...)                                                          \
    namespace clary::cuda {                                                                \
    namespace {                                                                            \
    constexpr gpu::AttentionConfig k_##suffix = kUnit.config(__VA_ARGS__);                 \
    }                                                                                      \
    extern "C" __global__ void __launch_bounds__(k_##suffix.waves * 32, k_##suffix.blocks) \
        CLARY_NAME(suffix)(const __grid_constant__ gpu::AttentionParams params) {          \
        run<k_##suffix>(params);                                                           \
    }                                                                                      \
    }
#define CLARY_ENTRY(suffix, ...)                                                            \
    {kUnit.pv,                                                                              \
     k_##suffix,                                                                            \
     {shared_bytes_on<gpu::kSm75, k_##suffix>(), shared_bytes_on<gpu::kSm80, k_##suffix>(), \
      shared_bytes_on<gpu::kSm89, k_##suffix>()},                                           \
     {CLARY_TEXT(CLARY_NAME(suffix)), reinterpret_cast<const void*>(CLARY_NAME(suffix)), k_##suffix.waves * 32}},

CLARY_VARIANTS(CLARY_KERNEL)

namespace clary::cuda {
namespace {
const AttentionEntry kEntries[] = {CLARY_VARIANTS(CLARY_ENTRY)};
}
extern const std::span<const AttentionEntry> CLARY_NAME(entries);
const std::span<const AttentionEntry> CLARY_NAME(entries) = kEntries;

}  // namespace clary::cuda
