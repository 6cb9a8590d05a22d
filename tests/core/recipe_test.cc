// SPDX-License-Identifier: Apache-2.0
// Recipes as text: every combination prints and parses back to itself; what has no meaning is refused with a text that
// names the allowed set.
#include "core/recipe.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace clary {
namespace {

const std::vector<std::string> kSwitches = {"smooth_k", "smooth_q", "smooth_q_block", "smooth_v", "rotate", "rotate_v"};
const std::vector<std::string> kValues = {"",
                                          "+tile=64",
                                          "+granularity=per_tensor",
                                          "+granularity=per_block",
                                          "+granularity=per_warp",
                                          "+granularity=per_thread",
                                          "+granularity=per_token",
                                          "+family=mma16",
                                          "+family=sm90",
                                          "+v_scale=none",
                                          "+v_scale=channel",
                                          "+v_scale=channel_tile",
                                          "+v_scale=token",
                                          "+accum=fp32",
                                          "+accum=fp16",
                                          "+accum=fp16_fp32",
                                          "+accum=fp32_fp32",
                                          "+accum=fp32_fp16",
                                          "+tile=64+granularity=per_token+family=sm90"};

TEST(Recipe, PrintsAndParsesEveryCombination) {
    int valid = 0, refused = 0;
    for (const RecipeFormats& formats : kRecipes)
        for (const char* preset : {"", ":accurate", ":fast", ":sage2"})
            for (unsigned switches = 0; switches < 729; ++switches) {  // each on, off or left alone
                std::string options;
                for (unsigned rest = switches, i = 0; i < kSwitches.size(); ++i, rest /= 3)
                    if (rest % 3 != 0) options += std::string(rest % 3 == 1 ? "+" : "+no_") + kSwitches[i];
                const std::string& value = kValues[(switches * 7 + static_cast<unsigned>(valid)) % kValues.size()];
                const std::string text =
                    std::string(format_name(formats.qk)) + "_" + format_name(formats.pv) + preset + options + value;
                Recipe recipe;
                const Status status = parse_recipe(text, &recipe);
                if (!status.is_ok()) {
                    ++refused;
                    ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
                    ASSERT_TRUE(status.text().starts_with("recipe: ")) << text << ": " << status.text();
                    continue;
                }
                ++valid;
                Recipe again;
                ASSERT_TRUE(parse_recipe(recipe_text(recipe), &again).is_ok()) << recipe_text(recipe);
                ASSERT_EQ(again, recipe) << text << " prints as " << recipe_text(recipe);
                ASSERT_EQ(recipe_text(again), recipe_text(recipe));
            }
    EXPECT_GT(valid, 2000);
    EXPECT_GT(refused, 2000);
}

TEST(Recipe, PresetsAreWhatTheyAreCalled) {
    for (const RecipeFormats& formats : kRecipes)
        for (const Preset preset : {Preset::kAccurate, Preset::kFast, Preset::kSage2}) {
            if (!has_preset(formats.qk, formats.pv, preset)) continue;
            const Recipe recipe = preset_recipe(formats.qk, formats.pv, preset);
            Recipe parsed;
            ASSERT_TRUE(parse_recipe(recipe_text(recipe), &parsed).is_ok()) << recipe_text(recipe);
            EXPECT_EQ(parsed, recipe);
            EXPECT_EQ(recipe_text(recipe).find('+'), std::string::npos) << recipe_text(recipe);
        }
}

struct Bad {
    const char* text;
    std::vector<const char*> says;
};

TEST(Recipe, EveryRefusalNamesTheAllowedSet) {
    const Bad bad[] = {
        {"", {"unknown name ''", "allowed: auto, int8_int8"}},
        {"int8", {"unknown name 'int8'", "allowed: auto"}},
        {"int8_int8:", {"unknown preset ''", "allowed: accurate, fast, sage2"}},
        {"int8_int8:best", {"unknown preset 'best'", "allowed: accurate, fast, sage2"}},
        {"int8_int8:sage2", {"no preset sage2", "allowed: accurate, fast"}},
        {"int8_int8+", {"unknown option ''", "allowed: "}},
        {"int8_int8+turbo", {"unknown option 'turbo'", "allowed: [no_]smooth_k"}},
        {"int8_int8+tile=32", {"tile '32'", "allowed: 64, 128"}},
        {"int8_int8+tile", {"unknown option 'tile'", "tile=64|128"}},
        {"int8_int8+granularity=per_moon", {"granularity 'per_moon'", "allowed: per_tensor"}},
        {"int8_int8+family=sm80", {"family 'sm80'", "allowed: mma, mma16, sm90"}},
        {"int8_int8+v_scale=row", {"v_scale 'row'", "allowed: none, channel"}},
        {"int8_int8+accum=fp64", {"accum 'fp64'", "allowed: fp32, fp16"}},
        {"int8_int8+speed=9", {"unknown option 'speed=9'", "allowed: "}},
        {"fp32_fp32+smooth_k", {"fp32_fp32", "no smoothing"}},
        {"int8_fp16+smooth_q_block", {"smooth_q and smooth_q_block exclude each other"}},
        {"fp4_fp4+smooth_q+no_smooth_q_block", {"smooth_q needs int8 or int4", "allowed there: smooth_q_block"}},
        {"int8_int8+v_scale=none", {"v_scale=none", "int8 V", "allowed: channel, channel_tile, token"}},
        {"int8_fp16+v_scale=token", {"v_scale=token", "fp16 V", "allowed: none"}},
        {"int8_fp8+v_scale=token", {"v_scale=token needs int8 PV"}},
        {"int8_int8+no_smooth_q+smooth_q_block", {"v_scale=token and smooth_q_block exclude each other"}},
        {"int8_int8+accum=fp16", {"accum=fp16", "int8 PV", "allowed: fp32"}},
        {"int8_fp16+accum=fp32_fp32", {"accum=fp32_fp32", "fp16 PV", "allowed: fp32, fp16, fp16_fp32"}},
        {"int8_fp8+accum=fp16", {"accum=fp16", "fp8 PV", "allowed: fp32, fp32_fp32, fp32_fp16"}},
        {"INT8_INT8", {"unknown name 'INT8_INT8'"}},
        {"int8_int8 ", {"unknown name"}},
    };
    for (const Bad& b : bad) {
        Recipe recipe;
        const Status status = parse_recipe(b.text, &recipe);
        ASSERT_FALSE(status.is_ok()) << b.text;
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_EQ(status.text().find('\n'), std::string::npos);
        for (const char* says : b.says)
            EXPECT_NE(status.text().find(says), std::string::npos) << "'" << b.text << "' says: " << status.text();
    }
}

TEST(Recipe, AFailureLeavesTheRecipeAlone) {
    Recipe recipe = preset_recipe(Format::kInt8, Format::kFp16, Preset::kFast);
    const Recipe before = recipe;
    EXPECT_FALSE(parse_recipe("int8_int8+tile=32", &recipe).is_ok());
    EXPECT_EQ(recipe, before);
}

}  // namespace
}  // namespace clary
