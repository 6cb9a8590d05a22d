// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, and the CUDA runtime as launches need it, errors as Status.
#pragma once

#include <string>
#include <vector>

#include "gpu/host/launch.h"

namespace clary::cuda {

// Of each GPU, by device index: compute capability, e.g. 90. Asked once per process.
const std::vector<int>& capabilities();
// Why there is no GPU to use, one line; "" where there is one.
const std::string& no_gpu();

// `error` is a cudaError_t; "" of 0. `what` failed.
Status status_of(int error, const char* what);

// For gpu/host/launch.h. Launches overlap on sm90 and later.
struct Runtime {
    static constexpr uint32_t kSharedByDefault = 48 * 1024;
    static Status device(int* index);
    static Status use(int index);
    static Status prepare(const gpu::Kernel& kernel, uint32_t shared_bytes);
    static Status start(const gpu::Kernel& kernel, unsigned blocks, uint32_t shared_bytes, void** arguments,
                        void* stream, bool overlaps);
};
using DeviceGuard = gpu::DeviceGuard<Runtime>;

}  // namespace clary::cuda
