// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/device.h"

namespace clary::cuda {
namespace {

constexpr uint32_t kSharedByDefault = 48 * 1024;  // dynamic shared memory that needs no asking
constexpr int64_t kMaxBlocks = 0x7fffffff;        // along x

// Threads that find the bit unset at once all raise the limit, to the same value.
Status raise_shared_limit(const Kernel& kernel, int device, uint32_t bytes) {
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (bytes <= kSharedByDefault || (kernel.raised.load(std::memory_order_relaxed) & bit) != 0) return Status::ok();
    CLARY_RETURN_IF_ERROR(status_of(
        cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        kernel.name));
    kernel.raised.fetch_or(bit, std::memory_order_relaxed);
    return Status::ok();
}

}  // namespace

Status launch(const Kernel& kernel, int device, int64_t blocks, uint32_t shared_bytes, const void* params, void* stream,
              bool overlaps) {
    if (blocks == 0) return Status::ok();
    if (blocks > kMaxBlocks)
        return unsupported(fmt::format("q, k: {} blocks of {}; allowed: up to 2^31 - 1", blocks, kernel.name));
    CLARY_RETURN_IF_ERROR(raise_shared_limit(kernel, device, shared_bytes));
    void* arguments[] = {const_cast<void*>(params)};
    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &overlap;
    config.numAttrs = overlaps ? 1 : 0;
    return status_of(cudaLaunchKernelExC(&config, kernel.function, arguments), kernel.name);
}

}  // namespace clary::cuda
