// SPDX-License-Identifier: Apache-2.0
// The NVIDIA architectures that the library knows, and which Target (gpu/target) serves each.
#pragma once

#include <cstdint>

#include "gpu/target/machines.h"
#include "numerics/host_device.h"

namespace clary::cuda {

struct Arch {
    const char* name;  // "sm90": the arch of a KernelRow
    int capability;    // 90
    uint32_t
        shared_bytes;  // that a block may use (CUDA programming guide, "Compute Capabilities"), 1 KiB of it reserved
};
inline constexpr Arch kArchs[] = {
    {"sm120", 120, 99 * 1024}, {"sm100", 100, 227 * 1024}, {"sm90", 90, 227 * 1024}, {"sm89", 89, 99 * 1024},
    {"sm86", 86, 99 * 1024},   {"sm80", 80, 163 * 1024},   {"sm75", 75, 64 * 1024},
};

// The instructions that kernels use there: those of the intermediate code that theirs is assembled from (cmake/ClaryCuda.cmake).
// CLARY_CUDA_TARGET builds the kernels of another class, which the GPU at hand runs as well: so that one GPU tests them all.
CLARY_HD constexpr gpu::Machine machine_of(int capability) {
#ifdef CLARY_CUDA_TARGET
    capability = CLARY_CUDA_TARGET;
    if (capability == 89) return gpu::kSm89;
#endif
    gpu::Machine machine = capability < 80 ? gpu::kSm75 : gpu::kSm80;
    machine.fp8 = capability >= 89;
    return machine;
}

}  // namespace clary::cuda
