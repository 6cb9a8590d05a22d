// SPDX-License-Identifier: Apache-2.0
#include "bench_plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "plots.h"
#include "svg.h"

namespace clary::cli {
namespace {

struct Bar {
    std::string recipe;
    double tops, ratio;
};
struct Group {
    int64_t head_dim, length;
    std::vector<Bar> bars;
};

std::vector<Group> groups_of(const std::vector<Json>& records) {
    std::vector<Group> groups;
    for (const Json& r : records) {
        if (r.at("what") != "call" || r.at("ms").is_null()) continue;
        const int64_t dim = r.at("head_dim"), length = r.at("q_len");
        const double tops = r.at("tops");
        if (groups.empty() || groups.back().head_dim != dim || groups.back().length != length)
            groups.push_back({dim, length, {{r.at("baseline"), tops / r.at("ratio").get<double>(), 1}}});
        groups.back().bars.push_back({r.at("recipe"), tops, r.at("ratio")});
    }
    return groups;
}

}  // namespace

std::string bench_plot(const std::vector<Json>& records) {
    const std::vector<Group> groups = groups_of(records);
    double largest = 1e-9;
    size_t bars = 1;
    std::vector<std::string> names;
    for (const Group& group : groups) {
        bars = std::max(bars, group.bars.size());
        for (const Bar& bar : group.bars) {
            largest = std::max(largest, bar.tops);
            if (std::find(names.begin(), names.end(), bar.recipe) == names.end()) names.push_back(bar.recipe);
        }
    }
    constexpr double kBar = 26, kGap = 26, kLeft = 54, kTop = 56, kHeight = 260;
    const double group_width = kBar * static_cast<double>(bars) + kGap;
    double key_width = 8;
    for (const std::string& name : names) key_width += 28 + 6.4 * static_cast<double>(name.size());
    const double width = std::max(key_width, kLeft + group_width * static_cast<double>(groups.size()) + 10);
    Svg svg(width, kTop + kHeight + 52);
    const Axis y{0, largest * 1.12, kTop + kHeight, kTop};
    svg.rect(0, 0, width, kTop + kHeight + 52, "paper");
    svg.text(8, 18, "TOPS of the whole call; above the bars: ratio to the baseline", "title");
    double key_x = 8;
    for (const std::string& name : names) {
        svg.rect(key_x, 30, 10, 10, recipe_class(name) + (name.find(":fast") != std::string::npos ? " pale" : ""));
        svg.text(key_x + 15, 39, name, "tick");
        key_x += 28 + 6.4 * static_cast<double>(name.size());
    }
    for (const double tick : y.ticks(5)) {
        svg.line(kLeft, y(tick), width - 8, y(tick), "grid");
        svg.text(kLeft - 6, y(tick) + 4, tick_text(tick), "tick", Svg::Anchor::kEnd);
    }
    double x = kLeft + kGap / 2;
    for (const Group& group : groups) {
        double bar_x = x;
        for (const Bar& bar : group.bars) {
            const std::string pale = bar.recipe.find(":fast") != std::string::npos ? " pale" : "";
            svg.rect(bar_x, y(bar.tops), kBar - 4, y(0) - y(bar.tops), recipe_class(bar.recipe) + pale,
                     fmt::format("{}, D {}, length {}: {:.3f} TOPS, {:.2f}x", bar.recipe, group.head_dim, group.length,
                                 bar.tops, bar.ratio));
            svg.text(bar_x + kBar / 2 - 2, y(bar.tops) - 4, fmt::format("{:.2g}", bar.ratio), "tick",
                     Svg::Anchor::kMiddle);
            bar_x += kBar;
        }
        const double middle = x + kBar * static_cast<double>(group.bars.size()) / 2 - 2;
        svg.text(middle, kTop + kHeight + 18, fmt::format("{}", group.length), "name", Svg::Anchor::kMiddle);
        svg.text(middle, kTop + kHeight + 34, fmt::format("D {}", group.head_dim), "tick", Svg::Anchor::kMiddle);
        x += group_width;
    }
    svg.line(kLeft, kTop + kHeight, width - 8, kTop + kHeight, "axis");
    return svg.finish("", "Speed of each recipe",
                      plot_style() + "svg .paper{fill:var(--paper)}svg .pale{fill-opacity:.4}");
}

}  // namespace clary::cli
