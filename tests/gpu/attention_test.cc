// SPDX-License-Identifier: Apache-2.0
// The attention kernels on the simulator, against the oracle from identical packed operands: the case list on every machine
// that has a kernel for it.
#include <gtest/gtest.h>

#include "gpu/run.h"

namespace clary::cases {

inline void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

namespace {

constexpr const char* kRecipes[] = {
    "int8_int8",         "int8_int8:fast", "int8_int8:fast+v_scale=channel_tile+smooth_v",
    "int8_int8+tile=64", "int8_fp16",      "int8_fp16+tile=64",
    "int8_bf16",         "int8_fp8",       "int8_fp16+accum=fp16",
    "int4_int8+tile=64", "fp16_fp16",      "bf16_bf16"};

class SimulatedAttention : public testing::TestWithParam<Case> {};

TEST_P(SimulatedAttention, IsTheOracle) {
    const Case& c = GetParam();
    Problem problem(c);
    for (const char* recipe : kRecipes) {
        const AttentionDesc desc = desc_of(problem.params, recipe);
        if (desc.head_dim > 256 || desc.head_dim_v > 256) return;
        if (gpu::attention_blocks(desc, 1) == 0) return;  // nothing is launched
        if (beyond_fp16(desc.recipe, c)) continue;
        check_all_machines(&problem, recipe);
        if (HasFailure()) return;
    }
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
    std::string name = info.param.name;
    for (char& letter : name)
        if (letter == '-') letter = 'm';
    return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, SimulatedAttention, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace clary::cases
