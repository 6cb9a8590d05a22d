// SPDX-License-Identifier: Apache-2.0
// Picks the kernel for a problem: the first row of the tables that is asked for, usable and supports it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/kernel_table.h"

namespace clary {

struct Rejection {
    const KernelRow* row;
    std::string reason;
};

struct Choice {
    const KernelRow* row = nullptr;     // null: none
    std::vector<Rejection> rejections;  // of the rows before it that are of the asked backend and recipe
};

// `backend`: "auto", "<backend>" or "<backend>:<arch>". "auto" never picks the reference or a simulator.
// With recipe_is_auto, desc->recipe becomes the best recipe that a kernel supports; the best of all where none does.
// Fails where `backend` names nothing; a Choice without row is not a failure.
Status choose_kernel(std::span<const KernelTable> tables, std::string_view backend, bool recipe_is_auto,
                     AttentionDesc* desc, Choice* choice);

// Why `row` does not run the problem on this machine, whatever its recipe; "" where it does.
std::string rejection_of(const KernelRow& row, const AttentionDesc& desc);

// The failure to report when nothing fits.
Status no_kernel(const AttentionDesc& desc, std::string_view backend, const Choice& choice);

// Bytes of workspace of a one-shot call: the packed buffers of a two-phase kernel and what attending needs.
int64_t one_shot_workspace(const KernelRow& row, const AttentionDesc& desc, const Context& context);
// Runs a one-shot call; the workspace has one_shot_workspace() bytes.
Status run_one_shot(const KernelRow& row, const Call& call);

// The JSON of clary_explain.
std::string explain_json(const AttentionDesc& desc, std::string_view backend, const Choice& choice,
                         std::span<const KernelTable> tables, const Context& context);

// Dense views on a device.
Status merge_on(std::span<const KernelTable> tables, DeviceType device, int32_t device_index, void* stream,
                const MergeViews& views);

}  // namespace clary
