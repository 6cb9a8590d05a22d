// SPDX-License-Identifier: Apache-2.0
// MetaX's runtime as the backend needs it: the GPUs of this machine, launches, errors as Status. runtime calls are in
// device.cc and nowhere else.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "maca/entries.h"

namespace clary::maca {

struct Arch {
    const char* name;  // the arch of a KernelRow
    int major;         // of mcDeviceProp_t
    uint32_t shared_bytes;
    gpu::Machine machine;
};
inline constexpr Arch kArchs[] = {{"xcore1500", 15, gpu::kXcore1500.shared_bytes, gpu::kXcore1500},
                                  {"xcore1000", 10, gpu::kXcore1000.shared_bytes, gpu::kXcore1000}};

// Of each GPU, by device index; null: none of the table's. Asked once per process.
const std::vector<const Arch*>& devices();
// Why there is no GPU to use, one line; "" where there is one.
const std::string& no_gpu();

// One-dimensional grid on `stream` of the current device, whose index is `device`. `params` is the kernel's only
// parameter. No blocks: nothing happens.
Status launch(const Kernel& kernel, int device, int64_t blocks, uint32_t shared_bytes, const void* params,
              void* stream);

// Makes `index` the thread's current device and puts the old one back.
class DeviceGuard {
  public:
    explicit DeviceGuard(int index);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;
    const Status& status() const { return status_; }

  private:
    int before_ = -1;  // -1: nothing to put back
    Status status_;
};

}  // namespace clary::maca
