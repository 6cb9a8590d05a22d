// SPDX-License-Identifier: Apache-2.0
#include "maca/kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/host/rows.h"
#include "maca/device.h"

namespace clary::maca {
namespace {

std::string usable(const Arch& arch) {
    if (attention_entries(arch.machine.chip).empty()) return "this build has no code for it";
    if (!no_gpu().empty()) return no_gpu();
    if (std::find(devices().begin(), devices().end(), &arch) != devices().end()) return "";
    return "no GPU of this machine is one";
}

struct Backend {
    using Runtime = maca::Runtime;
    using Arch = maca::Arch;
    using AttentionEntry = maca::AttentionEntry;
    static constexpr const char *kName = "maca", *kTitle = "MACA",
                                *kEverywhere = "int8_int8, int8_fp16, int8_bf16, fp16_fp16, bf16_bf16";
    static constexpr DeviceType kDevice = DeviceType::kMaca;
    static constexpr const auto& kArchs = maca::kArchs;

    static std::string usable(const Arch& arch) { return maca::usable(arch); }
    static int32_t device_count() { return static_cast<int32_t>(devices().size()); }
    static const Arch* arch_of(int32_t device) { return devices()[static_cast<size_t>(device)]; }
    static std::string device_text(const Arch& arch, int32_t) { return fmt::format("no {}", arch.name); }

    static const gpu::Machine& machine(const Arch& arch) { return arch.machine; }
    static bool overlaps(const Arch&) { return false; }
    static auto attention(const Arch& arch) { return attention_entries(arch.machine.chip); }
    static auto quantize(const Arch& arch) { return quantize_entries(arch.machine.chip); }
    static uint32_t shared_bytes(const Arch&, const AttentionEntry& entry) { return entry.shared_bytes; }
    static const Stage& merge_stage(const Arch& arch) { return merge_entry(arch.machine.chip)->merge; }
    static const Stage& combine_stage(const Arch& arch) { return merge_entry(arch.machine.chip)->combine; }
    // The device says which code it takes.
    static Status merge(const MergeViews& views, int32_t device, void* stream) {
        if (device < 0 || device >= device_count() || arch_of(device) == nullptr)
            return unsupported(fmt::format("parts: on MACA device {}; allowed: one of xcore1000, xcore1500", device));
        return gpu::Phases<Backend>::merge(*arch_of(device), views, device, stream);
    }
};

constexpr gpu::RowNames kNames[] = {CLARY_ROW_NAMES("maca_xcore1500"), CLARY_ROW_NAMES("maca_xcore1000")};
constexpr auto kRows = gpu::table_rows<Backend>(kNames);

}  // namespace

KernelTable kernels() { return kRows; }

}  // namespace clary::maca
