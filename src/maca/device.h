// SPDX-License-Identifier: Apache-2.0
// MetaX's runtime as the backend needs it: the GPUs of this machine, launches, errors as Status. runtime calls are in
// device.cc and nowhere else.
#pragma once

#include <string>
#include <vector>

#include "gpu/host/launch.h"
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

// For gpu/host/launch.h. Launches do not overlap.
struct Runtime {
    static constexpr uint32_t kSharedByDefault = 32 * 1024;  // surely
    static Status device(int* index);
    static Status use(int index);
    static Status prepare(const Kernel& kernel, uint32_t shared_bytes);
    static Status start(const Kernel& kernel, unsigned blocks, uint32_t shared_bytes, void** arguments, void* stream,
                        bool overlaps);
};

}  // namespace clary::maca
