// SPDX-License-Identifier: Apache-2.0
// Boolean and additive masks of every broadcast shape, rows without a visible key, ALiBi and sinks.
#include <fmt/format.h>

#include "cases/case.h"

namespace clary::cases {
namespace {

Case masked(std::string name, MaskForm form) {
    return {.name = std::move(name),
            .topic = form == MaskForm::kBoolean ? "boolean mask" : "additive mask",
            .batch = 2,
            .q_heads = 4,
            .kv_heads = 2,
            .q_len = 35,
            .kv_len = 150,
            .dim = 32,
            .mask = form};
}

const char* name_of(MaskForm form) {
    constexpr const char* kNames[] = {"none", "bool", "fp32", "fp16", "bf16"};
    return kNames[static_cast<int>(form)];
}

}  // namespace

std::vector<Case> mask_cases() {
    std::vector<Case> cases;
    // Every broadcast shape with two of the types, every type with two of the shapes.
    constexpr MaskForm kForms[] = {MaskForm::kBoolean, MaskForm::kF32, MaskForm::kF16, MaskForm::kBF16};
    for (int axes = 0; axes < 16; ++axes) {
        const MaskForm form = kForms[axes % 4];
        Case c = masked(fmt::format("mask_{}_{}{}{}{}", name_of(form), axes & 8 ? "b" : "1", axes & 4 ? "h" : "1",
                                    axes & 2 ? "q" : "1", axes & 1 ? "k" : "1"),
                        form);
        for (int axis = 0; axis < 4; ++axis) c.mask_axes[axis] = (axes >> (3 - axis) & 1) != 0;
        c.mask_empty_rows = c.mask_axes[2];
        cases.push_back(c);
    }
    for (const MaskForm form : kForms) {
        cases.push_back(masked(fmt::format("mask_{}_full", name_of(form)), form));
        Case rank = masked(fmt::format("mask_{}_rank2", name_of(form)), form);
        rank.mask_axes[0] = rank.mask_axes[1] = false;
        rank.mask_rank = 2;
        cases.push_back(rank);
    }
    Case keys = masked("mask_rank1", MaskForm::kBoolean);
    keys.mask_axes[0] = keys.mask_axes[1] = keys.mask_axes[2] = false;
    keys.mask_rank = 1;
    keys.mask_empty_rows = false;
    cases.push_back(keys);
    Case stride = masked("mask_stride_zero", MaskForm::kBF16);
    stride.mask_axes[1] = false;
    stride.mask_stride_zero = true;
    cases.push_back(stride);
    Case all = masked("mask_all", MaskForm::kBoolean);
    all.mask_all = true;
    cases.push_back(all);
    all.name = "mask_all_additive";
    all.topic = "additive mask";
    all.mask = MaskForm::kF16;
    cases.push_back(all);
    Case causal = masked("mask_and_causal", MaskForm::kBoolean);
    causal.causal = Causal::kBottomRight;
    causal.q_len = 140;
    cases.push_back(causal);

    const auto add = [&](const char* name, const char* topic, int64_t q_len, int64_t kv_len) -> Case& {
        Case c = masked(name, MaskForm::kNone);
        c.topic = topic;
        c.q_len = q_len;
        c.kv_len = kv_len;
        cases.push_back(c);
        return cases.back();
    };
    add("alibi", "ALiBi", 70, 200).alibi = true;
    Case& alibi_causal = add("alibi_causal", "ALiBi", 200, 200);
    alibi_causal.alibi = true;
    alibi_causal.causal = Causal::kBottomRight;
    Case& alibi_mask = add("alibi_and_mask", "ALiBi", 20, 140);
    alibi_mask.alibi = true;
    alibi_mask.mask = MaskForm::kF32;
    add("sinks", "sinks", 70, 200).sinks = true;
    Case& sinks_window = add("sinks_window", "sinks", 200, 200);
    sinks_window.sinks = true;
    sinks_window.causal = Causal::kBottomRight;
    sinks_window.window = {.enabled = true, .left = 30, .right = -1, .keep = 0};
    Case& sinks_only = add("sinks_without_keys", "sinks", 20, 0);
    sinks_only.sinks = true;
    return cases;
}

}  // namespace clary::cases
