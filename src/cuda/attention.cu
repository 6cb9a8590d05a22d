// SPDX-License-Identifier: Apache-2.0
// The attention kernels of one recipe and one pair of head dims (a unit), given by the build: CLARY_UNIT (a name such as
// int8_int8_d128), CLARY_QK and CLARY_V (elements), CLARY_PV (the recipe's format), CLARY_SUMS (Sums), CLARY_VARIANTS (below),
// CLARY_HEAD_DIM, CLARY_HEAD_DIM_V.
#include "cuda/entries.h"
#include "cuda/target.cuh"
#include "gpu/attention/attention_kernel.h"
#include "gpu/attention/configs.h"

namespace clary::cuda {
namespace {

constexpr gpu::Element kQk = gpu::Element::CLARY_QK, kV = gpu::Element::CLARY_V;
constexpr gpu::Sums kSums = gpu::Sums::CLARY_SUMS;
constexpr bool kExact = kQk != gpu::Element::kS8;

constexpr gpu::AttentionConfig config(bool key_bias, gpu::KeyScales key_scales, bool biased, int tile) {
    return gpu::config_for({kQk, kV, CLARY_HEAD_DIM, CLARY_HEAD_DIM_V, tile, key_bias, key_scales, biased, kSums});
}

// Shared memory of the kernel on a machine, however little that has of it; 0 where it lacks the products.
template <gpu::Machine kMachine, gpu::AttentionConfig kConfig>
__host__ __device__ constexpr uint32_t shared_bytes_on() {
    using gpu::Element;
    constexpr Element kP = kV == Element::kS8 ? Element::kU8 : kV;
    constexpr Element kT = kV == Element::kS8          ? Element::kS32
                           : kSums == gpu::Sums::kWide ? Element::kF32
                                                       : Element::kF16;
    if constexpr (gpu::has_product(kMachine, kQk, kQk, kExact ? Element::kF32 : Element::kS32) &&
                  gpu::has_product(kMachine, kP, kV, kT)) {
        constexpr gpu::Machine kRoomy = [] {
            gpu::Machine machine = kMachine;
            machine.shared_bytes = 1u << 30;
            return machine;
        }();
        return gpu::AttentionKernel<gpu::Nvidia<kRoomy>, kConfig>::kSharedBytes;
    } else {
        return 0;
    }
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
    constexpr gpu::AttentionConfig k_##suffix = config(__VA_ARGS__);                       \
    }                                                                                      \
    extern "C" __global__ void __launch_bounds__(k_##suffix.waves * 32, k_##suffix.blocks) \
        CLARY_NAME(suffix)(const __grid_constant__ gpu::AttentionParams params) {          \
        run<k_##suffix>(params);                                                           \
    }                                                                                      \
    }
#define CLARY_ENTRY(suffix, ...)                                                            \
    {Format::CLARY_PV,                                                                      \
     k_##suffix,                                                                            \
     {shared_bytes_on<gpu::kSm75, k_##suffix>(), shared_bytes_on<gpu::kSm80, k_##suffix>(), \
      shared_bytes_on<gpu::kSm89, k_##suffix>()},                                           \
     {CLARY_TEXT(CLARY_NAME(suffix)), reinterpret_cast<const void*>(CLARY_NAME(suffix)), k_##suffix.waves * 32}},

#define CLARY_LANE clary::gpu::KeyScales::kLane
#define CLARY_KEY clary::gpu::KeyScales::kKey
#define CLARY_NONE clary::gpu::KeyScales::kNone

// A kernel with scales per key serves groups too, and one with masks problems without: only common cases have their own.
#define CLARY_QUANTIZED_TILE(X, tile)                   \
    X(bias_t##tile, true, CLARY_LANE, false, tile)      \
    X(t##tile, false, CLARY_LANE, false, tile)          \
    X(bias_masked_t##tile, true, CLARY_KEY, true, tile) \
    X(masked_t##tile, false, CLARY_KEY, true, tile)
// int8_fp16 and int8_bf16 scale K per token in the preset accurate.
#define CLARY_TOKEN_TILE(X, tile) X(bias_token_t##tile, true, CLARY_KEY, false, tile)
// Tiles are no part of exact recipes.
#define CLARY_EXACT(X)                     \
    X(plain, false, CLARY_NONE, false, 64) \
    X(masked, false, CLARY_NONE, true, 64)

#define CLARY_BYTE_V(X)         \
    CLARY_QUANTIZED_TILE(X, 64) \
    CLARY_QUANTIZED_TILE(X, 128)
#define CLARY_WIDE_V(X)     \
    CLARY_BYTE_V(X)         \
    CLARY_TOKEN_TILE(X, 64) \
    CLARY_TOKEN_TILE(X, 128)
// Steps of 64 keys serve both tiles (tile_of() in configs.h).
#define CLARY_HALF_V(X)                           \
    CLARY_TOKEN_TILE(X, 64)                       \
    X(t64, false, CLARY_LANE, false, 64)          \
    X(bias_masked_t64, true, CLARY_KEY, true, 64) \
    X(masked_t64, false, CLARY_KEY, true, 64)

CLARY_VARIANTS(CLARY_KERNEL)

namespace clary::cuda {
namespace {
const AttentionEntry kEntries[] = {CLARY_VARIANTS(CLARY_ENTRY)};
}
extern const std::span<const AttentionEntry> CLARY_NAME(entries);
const std::span<const AttentionEntry> CLARY_NAME(entries) = kEntries;

}  // namespace clary::cuda
