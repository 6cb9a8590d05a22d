// SPDX-License-Identifier: Apache-2.0
// Launching a kernel, and the current device of a call: no allocation, no waiting, every error named. A vendor's Runtime R
// is a struct of
//
//   device(&index), use(index)        the thread's current device
//   prepare(kernel, shared_bytes)     before its first launch on the current device
//   start(kernel, blocks, shared_bytes, arguments, stream, overlaps)
//
// all of which give a Status.
#pragma once

#include <fmt/format.h>

#include "core/status.h"
#include "gpu/host/entries.h"

namespace clary::gpu {

// Makes `index` the thread's current device and puts the old one back.
template <class R>
class DeviceGuard {
  public:
    explicit DeviceGuard(int index) {
        int now = 0;
        status_ = R::device(&now);
        if (!status_.is_ok() || now == index) return;
        status_ = R::use(index);
        if (status_.is_ok()) before_ = now;
    }
    ~DeviceGuard() {
        if (before_ >= 0) static_cast<void>(R::use(before_));
    }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;
    const Status& status() const { return status_; }

  private:
    int before_ = -1;  // -1: nothing to put back
    Status status_;
};

// One-dimensional grid on `stream` of the current device, whose index is `device`. `params` is the kernel's only
// parameter. No blocks: nothing happens. `overlaps`: it may start before the kernel ahead of it in the stream has ended,
// where R can and that kernel lets it (T::let_next_start, T::wait_for_previous).
template <class R>
Status launch(const Kernel& kernel, int device, int64_t blocks, uint32_t shared_bytes, const void* params, void* stream,
              bool overlaps) {
    constexpr int64_t kMaxBlocks = 0x7fffffff;  // along x
    if (blocks == 0) return Status::ok();
    if (blocks > kMaxBlocks)
        return unsupported(fmt::format("q, k: {} blocks of {}; allowed: up to 2^31 - 1", blocks, kernel.name));
    // Threads that find the bit unset at once all prepare it, alike.
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if ((kernel.prepared.load(std::memory_order_relaxed) & bit) == 0) {
        CLARY_RETURN_IF_ERROR(R::prepare(kernel, shared_bytes));
        kernel.prepared.fetch_or(bit, std::memory_order_relaxed);
    }
    void* arguments[] = {const_cast<void*>(params)};
    return R::start(kernel, static_cast<unsigned>(blocks), shared_bytes, arguments, stream, overlaps);
}

}  // namespace clary::gpu
