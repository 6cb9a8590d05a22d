// SPDX-License-Identifier: Apache-2.0
// A backend is a constexpr table of kernel rows, best first. Dispatch walks the tables and `explain` prints them;
// there are no if-ladders elsewhere. core knows backends through this header alone.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/context.h"
#include "core/desc.h"
#include "core/packed.h"

namespace clary {

// What a kernel gets besides the problem.
struct Call {
    const AttentionDesc& desc;
    Context& context;
    void* stream = nullptr;
    void* workspace = nullptr;  // 64-byte aligned, at least what the row's workspace function said
};

struct MergeViews;

struct KernelRow {
    const char* name;     // <backend>_<arch>_<qk>_<pv>, e.g. "cpu_avx512_int8_int8"
    const char* backend;  // "cpu", "cuda", "maca", "sim", "reference"
    const char* arch;     // "avx512", "sm90"; "" where a backend has only one
    Format qk, pv;

    // "" when this machine can run the kernel, else the reason why not. Asked only about tensors on the row's device, so
    // that work on the CPU never starts a GPU's driver.
    std::string (*usable)();
    // "" when the kernel takes the problem (recipe's options included), else the argument, its value and what is allowed.
    std::string (*supports)(const AttentionDesc& desc);

    // Two-phase kernels: the layouts that they read (packed.h has those of the CPU), and the phases. What a caller could
    // get wrong about a buffer has been checked (two_phase.h).
    PackedLayout (*q_layout)(const AttentionDesc& desc);
    PackedLayout (*kv_layout)(const AttentionDesc& desc, int64_t kv_capacity);
    int64_t (*workspace)(const AttentionDesc& desc, const Context& context);  // bytes that each of the three needs
    // packed_q or packed_kv may be null. With packed_kv null, `ready` holds the K and V that Q will attend to.
    Status (*quantize)(const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv, const void* ready);
    Status (*attend)(const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv);
    Status (*append)(const Call& call, int64_t kv_capacity, void* packed_kv);  // null: cannot

    // One-shot kernels (the reference): everything in one call, no packed format; then the six above are null.
    Status (*attention)(const Call& call);

    // Where its tensors, packed buffers and workspace lie. On a GPU `quantize` also writes the headers of packed buffers and
    // `attend` checks them (docs/decisions/0008-packed-buffers-on-a-gpu.md): the host cannot look.
    DeviceType device = DeviceType::kCpu;

    // clary_merge on that device, dense views (core/merge.h); null: cannot.
    Status (*merge)(const MergeViews& views, int32_t device_index, void* stream) = nullptr;

    // Pieces that attending cuts the keys into, each worked through on its own; null: it never does.
    int (*pieces)(const AttentionDesc& desc) = nullptr;
};

using KernelTable = std::span<const KernelRow>;

}  // namespace clary
