// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace clary::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

struct Found {
    std::vector<int> capabilities;
    std::string problem;

    Found() {
        int driver = 0, count = 0;
        if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
            problem = "no NVIDIA driver";
        } else if (driver / 1000 < CUDART_VERSION / 1000) {
            problem = fmt::format("the NVIDIA driver is for CUDA {}; allowed: {} or newer (driver 580 for CUDA 13)",
                                  version_text(driver), version_text(CUDART_VERSION / 1000 * 1000));
        } else if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
            problem = fmt::format("no NVIDIA GPU ({})", cudaGetErrorString(error));
        }
        for (int i = 0; problem.empty() && i < count; ++i) {
            int major = 0, minor = 0;
            if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess ||
                cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i) != cudaSuccess)
                problem = fmt::format("GPU {} does not answer", i);
            capabilities.push_back(major * 10 + minor);
        }
        static_cast<void>(cudaGetLastError());  // a failure here is not the next call's
    }
};

const Found& found() {
    static const Found once;
    return once;
}

}  // namespace

const std::vector<int>& capabilities() { return found().capabilities; }
const std::string& no_gpu() { return found().problem; }

Status status_of(int error, const char* what) {
    if (error == cudaSuccess) return Status::ok();
    static_cast<void>(cudaGetLastError());
    const auto code = static_cast<cudaError_t>(error);
    return {StatusCode::kDriverError,
            fmt::format("{}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code))};
}

Status Runtime::device(int* index) { return status_of(cudaGetDevice(index), "cudaGetDevice"); }
Status Runtime::use(int index) { return status_of(cudaSetDevice(index), "cudaSetDevice"); }

Status Runtime::prepare(const gpu::Kernel& kernel, uint32_t shared_bytes) {
    const auto set = [&](cudaFuncAttribute attribute, int value) {
        return status_of(cudaFuncSetAttribute(kernel.function, attribute, value), kernel.name);
    };
    if (shared_bytes > kSharedByDefault)
        CLARY_RETURN_IF_ERROR(set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
    if (!kernel.overlaps) return Status::ok();
    // Both alike: while blocks of one run, a multiprocessor cannot divide its memory anew for the other.
    return set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

Status Runtime::start(const gpu::Kernel& kernel, unsigned blocks, uint32_t shared_bytes, void** arguments, void* stream,
                      bool overlaps) {
    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &overlap;
    config.numAttrs = overlaps ? 1 : 0;
    return status_of(cudaLaunchKernelExC(&config, kernel.function, arguments), kernel.name);
}

}  // namespace clary::cuda
