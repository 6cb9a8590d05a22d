// SPDX-License-Identifier: Apache-2.0
// The Target that kernels of a .cu file are compiled for: one per intermediate architecture of the build, behind one symbol.
#pragma once

#include "cuda/archs.h"
#include "gpu/target/nvidia.h"

namespace clary::cuda {

#ifdef __CUDA_ARCH__
inline constexpr gpu::Machine kCompiledFor = machine_of(__CUDA_ARCH__ / 10);
#else
inline constexpr gpu::Machine kCompiledFor = gpu::kSm80;  // the host's pass emits no kernel
#endif
using Target = gpu::Nvidia<kCompiledFor>;

}  // namespace clary::cuda

// Names of kernels from what the build gives: a b _ c as one word, and as text.
#define CLARY_PASTE2(a, b, c) a##b##_##c
#define CLARY_PASTE(a, b, c) CLARY_PASTE2(a, b, c)
#define CLARY_TEXT2(x) #x
#define CLARY_TEXT(x) CLARY_TEXT2(x)
