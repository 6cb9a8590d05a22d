// SPDX-License-Identifier: Apache-2.0
// Values that break quantizers: zeros, constants, loud tokens and channels, the ends of the number formats.
#include "cases/case.h"

namespace clary::cases {

std::vector<Case> value_cases() {
    std::vector<Case> cases;
    const auto add = [&](const char* name, Values values, double score_gain) -> Case& {
        cases.push_back({.name = name,
                         .topic = "values",
                         .q_heads = 2,
                         .kv_heads = 1,
                         .q_len = 70,
                         .kv_len = 270,
                         .dim = 64,
                         .values = values,
                         .score_gain = score_gain});
        return cases.back();
    };
    add("zero_q", Values::kZeroQ, 1).tied = true;
    add("zero_k", Values::kZeroK, 1).tied = true;
    add("zero_v", Values::kZeroV, 0);
    add("constant_v", Values::kConstantV, 1);
    add("zero_channel", Values::kZeroChannel, 1);
    add("loud_token", Values::kLoudToken, 0);
    add("huge_v", Values::kHugeV, 0).v = DType::kBF16;
    add("tiny_all", Values::kTinyAll, 1).tied = true;
    add("large_k", Values::kLargeK, 0).score_size = 8;  // 1e4, but only rows whose two best keys lie close feel it
    add("channel_bias", Values::kChannelBias, 0).score_size = 18;  // 4 * 20 * 20 / 8 * log2(e) = 288
    add("alternating_channel", Values::kAlternating, 0);
    add("equal_k", Values::kEqualK, 1).tied = true;
    add("sink_key", Values::kSink, 0);
    return cases;
}

std::vector<Case> all_cases() {
    std::vector<Case> all;
    for (const auto& topic :
         {length_cases, layout_cases, dim_cases, causal_cases, mask_cases, sequence_cases, value_cases}) {
        const std::vector<Case> cases = topic();
        all.insert(all.end(), cases.begin(), cases.end());
    }
    return all;
}

Case widened(Case c, int64_t dim) {
    if (c.dim < dim && c.topic != std::string("head dims")) c.dim = dim;
    return c;
}

}  // namespace clary::cases
