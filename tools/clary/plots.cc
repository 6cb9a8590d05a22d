// SPDX-License-Identifier: Apache-2.0
#include "plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "svg.h"

namespace clary::cli {
namespace {

// Errors below this are "exact" for a plot; they sit on its edge, so that the rest is not squeezed.
constexpr double kErrorFloor = 1e-3;

Svg::Marker marker_of(const std::string& recipe) {
    if (recipe.find(":fast") != std::string::npos) return Svg::Marker::kRing;
    if (recipe.find(":sage2") != std::string::npos) return Svg::Marker::kDiamond;
    return Svg::Marker::kDisc;
}

// A 1-2-5 value at or above `value`.
double round_up_125(double value) {
    const double decade = std::pow(10, std::floor(std::log10(value)));
    for (const double step : {1.0, 2.0, 5.0})
        if (step * decade >= value) return step * decade;
    return 10 * decade;
}

double clean(double error) { return std::isfinite(error) ? error : 10; }  // a broken result stands at the far end

std::string tooltip_of(const RecipeAccuracy& r) {
    std::string text = fmt::format("{}: relative L1 {:.5f}, cosine {:.6f}", r.recipe, r.middle(&Metrics::relative_l1),
                                   r.middle(&Metrics::cosine));
    if (const auto speedup = r.speedup()) text += fmt::format(", {:.2f}x", *speedup);
    return text;
}

void draw_y_grid(Svg* svg, const Axis& y, double left, double right) {
    for (const double tick : y.ticks(6)) {
        svg->line(left, y(tick), right, y(tick), "grid");
        svg->text(left - 6, y(tick) + 4, tick_text(tick), "tick", Svg::Anchor::kEnd);
    }
}

}  // namespace

std::string recipe_class(const std::string& recipe) {
    if (recipe.starts_with("int8_int8")) return "c2";
    if (recipe.starts_with("int8_fp8")) return "c3";
    if (recipe.starts_with("int8_")) return "c1";
    if (recipe.starts_with("int4_")) return "c4";
    if (recipe.starts_with("fp4_")) return "c5";
    return "c0";
}

std::string error_speed_plot(const std::vector<RecipeAccuracy>& results, bool narrow) {
    const double width = narrow ? 350 : 900, height = narrow ? 480 : 440;
    const double left = 46, right = width - 10, top = 28, bottom = height - 44;
    double largest = 2 * kErrorFloor, fastest = 1;
    bool any_timed = false, any_emulated = false;
    for (const RecipeAccuracy& r : results) {
        largest = std::max(largest, clean(r.middle(&Metrics::relative_l1)));
        fastest = std::max(fastest, r.speedup().value_or(1));
        any_timed = any_timed || r.speedup();
        any_emulated = any_emulated || !r.speedup();
    }
    const double band = !any_emulated ? 0 : !any_timed ? right - left : narrow ? 142 : 210;
    const Axis y{kErrorFloor, round_up_125(largest * 1.1), bottom, top, true};
    const Axis x{0, fastest * 1.12, left + band, right};

    Svg svg(width, height);
    if (any_emulated) svg.rect(left, top, band, bottom - top, "band");
    draw_y_grid(&svg, y, left, right);
    svg.text(left, 14, "relative L1 error, median of layers (lower is better)", "title");
    svg.line(left, bottom, right, bottom, "axis");
    if (any_timed) {
        for (const double tick : x.ticks(narrow ? 4 : 8)) {
            svg.line(x(tick), bottom, x(tick), bottom + 4, "axis");
            svg.text(x(tick), bottom + 17, tick_text(tick), "tick", Svg::Anchor::kMiddle);
        }
        svg.text(right, bottom + 36,
                 narrow ? "speed-up over fp32_fp32" : "speed-up over the exact path fp32_fp32 (right is faster)",
                 "title", Svg::Anchor::kEnd);
    }
    if (any_emulated) svg.text(left + 2, bottom + (any_timed ? 36 : 17), "emulated", "title");

    std::vector<Label> labels;
    for (const RecipeAccuracy& r : results) {
        const double error = clean(r.middle(&Metrics::relative_l1));
        const double px = r.speedup() ? x(*r.speedup()) : left + 14, py = y(error);
        svg.marker(marker_of(r.recipe), px, py, 5, recipe_class(r.recipe), tooltip_of(r));
        std::string text = error < kErrorFloor ? fmt::format("{} ({:.0e})", r.recipe, error) : r.recipe;
        if (narrow) text = text.substr(0, text.find(" ("));
        labels.push_back({px, py, text, narrow ? "tick" : "name"});
    }
    const double font = narrow ? 11 : 12;
    std::vector<Label> timed, emulated;
    for (Label& label : labels) (label.x < left + 15 && any_emulated ? emulated : timed).push_back(std::move(label));
    draw_labels(&svg, emulated, font, 2 * width, top - 6, bottom + 6);  // always on the right: the band is for them
    draw_labels(&svg, timed, font, right, top - 6, bottom + 6);
    return svg.finish(narrow ? "narrow" : "wide", "Error of each recipe against its speed");
}

std::string head_error_plot(const std::vector<RecipeAccuracy>& results, bool narrow) {
    struct Strip {
        const RecipeAccuracy* result;
        std::vector<double> errors;
        double middle;
    };
    std::vector<Strip> strips;
    double largest = 2 * kErrorFloor;
    for (const RecipeAccuracy& r : results) {
        Strip strip{&r, {}, 0};
        for (const LayerAccuracy& layer : r.layers)
            for (const HeadError& head : layer.metrics.heads) strip.errors.push_back(clean(head.relative_l1));
        strip.middle = median(strip.errors);
        if (strip.middle < kErrorFloor) continue;  // exact paths would be dots on the edge
        largest = std::max(largest, *std::max_element(strip.errors.begin(), strip.errors.end()));
        strips.push_back(std::move(strip));
    }
    std::stable_sort(strips.begin(), strips.end(), [](const Strip& a, const Strip& b) { return a.middle < b.middle; });

    // Narrow: the name stands above its strip.
    const double width = narrow ? 350 : 900, row = narrow ? 38 : 27, left = narrow ? 20 : 160,
                 right = width - (narrow ? 14 : 70);
    const double top = 8, bottom = top + row * static_cast<double>(strips.size());
    const Axis x{kErrorFloor, round_up_125(largest), left, right, true};
    Svg svg(width, bottom + 44);
    double last_label = -100;
    for (const double tick : x.ticks(6)) {
        svg.line(x(tick), top, x(tick), bottom, "grid");
        if (x(tick) - last_label < 34) continue;
        last_label = x(tick);
        svg.text(x(tick), bottom + 16, tick_text(tick), "tick", Svg::Anchor::kMiddle);
    }
    svg.line(left, bottom, right, bottom, "axis");
    svg.text(right, bottom + 36, "relative L1 error of one head (left is better)", "title", Svg::Anchor::kEnd);
    double y = top;
    for (const Strip& strip : strips) {
        const std::string color = recipe_class(strip.result->recipe);
        const double center = y + (narrow ? 27 : row / 2);
        const std::string value = fmt::format("{:.4f}", strip.middle);
        if (narrow) {
            svg.text(left, y + 13, strip.result->recipe, "name");
            svg.text(right, y + 13, value, "value", Svg::Anchor::kEnd);
        } else {
            svg.text(left - 10, center + 4, strip.result->recipe, "name", Svg::Anchor::kEnd);
            svg.text(width - 4, center + 4, value, "value", Svg::Anchor::kEnd);
        }
        std::string dots;
        for (const double error : strip.errors) dots += fmt::format("M{:.1f} {:.1f}h0", x(error), center);
        svg.path(dots, "dots " + color);
        svg.line(x(strip.middle), center - 8, x(strip.middle), center + 8, "median " + color);
        y += row;
    }
    return svg.finish(narrow ? "narrow" : "wide", "Error of every head under each recipe");
}

}  // namespace clary::cli
