// SPDX-License-Identifier: Apache-2.0
#include "core/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <vector>

namespace clary {
namespace {

using numerics::Granularity;

// Names indexed by the enum's value: one table serves printing, parsing and the allowed sets in errors.
constexpr std::array kFormatNames = {"int8", "int4", "fp4", "fp8", "fp16", "bf16", "fp32"};
constexpr std::array kAccumulatorNames = {"fp32", "fp16", "fp16_fp32", "fp32_fp32", "fp32_fp16"};
constexpr std::array kVScaleNames = {"none", "channel", "channel_tile", "token"};
constexpr std::array kPresetNames = {"accurate", "fast", "sage2"};
constexpr std::array kFamilyNames = {"mma", "mma16", "sm90"};
constexpr std::array kGranularityNames = {"per_tensor", "per_block", "per_warp", "per_thread", "per_token", "fine"};

struct Flag {
    const char* name;
    bool Recipe::*field;
};
constexpr std::array kFlags = {
    Flag{"smooth_k", &Recipe::smooth_k},
    Flag{"smooth_q", &Recipe::smooth_q},
    Flag{"smooth_q_block", &Recipe::smooth_q_block},
    Flag{"smooth_v", &Recipe::smooth_v},
    Flag{"rotate", &Recipe::rotate_qk},
    Flag{"rotate_v", &Recipe::rotate_v},
};

// Finds `word` in a name table; the failure names the allowed set.
template <typename Enum, size_t N>
Status find_word(std::string_view what, std::string_view word, const std::array<const char*, N>& names, Enum* found) {
    for (size_t i = 0; i < N; ++i) {
        if (word == names[i]) {
            *found = static_cast<Enum>(i);
            return Status::ok();
        }
    }
    return invalid_argument(fmt::format("recipe: unknown {} '{}'; allowed: {}", what, word, fmt::join(names, ", ")));
}

std::string recipe_list() {
    std::vector<std::string> names;
    for (const RecipeFormats& formats : kRecipes)
        names.push_back(fmt::format("{}_{}", format_name(formats.qk), format_name(formats.pv)));
    return fmt::format("{}", fmt::join(names, ", "));
}

std::string option_list() {
    std::string text;
    for (const Flag& flag : kFlags) text += fmt::format("[no_]{}, ", flag.name);
    return text + "tile=64|128, granularity=..., family=..., v_scale=..., accum=...";
}

Status apply_option(std::string_view option, Recipe* recipe) {
    const size_t equals = option.find('=');
    if (equals != std::string_view::npos) {
        const std::string_view key = option.substr(0, equals);
        const std::string_view value = option.substr(equals + 1);
        if (key == "granularity") return find_word(key, value, kGranularityNames, &recipe->granularity);
        if (key == "family") return find_word(key, value, kFamilyNames, &recipe->family);
        if (key == "v_scale") return find_word(key, value, kVScaleNames, &recipe->v_scale);
        if (key == "accum") return find_word(key, value, kAccumulatorNames, &recipe->accumulator);
        if (key == "tile") {
            if (value != "64" && value != "128")
                return invalid_argument(fmt::format("recipe: tile '{}' is not allowed; allowed: 64, 128", value));
            recipe->tile = value == "64" ? 64 : 128;
            return Status::ok();
        }
    } else {
        const bool off = option.starts_with("no_");
        for (const Flag& flag : kFlags) {
            if (option.substr(off ? 3 : 0) != flag.name) continue;
            recipe->*flag.field = !off;
            return Status::ok();
        }
    }
    return invalid_argument(fmt::format("recipe: unknown option '{}'; allowed: {}", option, option_list()));
}

// Combinations that have no meaning are refused here, once, so that no kernel has to think of them.
Status check(const Recipe& r) {
    const std::string name = recipe_name(r);
    const bool v_quantized = r.pv == Format::kInt8 || r.pv == Format::kFp8;
    const bool int_qk = r.qk == Format::kInt8 || r.qk == Format::kInt4;
    if (!r.quantized() && (r.smooth_k || r.smooth_q || r.smooth_q_block || r.rotate_qk || r.smooth_v || r.rotate_v))
        return invalid_argument(fmt::format("recipe: {} is exact and takes no smoothing and no rotation", name));
    const Recipe plain;
    if (!r.quantized() && (r.granularity != plain.granularity || r.family != plain.family))
        return invalid_argument(
            fmt::format("recipe: {} is exact and has no scales; granularity and family are not allowed", name));
    if (r.family != plain.family &&
        (r.granularity == Granularity::kPerTensor || r.granularity == Granularity::kPerToken))
        return invalid_argument(
            fmt::format("recipe: granularity={} knows no tiles; allowed with a family: per_block, "
                        "per_warp, per_thread, fine",
                        granularity_name(r.granularity)));
    if (r.smooth_q && r.smooth_q_block)
        return invalid_argument("recipe: smooth_q and smooth_q_block exclude each other");
    if (r.smooth_q && !int_qk)
        return invalid_argument(
            fmt::format("recipe: smooth_q needs int8 or int4 Q and K, not {}; "
                        "allowed there: smooth_q_block",
                        format_name(r.qk)));
    if (v_quantized == (r.v_scale == VScale::kNone))
        return invalid_argument(fmt::format("recipe: v_scale={} does not fit {} V; allowed: {}",
                                            v_scale_name(r.v_scale), format_name(r.pv),
                                            v_quantized ? "channel, channel_tile, token" : "none"));
    if (r.v_scale == VScale::kToken && (r.pv != Format::kInt8 || !int_qk))
        return invalid_argument(fmt::format("recipe: v_scale=token needs int8 PV and integer Q and K, not {}", name));
    if (r.v_scale == VScale::kToken && r.smooth_q_block)
        return invalid_argument("recipe: v_scale=token and smooth_q_block exclude each other");
    const Accumulator a = r.accumulator;
    const bool fp16_pv = r.pv == Format::kFp16, fp8_pv = r.pv == Format::kFp8;
    const bool fits = a == Accumulator::kFp32 ||
                      (fp16_pv && (a == Accumulator::kFp16 || a == Accumulator::kFp16Fp32)) ||
                      (fp8_pv && (a == Accumulator::kFp32Fp32 || a == Accumulator::kFp32Fp16));
    if (!fits)
        return invalid_argument(fmt::format("recipe: accum={} does not fit {} PV; allowed: {}", accumulator_name(a),
                                            format_name(r.pv),
                                            fp16_pv  ? "fp32, fp16, fp16_fp32"
                                            : fp8_pv ? "fp32, fp32_fp32, fp32_fp16"
                                                     : "fp32"));
    return Status::ok();
}

}  // namespace

const char* format_name(Format format) { return kFormatNames[static_cast<size_t>(format)]; }
const char* preset_name(Preset preset) { return kPresetNames[static_cast<size_t>(preset)]; }
const char* accumulator_name(Accumulator accumulator) { return kAccumulatorNames[static_cast<size_t>(accumulator)]; }
const char* v_scale_name(VScale v_scale) { return kVScaleNames[static_cast<size_t>(v_scale)]; }
const char* granularity_name(Granularity granularity) { return kGranularityNames[static_cast<size_t>(granularity)]; }

const numerics::TileFamily& tile_family(Family family) {
    switch (family) {
        case Family::kMma16:
            return numerics::kMmaFamily16;
        case Family::kSm90:
            return numerics::kSm90Family;
        case Family::kMma:
            break;
    }
    return numerics::kMmaFamily;
}

bool has_preset(Format qk, Format pv, Preset preset) {
    if (preset != Preset::kSage2) return true;
    // SageAttention 2.2 has INT8 QK with FP16 and FP8 PV, its paper INT4 QK, SageAttention3 FP4.
    return ((qk == Format::kInt8 || qk == Format::kInt4) && (pv == Format::kFp16 || pv == Format::kFp8)) ||
           (qk == Format::kFp4 && pv == Format::kFp4);
}

Recipe preset_recipe(Format qk, Format pv, Preset preset) {
    Recipe r{.qk = qk, .pv = pv, .preset = preset};
    if (pv == Format::kInt8 || pv == Format::kFp8) r.v_scale = VScale::kChannel;
    if (pv == Format::kFp8) r.accumulator = Accumulator::kFp32Fp32;
    if (!r.quantized()) {
        r.preset = Preset::kAccurate;  // there is nothing to choose, so all presets are one recipe
        return r;
    }
    r.smooth_k = true;
    switch (preset) {
        case Preset::kAccurate:
            r.rotate_qk = qk != Format::kFp4;
            r.smooth_q = qk != Format::kFp4;
            r.smooth_q_block = qk == Format::kFp4;
            if (pv == Format::kInt8) {
                r.rotate_v = true;
                r.v_scale = VScale::kToken;
            }
            // With 16-bit P and V the scores are the error that is left, and a scale per key is worth it.
            if (qk == Format::kInt8 && r.p_of_16_bits()) r.granularity = Granularity::kPerToken;
            break;
        case Preset::kFast:
            break;
        case Preset::kSage2:
            r.granularity = Granularity::kPerThread;
            r.smooth_q_block = qk != Format::kInt8;
            if (pv == Format::kFp8) r.family = Family::kSm90;
            break;
    }
    return r;
}

std::string recipe_name(const Recipe& recipe) {
    return fmt::format("{}_{}", format_name(recipe.qk), format_name(recipe.pv));
}

std::string recipe_text(const Recipe& recipe) {
    const Recipe base = preset_recipe(recipe.qk, recipe.pv, recipe.preset);
    std::string text = recipe_name(recipe);
    if (recipe.quantized()) text += fmt::format(":{}", preset_name(recipe.preset));
    for (const Flag& flag : kFlags)
        if (recipe.*flag.field != base.*flag.field)
            text += fmt::format("+{}{}", recipe.*flag.field ? "" : "no_", flag.name);
    if (recipe.tile != base.tile) text += fmt::format("+tile={}", recipe.tile);
    if (recipe.granularity != base.granularity)
        text += fmt::format("+granularity={}", granularity_name(recipe.granularity));
    if (recipe.family != base.family)
        text += fmt::format("+family={}", kFamilyNames[static_cast<size_t>(recipe.family)]);
    if (recipe.v_scale != base.v_scale) text += fmt::format("+v_scale={}", v_scale_name(recipe.v_scale));
    if (recipe.accumulator != base.accumulator) text += fmt::format("+accum={}", accumulator_name(recipe.accumulator));
    return text;
}

Status parse_recipe(std::string_view text, Recipe* recipe) {
    const size_t name_end = std::min(text.find_first_of(":+"), text.size());
    const std::string_view name = text.substr(0, name_end);
    std::string_view rest = text.substr(name_end);

    std::optional<RecipeFormats> formats;
    for (const RecipeFormats& known : kRecipes)
        if (name == fmt::format("{}_{}", format_name(known.qk), format_name(known.pv))) formats = known;
    if (!formats)
        return invalid_argument(fmt::format("recipe: unknown name '{}'; allowed: auto, {}", name, recipe_list()));

    Preset preset = Preset::kAccurate;
    if (rest.starts_with(':')) {
        const size_t end = std::min(rest.find('+'), rest.size());
        CLARY_RETURN_IF_ERROR(find_word("preset", rest.substr(1, end - 1), kPresetNames, &preset));
        rest = rest.substr(end);
    }
    if (!has_preset(formats->qk, formats->pv, preset))
        return invalid_argument(
            fmt::format("recipe: {} has no preset {}, as upstream has no such recipe; "
                        "allowed: accurate, fast",
                        name, preset_name(preset)));
    Recipe parsed = preset_recipe(formats->qk, formats->pv, preset);
    while (!rest.empty()) {
        rest.remove_prefix(1);  // '+'
        const size_t end = std::min(rest.find('+'), rest.size());
        CLARY_RETURN_IF_ERROR(apply_option(rest.substr(0, end), &parsed));
        rest = rest.substr(end);
    }
    CLARY_RETURN_IF_ERROR(check(parsed));
    *recipe = parsed;
    return Status::ok();
}

}  // namespace clary
