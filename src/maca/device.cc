// SPDX-License-Identifier: Apache-2.0
#include "maca/device.h"

#include <fmt/format.h>
#include <mc_runtime.h>

namespace clary::maca {
namespace {

constexpr uint32_t kSharedByDefault = 32 * 1024;  // dynamic shared memory that surely needs no asking
constexpr int64_t kMaxBlocks = 0x7fffffff;        // along x

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

// Threads that find the bit unset at once all raise the limit, to the same value.
Status raise_shared_limit(const Kernel& kernel, int device, uint32_t bytes) {
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (bytes <= kSharedByDefault || (kernel.raised.load(std::memory_order_relaxed) & bit) != 0) return Status::ok();
    CLARY_RETURN_IF_ERROR(status_of(
        mcFuncSetAttribute(kernel.function, mcFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        kernel.name));
    kernel.raised.fetch_or(bit, std::memory_order_relaxed);
    return Status::ok();
}

}  // namespace

const std::vector<const Arch*>& devices() { return found().devices; }
const std::string& no_gpu() { return found().problem; }

Status launch(const Kernel& kernel, int device, int64_t blocks, uint32_t shared_bytes, const void* params,
              void* stream) {
    if (blocks == 0) return Status::ok();
    if (blocks > kMaxBlocks)
        return unsupported(fmt::format("q, k: {} blocks of {}; allowed: up to 2^31 - 1", blocks, kernel.name));
    CLARY_RETURN_IF_ERROR(raise_shared_limit(kernel, device, shared_bytes));
    void* arguments[] = {const_cast<void*>(params)};
    return status_of(mcLaunchKernel(kernel.function, dim3{static_cast<unsigned>(blocks), 1, 1},
                                    dim3{static_cast<unsigned>(kernel.threads), 1, 1}, arguments, shared_bytes,
                                    static_cast<mcStream_t>(stream)),
                     kernel.name);
}

DeviceGuard::DeviceGuard(int index) {
    int now = 0;
    status_ = status_of(mcGetDevice(&now), "mcGetDevice");
    if (!status_.is_ok() || now == index) return;
    status_ = status_of(mcSetDevice(index), "mcSetDevice");
    if (status_.is_ok()) before_ = now;
}

DeviceGuard::~DeviceGuard() {
    if (before_ >= 0) static_cast<void>(mcSetDevice(before_));
}

}  // namespace clary::maca
