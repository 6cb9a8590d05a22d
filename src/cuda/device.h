// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, errors of the CUDA runtime as Status, and the current device of a call.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace clary::cuda {

// Of each GPU, by device index: compute capability, e.g. 90. Asked once per process.
const std::vector<int>& capabilities();
// Why there is no GPU to use, one line; "" where there is one.
const std::string& no_gpu();

// `error` is a cudaError_t; "" of 0. `what` failed.
Status status_of(int error, const char* what);

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

}  // namespace clary::cuda
