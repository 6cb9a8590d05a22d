// SPDX-License-Identifier: Apache-2.0
// The two phases on buffers of a caller's: what a caller could get wrong about a packed buffer is found here, once for all
// backends, before a kernel reads it. Contents of buffers on a GPU are the row's to check.
#pragma once

#include "core/kernel_table.h"

namespace clary {

// What a caller holds: clary_packed, checked for null and struct_size.
struct PackedBuffer {
    const char* name;  // of the argument, for messages
    void* data;
    size_t bytes;
    DeviceType device;
    int32_t device_index;
};

// Each with `call.workspace` of row.workspace() bytes. Null buffers: see clary_quantize.
Status quantize(const KernelRow& row, const Call& call, int64_t kv_capacity, const PackedBuffer* q,
                const PackedBuffer* kv, const PackedBuffer* kv_ready);
Status attend(const KernelRow& row, const Call& call, int64_t kv_capacity, const PackedBuffer& q,
              const PackedBuffer& kv);
Status append(const KernelRow& row, const Call& call, int64_t kv_capacity, const PackedBuffer& kv);

}  // namespace clary
