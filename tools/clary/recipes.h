// SPDX-License-Identifier: Apache-2.0
// The recipes that reports compare, with their presets, in the order in which they read best: the exact path, then from
// many bits to few. `sage2` stands next to ours wherever upstream has another one.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace clary::cli {

inline constexpr const char* kExactRecipe = "fp32_fp32";

inline constexpr std::array kComparedRecipes = {
    kExactRecipe,         "fp16_fp16",       "int8_fp16:accurate", "int8_fp16:fast",    "int8_fp16:sage2",
    "int8_int8:accurate", "int8_int8:fast",  "int8_fp8:accurate",  "int8_fp8:fast",     "int8_fp8:sage2",
    "int4_fp16:accurate", "int4_fp16:sage2", "int4_int8:accurate", "int4_fp8:accurate", "int4_fp8:sage2",
    "fp4_fp4:accurate",  // its sage2 is the same
};

// "all", or a list separated by commas. Throws where it is empty.
std::vector<std::string> parse_recipes(const std::string& text);

}  // namespace clary::cli
