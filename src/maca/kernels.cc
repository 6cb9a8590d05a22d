// SPDX-License-Identifier: Apache-2.0
#include "maca/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "gpu/host/phases.h"
#include "maca/device.h"

namespace clary::maca {
namespace {

struct Backend {
    using Arch = maca::Arch;
    using AttentionEntry = maca::AttentionEntry;
    using QuantizeEntry = maca::QuantizeEntry;
    using Stage = maca::Stage;
    using Guard = DeviceGuard;
    static constexpr const Arrangement& kArrangement = kMetaxArrangement;

    static auto attention(const Arch& arch) { return attention_entries(arch.machine.chip); }
    static auto quantize(const Arch& arch) { return quantize_entries(arch.machine.chip); }
    static uint32_t shared_bytes(const Arch&, const AttentionEntry& entry) { return entry.shared_bytes; }
    static const Stage& merge(const Arch& arch) { return merge_entry(arch.machine.chip)->merge; }
    static const Stage& combine(const Arch& arch) { return merge_entry(arch.machine.chip)->combine; }
    static Status launch(const Kernel& kernel, int device, int64_t blocks, uint32_t shared_bytes, const void* params,
                         void* stream) {
        return maca::launch(kernel, device, blocks, shared_bytes, params, stream);
    }
};
using Phases = gpu::Phases<Backend>;

std::string usable(const Arch& arch) {
    if (attention_entries(arch.machine.chip).empty()) return "this build has no code for it";
    if (!no_gpu().empty()) return no_gpu();
    if (std::find(devices().begin(), devices().end(), &arch) != devices().end()) return "";
    return "no GPU of this machine is one";
}

// Where this machine has GPUs, the tensors' one must be of the row's architecture.
std::string supports(const Arch& arch, const AttentionDesc& desc) {
    if (desc.device == DeviceType::kMaca && usable(arch).empty()) {
        const auto count = static_cast<int32_t>(devices().size());
        if (desc.device_index < 0 || desc.device_index >= count)
            return fmt::format("q: on MACA device {}; allowed: 0..{}", desc.device_index, count - 1);
        if (devices()[static_cast<size_t>(desc.device_index)] != &arch)
            return fmt::format("q: on MACA device {}, which is no {}; allowed: a kernel of it", desc.device_index,
                               arch.name);
    }
    return Phases::refusal(arch, desc);
}

int64_t workspace(const AttentionDesc& desc, const Context&) { return Phases::workspace(desc); }
PackedLayout q_layout(const AttentionDesc& desc) { return packed_q_layout(desc, Backend::kArrangement); }
PackedLayout kv_layout(const AttentionDesc& desc, int64_t kv_capacity) {
    return packed_kv_layout(desc, kv_capacity, Backend::kArrangement);
}
// Merging is the same on all; the device says which code it takes.
Status merge(const MergeViews& views, int32_t device, void* stream) {
    if (device < 0 || device >= static_cast<int32_t>(devices().size()) ||
        devices()[static_cast<size_t>(device)] == nullptr)
        return unsupported(fmt::format("parts: on MACA device {}; allowed: one of xcore1000, xcore1500", device));
    return Phases::merge(*devices()[static_cast<size_t>(device)], views, device, stream);
}

constexpr RecipeFormats kTaken[] = {
    {Format::kInt8, Format::kInt8}, {Format::kInt8, Format::kFp16}, {Format::kInt8, Format::kBf16},
    {Format::kFp16, Format::kFp16}, {Format::kBf16, Format::kBf16},
};
constexpr const char* kNames[std::size(kArchs)][std::size(kTaken)] = {
#define CLARY_NAMES(arch)                                                                                           \
    {                                                                                                               \
        "maca_" arch "_int8_int8", "maca_" arch "_int8_fp16", "maca_" arch "_int8_bf16", "maca_" arch "_fp16_fp16", \
            "maca_" arch "_bf16_bf16"                                                                               \
    }
    CLARY_NAMES("xcore1500"), CLARY_NAMES("xcore1000")
#undef CLARY_NAMES
};

template <size_t kArch>
struct Row {
    static constexpr const Arch& arch = kArchs[kArch];
    static std::string usable() { return maca::usable(arch); }
    static std::string supports(const AttentionDesc& desc) { return maca::supports(arch, desc); }
    static Status quantize(const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv, const void* ready) {
        return Phases::quantize(arch, call, kv_capacity, packed_q, packed_kv, ready);
    }
    static Status attend(const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
        return Phases::attend(arch, call, kv_capacity, packed_q, packed_kv);
    }
    static Status append(const Call& call, int64_t kv_capacity, void* packed_kv) {
        return Phases::append(arch, call, kv_capacity, packed_kv);
    }
    static constexpr KernelRow row(size_t recipe) {
        return {kNames[kArch][recipe],
                "maca",
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
                DeviceType::kMaca,
                merge,
                gpu::pieces_of};
    }
};

template <size_t... kIndex>
constexpr std::array<KernelRow, sizeof...(kIndex)> all_rows(std::index_sequence<kIndex...>) {
    return {Row<kIndex / std::size(kTaken)>::row(kIndex % std::size(kTaken))...};
}
constexpr auto kRows = all_rows(std::make_index_sequence<std::size(kArchs) * std::size(kTaken)>());

}  // namespace

KernelTable kernels() { return kRows; }

}  // namespace clary::maca
