// SPDX-License-Identifier: Apache-2.0
// A recipe is a value: how Q, K, P and V are represented and what is done to them before. The same vocabulary stands
// in the documents, kernel names, the CLI and traces: <qk>_<pv>[:preset][+option...], e.g. "int8_int8:fast+tile=64".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"
#include "numerics/host_device.h"
#include "numerics/scale_groups.h"

namespace clary {

enum class Format : int32_t { kInt8, kInt4, kFp4, kFp8, kFp16, kBf16, kFp32 };

// What sums P V. Two words: the MMA's accumulator, then what it is flushed into (every key tile).
enum class Accumulator : int32_t { kFp32, kFp16, kFp16Fp32, kFp32Fp32, kFp32Fp16 };

// Granularity of V's scales: none for 16-bit V.
enum class VScale : int32_t { kNone, kChannel, kChannelTile, kToken };

enum class Preset : int32_t { kAccurate, kFast, kSage2 };

// Which tile geometry the scale groups follow (numerics/scale_groups.h).
enum class Family : int32_t { kMma, kMma16, kSm90 };

struct Recipe {
    Format qk = Format::kInt8;
    Format pv = Format::kInt8;
    Accumulator accumulator = Accumulator::kFp32;  // ignored by int8 PV, whose sums are exact
    numerics::Granularity granularity = numerics::Granularity::kFine;
    Family family = Family::kMma;
    VScale v_scale = VScale::kNone;
    bool smooth_k = false;
    bool smooth_q = false;        // the sequence's mean, through the key bias
    bool smooth_q_block = false;  // a mean per 128 queries, bias a matrix block x key (SageAttention2/3)
    bool smooth_v = false;
    bool rotate_qk = false;
    bool rotate_v = false;
    int32_t tile = 128;                 // keys: 64 or 128
    Preset preset = Preset::kAccurate;  // where the options started from; only a name

    bool quantized() const { return qk == Format::kInt8 || qk == Format::kInt4 || qk == Format::kFp4; }
    // The key bias (smooth_q, V scale per token) rides on integer digits.
    bool key_bias() const { return smooth_q || v_scale == VScale::kToken; }
    CLARY_HD bool p_of_16_bits() const { return pv == Format::kFp16 || pv == Format::kBf16; }
    friend bool operator==(const Recipe&, const Recipe&) = default;
};

const numerics::TileFamily& tile_family(Family family);

// The recipes that exist, best known first: "int8_int8", "int8_fp16", ... (without presets).
std::string recipe_name(const Recipe& recipe);               // "int8_int8"
std::string recipe_text(const Recipe& recipe);               // "int8_int8:accurate+tile=64"
Status parse_recipe(std::string_view text, Recipe* recipe);  // the inverse; unknown words name the allowed set
bool has_preset(Format qk, Format pv, Preset preset);        // sage2 exists only where upstream has the recipe
Recipe preset_recipe(Format qk, Format pv, Preset preset);   // has_preset() must hold

struct RecipeFormats {
    Format qk, pv;
};
inline constexpr RecipeFormats kRecipes[] = {
    {Format::kInt8, Format::kInt8}, {Format::kInt8, Format::kFp16}, {Format::kInt8, Format::kBf16},
    {Format::kInt8, Format::kFp8},  {Format::kInt4, Format::kInt8}, {Format::kInt4, Format::kFp16},
    {Format::kInt4, Format::kFp8},  {Format::kFp4, Format::kFp4},   {Format::kFp16, Format::kFp16},
    {Format::kBf16, Format::kBf16}, {Format::kFp32, Format::kFp32},
};

// What "auto" stands for: the first of these that a kernel takes; the exact path serves what the quantized kernels do
// not (head dims above theirs).
inline constexpr RecipeFormats kAutoRecipes[] = {{Format::kInt8, Format::kInt8}, {Format::kFp32, Format::kFp32}};

const char* format_name(Format format);
const char* preset_name(Preset preset);
const char* accumulator_name(Accumulator accumulator);
const char* v_scale_name(VScale v_scale);
const char* granularity_name(numerics::Granularity granularity);

}  // namespace clary
