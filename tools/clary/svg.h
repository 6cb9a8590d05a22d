// SPDX-License-Identifier: Apache-2.0
// Drawing plots as SVG text: a canvas, axes and labels that avoid each other. Colours are classes, so that the page (or
// standalone_style()) decides them for light and dark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace clary::cli {

std::string escape_xml(std::string_view text);

class Svg {
  public:
    Svg(double width, double height) : width_(width), height_(height) {}

    // `css_class` may name several classes, separated by spaces.
    void line(double x1, double y1, double x2, double y2, std::string_view css_class);
    void rect(double x, double y, double width, double height, std::string_view css_class,
              std::string_view tooltip = "");
    void path(std::string_view data, std::string_view css_class);
    enum class Anchor { kStart, kMiddle, kEnd };
    void text(double x, double y, std::string_view text, std::string_view css_class, Anchor anchor = Anchor::kStart);
    enum class Marker { kDisc, kRing, kDiamond };
    void marker(Marker marker, double x, double y, double radius, std::string_view css_class,
                std::string_view tooltip = "");

    // <svg>...</svg>; `label` is read aloud by screen readers; `style` goes into a <style> element where not empty.
    std::string finish(std::string_view css_class, std::string_view label, std::string_view style = "") const;

  private:
    double width_, height_;
    std::string body_;
};

// Maps values to pixels; pixel_begin may be above pixel_end (y axes).
struct Axis {
    double begin, end;  // values
    double pixel_begin, pixel_end;
    bool logarithmic = false;

    double operator()(double value) const;       // clamped to the axis
    std::vector<double> ticks(int about) const;  // round values; powers of ten with 2 and 5 between where logarithmic
};
std::string tick_text(double value);

// Text that stands beside a point and must not cover another one.
struct Label {
    double x, y;  // of the point
    std::string text, css_class;
};
// Draws each label right of its point (left of it near `right_edge`), moved up or down where another one is in the way.
void draw_labels(Svg* svg, std::vector<Label> labels, double font_size, double right_edge, double top, double bottom);

// The colours of the plots, as CSS variables for light and dark; a page includes it once.
std::string plot_style();

}  // namespace clary::cli
