// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "cuda/archs.h"
#include "cuda/device.h"
#include "cuda/phases.h"
#include "cuda/sm90/attend.h"
#include "gpu/attention/configs.h"

namespace clary::cuda {
namespace {

constexpr int kBuilt[] = {CLARY_CUDA_ARCHS};  // what this build has machine code for

// The table's architecture that a GPU runs: its own, else the newest older one of its generation (machine code), or for
// GPUs newer than all the newest (PTX). Null: none.
const Arch* arch_of(int capability) {
    if (capability >= kArchs[0].capability) return &kArchs[0];
    for (const Arch& arch : kArchs)
        if (arch.capability <= capability && arch.capability / 10 == capability / 10) return &arch;
    return nullptr;
}

std::string usable(const Arch& arch) {
    // A GPU runs the code of older ones of its generation too.
    const auto runs_on_it = [&](int built) { return built <= arch.capability && built / 10 == arch.capability / 10; };
    if (std::none_of(std::begin(kBuilt), std::end(kBuilt), runs_on_it))
        return fmt::format("this build has no code for it; it has sm_{}", fmt::join(kBuilt, ", sm_"));
    if (!no_gpu().empty()) return no_gpu();
    for (const int capability : capabilities())
        if (arch_of(capability) == &arch) return "";
    return fmt::format("this GPU is sm_{}", fmt::join(capabilities(), ", sm_"));
}

// Where this machine has GPUs, the tensors' one must be of the row's architecture.
std::string supports(const Arch& arch, const AttentionDesc& desc) {
    if (desc.device == DeviceType::kCuda && usable(arch).empty()) {
        const auto count = static_cast<int32_t>(capabilities().size());
        if (desc.device_index < 0 || desc.device_index >= count)
            return fmt::format("q: on CUDA device {}; allowed: 0..{}", desc.device_index, count - 1);
        const int capability = capabilities()[static_cast<size_t>(desc.device_index)];
        if (arch_of(capability) != &arch)
            return fmt::format("q: on CUDA device {}, which is sm_{}; allowed: a kernel of it", desc.device_index,
                               capability);
    }
    return refusal(arch, desc);
}

int64_t workspace(const AttentionDesc& desc, const Context&) { return cuda::workspace(desc); }

PackedLayout q_layout(const AttentionDesc& desc) { return packed_q_layout(desc, kMmaArrangement); }
PackedLayout kv_layout(const AttentionDesc& desc, int64_t kv_capacity) {
    return packed_kv_layout(desc, kv_capacity, kMmaArrangement);
}

constexpr RecipeFormats kTaken[] = {
    {Format::kInt8, Format::kInt8}, {Format::kInt8, Format::kFp16}, {Format::kInt8, Format::kBf16},
    {Format::kInt8, Format::kFp8},  {Format::kInt4, Format::kInt8}, {Format::kInt4, Format::kFp16},
    {Format::kInt4, Format::kFp8},  {Format::kFp16, Format::kFp16}, {Format::kBf16, Format::kBf16},
};
constexpr const char* kNames[std::size(kArchs)][std::size(kTaken)] = {
#define CLARY_NAMES(arch)                                                                                              \
    {                                                                                                                  \
        "cuda_" arch "_int8_int8", "cuda_" arch "_int8_fp16", "cuda_" arch "_int8_bf16", "cuda_" arch "_int8_fp8",     \
            "cuda_" arch "_int4_int8", "cuda_" arch "_int4_fp16", "cuda_" arch "_int4_fp8", "cuda_" arch "_fp16_fp16", \
            "cuda_" arch "_bf16_bf16"                                                                                  \
    }
    CLARY_NAMES("sm120"), CLARY_NAMES("sm100"), CLARY_NAMES("sm90"), CLARY_NAMES("sm89"),
    CLARY_NAMES("sm86"),  CLARY_NAMES("sm80"),  CLARY_NAMES("sm75"),
#undef CLARY_NAMES
};

template <size_t kArch>
struct Row {
    static constexpr const Arch& arch = kArchs[kArch];
    static std::string usable() { return cuda::usable(arch); }
    static std::string supports(const AttentionDesc& desc) { return cuda::supports(arch, desc); }
    static Status quantize(const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv, const void* ready) {
        return cuda::quantize(arch, call, kv_capacity, packed_q, packed_kv, ready);
    }
    static Status attend(const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
        return cuda::attend(arch, call, kv_capacity, packed_q, packed_kv);
    }
    static Status append(const Call& call, int64_t kv_capacity, void* packed_kv) {
        return cuda::append(arch, call, kv_capacity, packed_kv);
    }
    static constexpr KernelRow row(size_t recipe) {
        return {kNames[kArch][recipe],
                "cuda",
                arch.name,
                kTaken[recipe].qk,
                kTaken[recipe].pv,
                usable,
                supports,
                q_layout,
                kv_layout,
                workspace,
                quantize,
                attend,
                append,
                nullptr,
                DeviceType::kCuda,
                merge,
                gpu::pieces_of};
    }
};

// Hopper's wgmma kernels: quantization, appending and packed format are those of the other rows.
constexpr const Arch& kHopper = kArchs[2];
static_assert(kHopper.capability == 90);
std::string hopper_usable() {
    const char* const wanted = std::getenv("CLARY_CUDA_WGMMA");
    if (wanted != nullptr && std::string_view(wanted) == "0") return "CLARY_CUDA_WGMMA=0 in the environment forbids it";
    return usable(kHopper);
}
std::string hopper_supports(const AttentionDesc& desc) {
    std::string why = supports(kHopper, desc);
    if (why.empty()) why = sm90::refusal(desc);
    // Memory bounds these, and the other kernel, which has pieces of keys, is near that bound.
    if (why.empty() && gpu::is_short(desc))
        why = fmt::format("q: {} queries of {} keys; allowed: more than {} queries, or fewer than {} keys", desc.q_len,
                          desc.kv_len, gpu::kShortQuery, 2 * gpu::kPieceKeys);
    return why;
}
constexpr KernelRow hopper_row() {
    KernelRow row = Row<2>::row(0);
    row.name = "cuda_sm90_int8_int8_wgmma";
    row.usable = hopper_usable;
    row.supports = hopper_supports;
    row.attend = sm90::attend;
    return row;
}

template <size_t... kIndex>
constexpr std::array<KernelRow, 1 + sizeof...(kIndex)> all_rows(std::index_sequence<kIndex...>) {
    return {hopper_row(), Row<kIndex / std::size(kTaken)>::row(kIndex % std::size(kTaken))...};
}
constexpr auto kRows = all_rows(std::make_index_sequence<std::size(kArchs) * std::size(kTaken)>());

}  // namespace

KernelTable kernels() { return kRows; }

}  // namespace clary::cuda
