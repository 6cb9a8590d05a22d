// SPDX-License-Identifier: Apache-2.0
// Causal masks of every alignment, sliding windows with kept keys, and softmax scales.
#include <fmt/format.h>

#include <cmath>

#include "cases/case.h"

namespace clary::cases {

std::vector<Case> causal_cases() {
    std::vector<Case> cases;
    const auto add = [&](const char* name, const char* topic, int64_t q_len, int64_t kv_len) -> Case& {
        cases.push_back({.name = name,
                         .topic = topic,
                         .batch = 2,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .q_len = q_len,
                         .kv_len = kv_len,
                         .dim = 32});
        return cases.back();
    };
    for (const auto& [q_len, kv_len] : {std::pair{130, 130}, {40, 200}, {200, 40}, {1, 150}}) {
        const std::string lengths = fmt::format("_q{}_k{}", q_len, kv_len);
        add(("top_left" + lengths).c_str(), "causal top-left", q_len, kv_len).causal = Causal::kTopLeft;
        add(("bottom_right" + lengths).c_str(), "causal bottom-right", q_len, kv_len).causal = Causal::kBottomRight;
    }
    for (const int64_t offset : {-70, -1, 17, 1000}) {
        Case& c = add(fmt::format("offset_{}", offset).c_str(), "causal offset", 100, 150);
        c.causal = Causal::kOffset;
        c.causal_offset = offset;
    }
    Case& offsets = add("offset_per_sequence", "causal offset", 60, 150);
    offsets.causal = Causal::kOffset;
    offsets.causal_offsets = {-20, 90};
    Case& mixed = add("offsets_and_lengths", "causal offset", 30, 150);
    mixed.causal = Causal::kOffset;
    mixed.causal_offsets = {70, 110};
    mixed.kv_lengths = {100, 141};

    const auto window = [&](const char* name, Causal causal, int64_t left, int64_t right, int64_t keep) -> Case& {
        Case& c = add(name, "sliding window", 150, 290);
        c.causal = causal;
        c.window = {.enabled = true, .left = left, .right = right, .keep = keep};
        return c;
    };
    window("window_causal", Causal::kBottomRight, 50, -1, 0);
    window("window_both_sides", Causal::kNone, 20, 30, 0);
    window("window_keep", Causal::kBottomRight, 40, 0, 4);
    window("window_keep_beyond_tile", Causal::kNone, 3, 3, 140);
    window("window_zero", Causal::kTopLeft, 0, 0, 0);
    window("window_right_only", Causal::kNone, -1, 5, 0);
    window("window_unlimited", Causal::kNone, -1, -1, 3);
    window("window_top_left_q_longer", Causal::kTopLeft, 16, -1, 1).q_len = 300;
    Case& lengths = window("window_and_lengths", Causal::kBottomRight, 33, -1, 2);
    lengths.kv_lengths = {17, 290};

    const auto scale = [&](const char* name, double value, double gain) {
        Case& c = add(name, "softmax scale", 50, 160);
        c.has_scale = true;
        c.scale = value;
        c.score_gain = gain;
        c.tied = std::abs(value) < 1e-3;
    };
    const double plain = 0.17677669529663687;  // 1 / sqrt(32)
    scale("scale_negative", -0.25, 0.25 / plain);
    scale("scale_zero", 0, 1);
    scale("scale_half", 0.5, 0.5 / plain);
    scale("scale_large", 40, 0);
    scale("scale_tiny", 1e-6, 1);
    return cases;
}

}  // namespace clary::cases
