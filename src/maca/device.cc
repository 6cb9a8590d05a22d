// SPDX-License-Identifier: Apache-2.0
#include "maca/device.h"

#include <fmt/format.h>
#include <mc_runtime.h>

namespace clary::maca {
namespace {

struct Found {
    std::vector<const Arch*> devices;
    std::string problem;

    Found() {
        int count = 0;
        if (const mcError_t error = mcGetDeviceCount(&count); error != mcSuccess || count == 0)
            problem = fmt::format("no MetaX GPU ({})", mcGetErrorString(error));
        for (int i = 0; problem.empty() && i < count; ++i) {
            mcDeviceProp_t properties{};
            if (mcGetDeviceProperties(&properties, i) != mcSuccess) problem = fmt::format("GPU {} does not answer", i);
            devices.push_back(nullptr);
            for (const Arch& arch : kArchs)
                if (arch.major == properties.major) devices.back() = &arch;
        }
        static_cast<void>(mcGetLastError());  // a failure here is not the next call's
    }
};
const Found& found() {
    static const Found once;
    return once;
}

Status status_of(mcError_t error, const char* what) {
    if (error == mcSuccess) return Status::ok();
    static_cast<void>(mcGetLastError());
    return {StatusCode::kDriverError, fmt::format("{}: {}", what, mcGetErrorString(error))};
}

}  // namespace

const std::vector<const Arch*>& devices() { return found().devices; }
const std::string& no_gpu() { return found().problem; }

Status Runtime::device(int* index) { return status_of(mcGetDevice(index), "mcGetDevice"); }
Status Runtime::use(int index) { return status_of(mcSetDevice(index), "mcSetDevice"); }

Status Runtime::prepare(const Kernel& kernel, uint32_t shared_bytes) {
    if (shared_bytes <= kSharedByDefault) return Status::ok();
    return status_of(
        mcFuncSetAttribute(kernel.function, mcFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        kernel.name);
}

Status Runtime::start(const Kernel& kernel, unsigned blocks, uint32_t shared_bytes, void** arguments, void* stream,
                      bool) {
    return status_of(
        mcLaunchKernel(kernel.function, dim3{blocks, 1, 1}, dim3{static_cast<unsigned>(kernel.threads), 1, 1},
                       arguments, shared_bytes, static_cast<mcStream_t>(stream)),
        kernel.name);
}

}  // namespace clary::maca
