// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <fmt/format.h>

#include "plots.h"
#include "svg.h"

namespace clary::cli {
namespace {

constexpr const char* kPageStyle = R"(
*{box-sizing:border-box}html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:76rem;padding:1.5rem 1.25rem 3rem;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .4rem}h2{font-size:1.15rem;margin:2.4rem 0 .3rem}
p{margin:.3rem 0 .8rem;max-width:54rem}.soft{color:var(--soft);font-size:.9rem;overflow-wrap:anywhere}
.headline{max-width:none;border-left:4px solid var(--c2);padding:.5rem .9rem;margin:1.2rem 0;background:color-mix(in srgb,var(--c2) 8%,var(--paper))}
svg{display:block;width:100%;height:auto;margin:.6rem 0}svg.narrow{display:none}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.85rem;color:var(--soft)}
.key svg{display:inline-block;width:14px;height:14px;margin:0 .35rem 0 0;vertical-align:-2px}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.36rem .55rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
th{font-weight:600;color:var(--soft);vertical-align:bottom}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
td.text,th.text{text-align:left}tr.exact td{color:var(--soft)}
.dot{display:inline-block;width:.6rem;height:.6rem;border-radius:50%;margin-right:.45rem}
.dot.c0{background:var(--c0)}.dot.c1{background:var(--c1)}.dot.c2{background:var(--c2)}
.dot.c3{background:var(--c3)}.dot.c4{background:var(--c4)}.dot.c5{background:var(--c5)}
details{margin:.6rem 0}summary{cursor:pointer}dt{font-weight:600;margin-top:.5rem}dd{margin:0;max-width:46rem}
@media (max-width:640px){body{padding:1rem .9rem 2rem}svg.wide{display:none}svg.narrow{display:block}
h1{font-size:1.35rem}th,td{padding:.34rem .5rem}}
@media print{body{max-width:none}}
)";

std::string cell(const std::string& text) { return fmt::format("<td>{}</td>", escape_xml(text)); }
std::string maybe(std::optional<double> value, const char* unit) {
    return value ? fmt::format("{:.2f}{}", *value, unit) : "–";
}

std::string recipe_cell(const std::string& recipe) {
    return fmt::format("<td><span class=\"dot {}\"></span>{}</td>", recipe_class(recipe), escape_xml(recipe));
}

std::string main_table(const std::vector<RecipeAccuracy>& results) {
    const bool several = results[0].layers.size() > 1;
    std::string html = "<div class=\"scroll\"><table><thead><tr><th>recipe</th><th>cosine</th><th>rel. L1</th>";
    if (several) html += "<th>worst layer<br>cosine</th><th>worst layer<br>rel. L1</th>";
    html +=
        "<th>worst head<br>rel. L1</th><th>p99.9 row<br>rel. L1</th><th>RMSE</th><th>max abs</th><th>ms</th>"
        "<th>speed-up</th><th class=\"text\">kernel</th></tr></thead><tbody>\n";
    for (const RecipeAccuracy& r : results) {
        html += "<tr>" + recipe_cell(r.recipe) + cell(fmt::format("{:.6f}", r.middle(&Metrics::cosine))) +
                cell(fmt::format("{:.5f}", r.middle(&Metrics::relative_l1)));
        if (several)
            html += cell(fmt::format("{:.6f}", r.worst(&Metrics::cosine))) +
                    cell(fmt::format("{:.5f}", r.worst(&Metrics::relative_l1)));
        html += cell(fmt::format("{:.5f}", r.worst(&Metrics::worst_head_l1))) +
                cell(fmt::format("{:.5f}", r.worst(&Metrics::p999_row_l1))) +
                cell(fmt::format("{:.3g}", r.middle(&Metrics::rmse))) +
                cell(fmt::format("{:.3g}", r.worst(&Metrics::max_abs))) + cell(maybe(r.ms(), "")) +
                cell(maybe(r.speedup(), "×"));
        html += fmt::format("<td class=\"text\">{}</td></tr>\n", r.emulated ? "emulated" : escape_xml(r.kernel));
    }
    return html + "</tbody></table></div>\n";
}

std::string layer_table(const std::vector<RecipeAccuracy>& results) {
    const std::vector<LayerAccuracy>& layers = results[0].layers;
    if (layers.size() < 2) return "";
    std::string html =
        "<h2>Layer by layer</h2>\n<details><summary>Relative L1 of each layer</summary>\n"
        "<div class=\"scroll\"><table><thead><tr><th>recipe</th>";
    for (const LayerAccuracy& layer : layers) html += fmt::format("<th>{}</th>", escape_xml(layer.layer));
    html += "</tr></thead><tbody>\n";
    for (const RecipeAccuracy& r : results) {
        html += "<tr>" + recipe_cell(r.recipe);
        for (const LayerAccuracy& layer : r.layers) html += cell(fmt::format("{:.5f}", layer.metrics.relative_l1));
        html += "</tr>\n";
    }
    return html + "</tbody></table></div></details>\n";
}

std::string key() {
    std::string html = "<p class=\"key\">";
    const auto add = [&html](Svg::Marker marker, const char* text) {
        Svg svg(14, 14);
        svg.marker(marker, 7, 7, 4.5, "c0");
        html += fmt::format("<span>{}{}</span>", svg.finish("", text), text);
    };
    add(Svg::Marker::kDisc, "accurate, exact");
    add(Svg::Marker::kRing, "fast");
    add(Svg::Marker::kDiamond, "sage2 (SageAttention's choices)");
    return html + "</p>\n";
}

constexpr const char* kMetrics = R"(<h2>What the figures mean</h2>
<dl><dt>cosine, relative L1, RMSE, max abs</dt><dd>Between the recipe's output and attention in float64 on the same
tensors: over all values of a layer as one vector; relative L1 is the sum of |difference| over the sum of |exact|.
Where there are several layers, the median of the layers (max abs: the largest).</dd>
<dt>worst head, p99.9 row</dt><dd>Relative L1 of the worst head, and the 99.9th percentile over the rows of the output:
what an average over everything hides.</dd>
<dt>ms, speed-up</dt><dd>Median of the whole call, quantization included, all recipes taking turns; summed over the layers.
Speed-up is against the exact path fp32_fp32 on the CPU, in the same run.</dd>
<dt>emulated</dt><dd>No kernel of this build runs the recipe; an oracle that takes the same quantization decisions
computed it. It is slow by design, so it has no time.</dd></dl>
)";

std::string head(const AccuracyReport& r) {
    std::string html =
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<title>Clary: accuracy of quantized attention</title>\n<style>" +
        plot_style() + kPageStyle + "</style></head>\n<body>\n<h1>Accuracy of quantized attention</h1>\n";
    const size_t layers = r.results[0].layers.size();
    html +=
        fmt::format("<p class=\"soft\">{}: {} layer{}, {}; against float64.<br>{}, {} thread{}, {}, Clary {}.</p>\n",
                    escape_xml(r.input), layers, layers == 1 ? "" : "s", escape_xml(r.shape), escape_xml(r.machine),
                    r.threads, r.threads == 1 ? "" : "s", r.date, clary_version());
    if (const auto source = r.metadata.find("source"); source != r.metadata.end())
        html += fmt::format("<p class=\"soft\">{}</p>\n", escape_xml(source->second));
    return html;
}

}  // namespace

std::string html_page(const AccuracyReport& report) {
    std::string html = head(report);
    if (const std::string text = headline(report.results); !text.empty())
        html += fmt::format("<p class=\"headline\">{}</p>\n", escape_xml(text));
    html += "<h2>Error against speed</h2>\n" + error_speed_plot(report.results, false) +
            error_speed_plot(report.results, true) + key();
    html += "<h2>Error of every head</h2>\n<p class=\"soft\">A dot per layer and head; the bar is their median.</p>\n" +
            head_error_plot(report.results, false) + head_error_plot(report.results, true);
    html += "<h2>All figures</h2>\n" + main_table(report.results) + layer_table(report.results) + kMetrics;
    return html + "</body></html>\n";
}

}  // namespace clary::cli
