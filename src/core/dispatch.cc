// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/merge.h"

namespace clary {
namespace {

struct BackendQuery {
    std::string_view backend, arch;  // arch "": any

    explicit BackendQuery(std::string_view text) {
        const size_t colon = text.find(':');
        backend = text.substr(0, colon);
        if (colon != std::string_view::npos) arch = text.substr(colon + 1);
    }
    bool matches(const KernelRow& row) const {
        if (backend == "auto" && !arch.empty()) return false;
        if (backend == "auto")
            return row.backend != std::string_view("reference") && row.backend != std::string_view("sim");
        return backend == row.backend && (arch.empty() || arch == row.arch);
    }
};

Status check_backend(std::span<const KernelTable> tables, std::string_view backend) {
    if (backend == "auto") return Status::ok();
    const BackendQuery query(backend);
    std::set<std::string> known = {"auto"};
    for (const KernelTable& table : tables)
        for (const KernelRow& row : table) {
            if (query.matches(row)) return Status::ok();
            known.insert(row.backend);
            if (*row.arch != '\0') known.insert(fmt::format("{}:{}", row.backend, row.arch));
        }
    const bool exists = query.backend == "cuda" || query.backend == "maca" || query.backend == "sim";
    return {exists ? StatusCode::kNoDevice : StatusCode::kInvalidArgument,
            fmt::format("backend: '{}' is {}; allowed: {}", backend, exists ? "not part of this build" : "unknown",
                        fmt::join(known, ", "))};
}

// First fitting row for desc.recipe; rejections are collected on the way.
void search(std::span<const KernelTable> tables, const BackendQuery& query, const AttentionDesc& desc, Choice* choice) {
    for (const KernelTable& table : tables)
        for (const KernelRow& row : table) {
            if (!query.matches(row) || row.qk != desc.recipe.qk || row.pv != desc.recipe.pv) continue;
            std::string reason = rejection_of(row, desc);
            if (reason.empty()) {
                choice->row = &row;
                return;
            }
            choice->rejections.push_back({&row, std::move(reason)});
        }
}

const char* memory_of(DeviceType device) {
    return device == DeviceType::kCpu ? "CPU memory" : device == DeviceType::kCuda ? "CUDA memory" : "MXMACA memory";
}

}  // namespace

std::string rejection_of(const KernelRow& row, const AttentionDesc& desc) {
    if (row.device != desc.device)
        return fmt::format("q: in {}; allowed: tensors in {}", memory_of(desc.device), memory_of(row.device));
    if (std::string reason = row.usable(); !reason.empty()) return reason;
    return row.supports(desc);
}

Status choose_kernel(std::span<const KernelTable> tables, std::string_view backend, bool recipe_is_auto,
                     AttentionDesc* desc, Choice* choice) {
    CLARY_RETURN_IF_ERROR(check_backend(tables, backend));
    const BackendQuery query(backend);
    if (!recipe_is_auto) {
        search(tables, query, *desc, choice);
        return Status::ok();
    }
    for (const RecipeFormats& formats : kAutoRecipes) {
        desc->recipe = preset_recipe(formats.qk, formats.pv, Preset::kAccurate);
        search(tables, query, *desc, choice);
        if (choice->row) return Status::ok();
    }
    // Nothing runs: what is said about it is said of the best one.
    desc->recipe = preset_recipe(kAutoRecipes[0].qk, kAutoRecipes[0].pv, Preset::kAccurate);
    return Status::ok();
}

Status no_kernel(const AttentionDesc& desc, std::string_view backend, const Choice& choice) {
    if (choice.rejections.empty())
        return unsupported(
            fmt::format("recipe: {} has no kernel on backend {}; see clary_explain, or use "
                        "backend reference",
                        recipe_text(desc.recipe), backend));
    // What the problem lacks helps more than what the machine lacks; the last row is the most general of its backend.
    const auto about_problem = [&](const Rejection& rejection) {
        return rejection.row->device == desc.device && rejection.row->usable().empty();
    };
    const auto found = std::find_if(choice.rejections.rbegin(), choice.rejections.rend(), about_problem);
    const Rejection& last = found == choice.rejections.rend() ? choice.rejections.back() : *found;
    const bool no_gpu =
        last.row->device == desc.device && desc.device != DeviceType::kCpu && !last.row->usable().empty();
    return {no_gpu ? StatusCode::kNoDevice : StatusCode::kUnsupported,
            fmt::format("{} ({})", last.reason, last.row->name)};
}

int64_t one_shot_workspace(const KernelRow& row, const AttentionDesc& desc, const Context& context) {
    if (row.attention) return 0;
    return row.q_layout(desc).bytes + row.kv_layout(desc, 0).bytes + row.workspace(desc, context);
}

Status run_one_shot(const KernelRow& row, const Call& call) {
    if (row.attention) return row.attention(call);
    auto* const packed_q = static_cast<char*>(call.workspace);
    char* const packed_kv = packed_q + row.q_layout(call.desc).bytes;
    Call inner = call;
    inner.workspace = packed_kv + row.kv_layout(call.desc, 0).bytes;
    CLARY_RETURN_IF_ERROR(row.quantize(inner, 0, packed_q, packed_kv, nullptr));
    return row.attend(inner, 0, packed_q, packed_kv);
}

Status merge_on(std::span<const KernelTable> tables, DeviceType device, int32_t device_index, void* stream,
                const MergeViews& views) {
    if (device == DeviceType::kCpu) {
        merge(views);
        return Status::ok();
    }
    std::string reason;  // of the first kernel that cannot
    for (const KernelTable& table : tables)
        for (const KernelRow& row : table) {
            if (row.device != device || row.merge == nullptr) continue;
            const std::string why = row.usable();
            if (why.empty()) return row.merge(views, device_index, stream);
            if (reason.empty()) reason = fmt::format(" ({}: {})", row.name, why);
        }
    return unsupported(fmt::format("out_a: in {}; allowed: CPU memory{}", memory_of(device), reason));
}

}  // namespace clary
