// SPDX-License-Identifier: Apache-2.0
// Hopper's attention kernels of one recipe and head dim (a unit), given by the build:
//   CLARY_UNIT        e.g. int8_fp16_d128
//   CLARY_PV          a Format
//   CLARY_HEAD_DIM, CLARY_HEAD_DIM_V
#include "cuda/sm90/attention_kernel.cuh"
#include "cuda/sm90/entries.h"
#include "cuda/target.cuh"

// Plain names, so that a profiler shows clary_sm90_int8_int8_d128_bias.
#define CLARY_NAME(suffix) CLARY_PASTE(clary_sm90_, CLARY_UNIT, suffix)

#define CLARY_KERNEL(suffix, key_bias, want_lse)                                                               \
    namespace clary::cuda::sm90 {                                                                              \
    namespace {                                                                                                \
    constexpr Config k_##suffix{gpu::element_of(Format::CLARY_PV), CLARY_HEAD_DIM, CLARY_HEAD_DIM_V, key_bias, \
                                want_lse};                                                                     \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                  \
        CLARY_NAME(suffix)(const __grid_constant__ Params params) {                                            \
        Attention<k_##suffix>::run(params);                                                                    \
    }                                                                                                          \
    }
#define CLARY_ENTRY(suffix, key_bias, want_lse) \
    {k_##suffix,                                \
     Attention<k_##suffix>::kSharedBytes,       \
     {CLARY_TEXT(CLARY_NAME(suffix)), reinterpret_cast<const void*>(CLARY_NAME(suffix)), kThreads}},

#define CLARY_VARIANTS(X)  \
    X(plain, false, false) \
    X(lse, false, true)    \
    X(bias, true, false)   \
    X(bias_lse, true, true)

CLARY_VARIANTS(CLARY_KERNEL)

namespace clary::cuda::sm90 {

namespace {
const Entry kEntries[] = {CLARY_VARIANTS(CLARY_ENTRY)};
}
extern const std::span<const Entry> CLARY_NAME(entries);
const std::span<const Entry> CLARY_NAME(entries) = kEntries;

}  // namespace clary::cuda::sm90
