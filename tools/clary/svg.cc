// SPDX-License-Identifier: Apache-2.0
#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace clary::cli {
namespace {

std::string tooltip_element(std::string_view tooltip) {
    return tooltip.empty() ? "" : fmt::format("<title>{}</title>", escape_xml(tooltip));
}

struct Box {
    double left, top, right, bottom;
    bool overlaps(const Box& other) const {
        return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
    }
};

}  // namespace

std::string escape_xml(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        switch (c) {
            case '&':
                escaped += "&amp;";
                break;
            case '<':
                escaped += "&lt;";
                break;
            case '>':
                escaped += "&gt;";
                break;
            case '"':
                escaped += "&quot;";
                break;
            default:
                escaped += c;
        }
    }
    return escaped;
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class) {
    body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1, x2,
                         y2, css_class);
}

void Svg::rect(double x, double y, double width, double height, std::string_view css_class, std::string_view tooltip) {
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\">{}</rect>\n",
                         x, y, width, height, css_class, tooltip_element(tooltip));
}

void Svg::path(std::string_view data, std::string_view css_class) {
    body_ += fmt::format("<path d=\"{}\" class=\"{}\"/>\n", data, css_class);
}

void Svg::text(double x, double y, std::string_view text, std::string_view css_class, Anchor anchor) {
    constexpr const char* kAnchors[] = {"start", "middle", "end"};
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, css_class,
                         kAnchors[static_cast<int>(anchor)], escape_xml(text));
}

void Svg::marker(Marker marker, double x, double y, double radius, std::string_view css_class,
                 std::string_view tooltip) {
    const std::string title = tooltip_element(tooltip);
    if (marker == Marker::kDiamond) {
        const double r = radius * 1.25;
        body_ += fmt::format(
            "<path d=\"M{:.1f} {:.1f}l{r:.1f} {r:.1f}l-{r:.1f} {r:.1f}l-{r:.1f} -{r:.1f}z\" class=\"mark {}\">{}"
            "</path>\n",
            x, y - r, css_class, title, fmt::arg("r", r));
        return;
    }
    body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"mark{} {}\">{}</circle>\n", x, y,
                         radius, marker == Marker::kRing ? " ring" : "", css_class, title);
}

std::string Svg::finish(std::string_view css_class, std::string_view label, std::string_view style) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" class=\"{}\" role=\"img\" "
        "aria-label=\"{}\">\n{}{}</svg>\n",
        width_, height_, css_class, escape_xml(label), style.empty() ? "" : fmt::format("<style>{}</style>\n", style),
        body_);
}

double Axis::operator()(double value) const {
    const double low = std::min(begin, end), high = std::max(begin, end);
    value = std::clamp(value, low, high);
    const double share =
        logarithmic ? std::log(value / begin) / std::log(end / begin) : (value - begin) / (end - begin);
    return pixel_begin + share * (pixel_end - pixel_begin);
}

std::vector<double> Axis::ticks(int about) const {
    std::vector<double> values;
    const double slack = 1e-9 * std::abs(end - begin);
    if (logarithmic) {
        const bool dense = std::log10(end / begin) < 3.2;
        for (double decade = std::pow(10, std::floor(std::log10(begin))); decade <= end + slack; decade *= 10)
            for (const double step : {1.0, 2.0, 5.0})
                if ((step == 1.0 || dense) && decade * step >= begin - slack && decade * step <= end + slack)
                    values.push_back(decade * step);
        return values;
    }
    const double raw = (end - begin) / about;
    const double magnitude = std::pow(10, std::floor(std::log10(raw)));
    double step = 10 * magnitude;
    for (const double candidate : {1.0, 2.0, 5.0})
        if (candidate * magnitude >= raw) {
            step = candidate * magnitude;
            break;
        }
    for (double value = std::ceil(begin / step) * step; value <= end + slack; value += step) values.push_back(value);
    return values;
}

std::string tick_text(double value) { return fmt::format("{:.4g}", std::abs(value) < 1e-12 ? 0 : value); }

void draw_labels(Svg* svg, std::vector<Label> labels, double font_size, double right_edge, double top, double bottom) {
    std::stable_sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.y < b.y; });
    std::vector<Box> taken;
    for (const Label& label : labels) taken.push_back({label.x - 6, label.y - 6, label.x + 6, label.y + 6});
    for (size_t i = 0; i < labels.size(); ++i) {
        const Label& label = labels[i];
        const double width = 0.6 * font_size * static_cast<double>(label.text.size());
        const bool left = label.x + 10 + width > right_edge;
        const double x = left ? label.x - 10 - width : label.x + 10;
        Box box{};
        double y = label.y;
        // Nearest free place: 0, then a little down, up, more down, ...
        for (int attempt = 0; attempt < 80; ++attempt) {
            const double shift = (attempt + 1) / 2 * 0.5 * font_size * (attempt % 2 == 1 ? 1 : -1);
            y = label.y + shift;
            box = {x, y - 0.55 * font_size, x + width, y + 0.55 * font_size};
            if (box.top < top || box.bottom > bottom) continue;
            const bool free =
                std::none_of(taken.begin(), taken.end(), [&](const Box& other) { return box.overlaps(other); });
            if (free) break;
        }
        taken.push_back(box);
        if (std::abs(y - label.y) > 0.6 * font_size)
            svg->line(label.x, label.y, left ? label.x - 9 : label.x + 9, y, "leader");
        svg->text(left ? label.x - 10 : label.x + 10, y + 0.35 * font_size, label.text, label.css_class,
                  left ? Svg::Anchor::kEnd : Svg::Anchor::kStart);
    }
}

// c0..c5: the series; chosen to stay apart for colour-blind readers and on both backgrounds.
std::string plot_style() {
    return R"(:root{--ink:#1b1f24;--soft:#5b6570;--grid:#e3e7eb;--paper:#fff;
--c0:#6b7580;--c1:#2563c9;--c2:#0a8f5b;--c3:#c2600a;--c4:#8a3fc4;--c5:#c42a5b}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebee;--soft:#9aa5b1;--grid:#2b3239;--paper:#14181c;
--c0:#98a3ae;--c1:#6ba3ff;--c2:#35cf92;--c3:#ff9d4d;--c4:#c48bff;--c5:#ff7a9f}}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
svg .tick{font-size:11px;fill:var(--soft)}svg .name{font-size:12px}svg .title{font-size:12px;fill:var(--soft)}
svg .value{font-size:11px;fill:var(--soft)}svg .strong{font-weight:600}
svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--soft)}svg .leader{stroke:var(--soft);stroke-width:.7}
svg .band{fill:var(--grid);opacity:.45}svg .mark{stroke-width:2}svg .mark.ring{fill:var(--paper)}
svg .dots{fill:none;stroke-width:5;stroke-linecap:round;opacity:.5}svg .median{stroke-width:2.5}
)"
           // One rule set per colour: filled shapes, outlines, and the dots of strips.
           R"(svg .c0{fill:var(--c0);stroke:var(--c0)}svg .c1{fill:var(--c1);stroke:var(--c1)}
svg .c2{fill:var(--c2);stroke:var(--c2)}svg .c3{fill:var(--c3);stroke:var(--c3)}
svg .c4{fill:var(--c4);stroke:var(--c4)}svg .c5{fill:var(--c5);stroke:var(--c5)}
svg .ring.c0,svg .ring.c1,svg .ring.c2,svg .ring.c3,svg .ring.c4,svg .ring.c5{fill:var(--paper)}
svg .dots.c0,svg .dots.c1,svg .dots.c2,svg .dots.c3,svg .dots.c4,svg .dots.c5{fill:none}
)";
}

}  // namespace clary::cli
