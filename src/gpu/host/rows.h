// SPDX-License-Identifier: Apache-2.0
// Rows of a GPU backend's kernel table. What a Backend B has besides that of phases.h:
//
//   kName, kTitle, kDevice            "cuda", "CUDA", DeviceType
//   kArchs                            its architectures
//   usable(arch)                      as KernelRow's
//   device_count(), arch_of(index), device_text(arch, index)   the machine's GPUs; what is said of one that is not of arch
//   merge                             as KernelRow's
#pragma once

#include <array>
#include <iterator>
#include <utility>

#include "gpu/host/phases.h"

namespace clary::gpu {

// Recipes of the rows of an architecture, and the rows' names.
inline constexpr RecipeFormats kTaken[] = {
    {Format::kInt8, Format::kInt8}, {Format::kInt8, Format::kFp16}, {Format::kInt8, Format::kBf16},
    {Format::kInt8, Format::kFp8},  {Format::kInt4, Format::kInt8}, {Format::kInt4, Format::kFp16},
    {Format::kInt4, Format::kFp8},  {Format::kFp16, Format::kFp16}, {Format::kBf16, Format::kBf16},
};
using RowNames = std::array<const char*, std::size(kTaken)>;
#define CLARY_ROW_NAMES(arch)                                                                         \
    clary::gpu::RowNames {                                                                            \
        arch "_int8_int8", arch "_int8_fp16", arch "_int8_bf16", arch "_int8_fp8", arch "_int4_int8", \
            arch "_int4_fp16", arch "_int4_fp8", arch "_fp16_fp16", arch "_bf16_bf16"                 \
    }

template <class B, size_t kArch>
struct TableRow {
    using Phases = gpu::Phases<B>;
    static constexpr const auto& arch = B::kArchs[kArch];
    static const Arrangement& arrangement() { return arrangement_of(B::machine(arch)); }

    static std::string usable() { return B::usable(arch); }
    // Where this machine has GPUs, the tensors' one must be of the row's architecture.
    static std::string supports(const AttentionDesc& desc) {
        if (desc.device == B::kDevice && usable().empty()) {
            const int32_t count = B::device_count();
            if (desc.device_index < 0 || desc.device_index >= count)
                return fmt::format("q: on {} device {}; allowed: 0..{}", B::kTitle, desc.device_index, count - 1);
            if (B::arch_of(desc.device_index) != &arch)
                return fmt::format("q: on {} device {}, which is {}; allowed: a kernel of it", B::kTitle,
                                   desc.device_index, B::device_text(arch, desc.device_index));
        }
        return Phases::refusal(arch, desc);
    }
    static PackedLayout q_layout(const AttentionDesc& desc) { return packed_q_layout(desc, arrangement()); }
    static PackedLayout kv_layout(const AttentionDesc& desc, int64_t kv_capacity) {
        return packed_kv_layout(desc, kv_capacity, arrangement());
    }
    static int64_t workspace(const AttentionDesc& desc, const Context&) { return Phases::workspace(desc); }
    static Status quantize(const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv, const void* ready) {
        return Phases::quantize(arch, call, kv_capacity, packed_q, packed_kv, ready);
    }
    static Status attend(const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
        return Phases::attend(arch, call, kv_capacity, packed_q, packed_kv);
    }
    static Status append(const Call& call, int64_t kv_capacity, void* packed_kv) {
        return Phases::append(arch, call, kv_capacity, packed_kv);
    }
    static constexpr KernelRow row(const char* name, const RecipeFormats& formats) {
        return {name,      B::kName, arch.name, formats.qk, formats.pv, usable,     supports, q_layout, kv_layout,
                workspace, quantize, attend,    append,     nullptr,    B::kDevice, B::merge, pieces_of};
    }
};

// The rows of all architectures; names as B::kArchs.
template <class B, size_t... kIndex>
constexpr std::array<KernelRow, sizeof...(kIndex)> table_rows(const RowNames* names, std::index_sequence<kIndex...>) {
    constexpr size_t kRecipes = std::size(kTaken);
    return {
        TableRow<B, kIndex / kRecipes>::row(names[kIndex / kRecipes][kIndex % kRecipes], kTaken[kIndex % kRecipes])...};
}
template <class B, size_t kArchs>
constexpr auto table_rows(const RowNames (&names)[kArchs]) {
    static_assert(kArchs == std::size(B::kArchs));
    return table_rows<B>(names, std::make_index_sequence<kArchs * std::size(kTaken)>());
}

}  // namespace clary::gpu
