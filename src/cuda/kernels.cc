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
#include "cuda/entries.h"
#include "cuda/sm90/attend.h"
#include "gpu/host/rows.h"

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

struct Backend {
    using Runtime = cuda::Runtime;
    using Arch = cuda::Arch;
    using AttentionEntry = cuda::AttentionEntry;
    static constexpr const char *kName = "cuda", *kTitle = "CUDA", *kEverywhere = "int8_int8, int8_fp16, fp16_fp16";
    static constexpr DeviceType kDevice = DeviceType::kCuda;
    static constexpr const auto& kArchs = cuda::kArchs;

    static std::string usable(const Arch& arch) { return cuda::usable(arch); }
    static int32_t device_count() { return static_cast<int32_t>(capabilities().size()); }
    static const Arch* arch_of(int32_t device) { return cuda::arch_of(capabilities()[static_cast<size_t>(device)]); }
    static std::string device_text(const Arch&, int32_t device) {
        return fmt::format("sm_{}", capabilities()[static_cast<size_t>(device)]);
    }

    static gpu::Machine machine(const Arch& arch) { return machine_of(arch.capability); }
    static bool overlaps(const Arch& arch) { return arch.capability >= 90; }
    static auto attention(const Arch&) { return attention_entries(); }
    static auto quantize(const Arch&) { return quantize_entries(); }
    static uint32_t shared_bytes(const Arch& arch, const AttentionEntry& entry) {
        return entry.shared_on(machine(arch));
    }
    static const gpu::Stage& merge_stage(const Arch&) { return cuda::merge_stage; }
    static const gpu::Stage& combine_stage(const Arch&) { return cuda::combine_stage; }
    // The same on all.
    static Status merge(const MergeViews& views, int32_t device, void* stream) {
        return gpu::Phases<Backend>::merge(kArchs[0], views, device, stream);
    }
};
constexpr gpu::RowNames kNames[] = {
    CLARY_ROW_NAMES("cuda_sm120"), CLARY_ROW_NAMES("cuda_sm100"), CLARY_ROW_NAMES("cuda_sm90"),
    CLARY_ROW_NAMES("cuda_sm89"),  CLARY_ROW_NAMES("cuda_sm86"),  CLARY_ROW_NAMES("cuda_sm80"),
    CLARY_ROW_NAMES("cuda_sm75"),
};

// Hopper's wgmma kernels: quantization, appending and packed format are those of the other rows.
using HopperRow = gpu::TableRow<Backend, 2>;
constexpr const Arch& kHopper = HopperRow::arch;
static_assert(kHopper.capability == 90);
std::string hopper_usable() {
    const char* const wanted = std::getenv("CLARY_CUDA_WGMMA");
    if (wanted != nullptr && std::string_view(wanted) == "0") return "CLARY_CUDA_WGMMA=0 in the environment forbids it";
    return usable(kHopper);
}
std::string hopper_supports(const AttentionDesc& desc) {
    std::string why = HopperRow::supports(desc);
    if (why.empty()) why = sm90::refusal(desc);
    // Memory bounds these, and the other kernel, which has pieces of keys, is near that bound.
    if (why.empty() && gpu::is_short(desc))
        why = fmt::format("q: {} queries of {} keys; allowed: more than {} queries, or fewer than {} keys", desc.q_len,
                          desc.kv_len, kShortQuery, 2 * gpu::kPieceKeys);
    return why;
}
constexpr KernelRow hopper_row(const char* name, RecipeFormats formats) {
    KernelRow row = HopperRow::row(name, formats);
    row.usable = hopper_usable;
    row.supports = hopper_supports;
    row.attend = sm90::attend;
    return row;
}

constexpr KernelRow kHopperRows[] = {
    hopper_row("cuda_sm90_int8_int8_wgmma", {Format::kInt8, Format::kInt8}),
    hopper_row("cuda_sm90_int8_fp16_wgmma", {Format::kInt8, Format::kFp16}),
    hopper_row("cuda_sm90_int8_bf16_wgmma", {Format::kInt8, Format::kBf16}),
    hopper_row("cuda_sm90_int8_fp8_wgmma", {Format::kInt8, Format::kFp8}),
    hopper_row("cuda_sm90_int4_int8_wgmma", {Format::kInt4, Format::kInt8}),
    hopper_row("cuda_sm90_int4_fp16_wgmma", {Format::kInt4, Format::kFp16}),
    hopper_row("cuda_sm90_int4_fp8_wgmma", {Format::kInt4, Format::kFp8}),
};

constexpr auto kRows = [] {
    constexpr auto kOthers = gpu::table_rows<Backend>(kNames);
    std::array<KernelRow, std::size(kHopperRows) + kOthers.size()> rows{};
    std::copy(kOthers.begin(), kOthers.end(), std::copy(std::begin(kHopperRows), std::end(kHopperRows), rows.begin()));
    return rows;
}();

}  // namespace

KernelTable kernels() { return kRows; }

}  // namespace clary::cuda
