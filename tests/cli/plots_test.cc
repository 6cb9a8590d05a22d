// SPDX-License-Identifier: Apache-2.0
#include "plots.h"
#include "program.h"
#include "report.h"
#include "svg.h"
#include "table.h"

namespace clary::cli {
namespace {

RecipeAccuracy result_of(const std::string& recipe, double error, double ms) {
    RecipeAccuracy result;
    result.recipe = recipe;
    result.kernel = "k";
    result.emulated = ms == 0;
    LayerAccuracy layer;
    layer.layer = "layer.<0>";
    layer.metrics.relative_l1 = error;
    layer.metrics.heads = {{1, error}, {1, 2 * error}};
    layer.ms = ms;
    layer.exact_ms = ms == 0 ? 0 : 10;
    result.layers = {layer};
    return result;
}

size_t count_of(const std::string& text, const std::string& word) {
    size_t count = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
    return count;
}

TEST(Axis, TicksAreRoundAndInside) {
    const Axis linear{0, 3.3, 0, 100};
    EXPECT_EQ(linear.ticks(4), (std::vector<double>{0, 1, 2, 3}));
    const Axis logarithmic{0.001, 0.02, 0, 100, true};
    const std::vector<double> ticks = logarithmic.ticks(4);
    ASSERT_EQ(ticks.size(), 5u);
    EXPECT_NEAR(ticks[1], 0.002, 1e-12);
    EXPECT_NEAR(logarithmic(0.001), 0, 1e-9);
    EXPECT_NEAR(logarithmic(5), 100, 1e-9) << "values outside stay on the edge";
}

TEST(Labels, DoNotCover) {
    Svg svg(300, 200);
    draw_labels(&svg, {{10, 100, "first", "name"}, {10, 101, "second", "name"}, {10, 102, "third", "name"}}, 12, 290, 0,
                200);
    const std::string text = svg.finish("", "");
    std::vector<double> heights;
    for (size_t at = text.find("<text"); at != std::string::npos; at = text.find("<text", at + 1))
        heights.push_back(std::stod(text.substr(text.find("y=\"", at) + 3)));
    std::sort(heights.begin(), heights.end());
    ASSERT_EQ(heights.size(), 3u);
    EXPECT_GE(heights[1] - heights[0], 12);
    EXPECT_GE(heights[2] - heights[1], 12);
}

TEST(Page, IsSelfContainedAndEscapes) {
    AccuracyReport report;
    report.input = "<script>&\"";
    report.shape = "B1";
    report.metadata["source"] = "<b>";
    report.results = {result_of("fp32_fp32", 1e-8, 10), result_of("int8_int8:accurate", 0.012, 4),
                      result_of("int8_fp16:sage2", 0.019, 6), result_of("int4_fp8:sage2", 0.2, 0)};
    const std::string page = html_page(report);
    EXPECT_EQ(page.find("<script"), std::string::npos);
    EXPECT_EQ(page.find("<b>"), std::string::npos);
    EXPECT_NE(page.find("name=\"viewport\""), std::string::npos);
    EXPECT_NE(page.find("prefers-color-scheme:dark"), std::string::npos);
    EXPECT_EQ(page.find("src="), std::string::npos);
    EXPECT_EQ(page.find("href="), std::string::npos);
    EXPECT_EQ(page.find("url("), std::string::npos);
    EXPECT_EQ(count_of(page, "http"), count_of(page, "xmlns=\"http://www.w3.org/2000/svg\""));
    EXPECT_NE(page.find("2.50×"), std::string::npos) << "10 ms / 4 ms";
    EXPECT_NE(page.find("0.63 times"), std::string::npos) << "0.012 / 0.019";
    EXPECT_EQ(count_of(page, "class=\"wide\""), 2u);
    EXPECT_EQ(count_of(page, "class=\"narrow\""), 2u);
}

TEST(Page, SurvivesBrokenAndSingleResults) {
    AccuracyReport report;
    report.results = {result_of("int8_int8:fast", std::nan(""), 0)};
    const std::string page = html_page(report);
    EXPECT_EQ(page.find("inf\""), std::string::npos);
    EXPECT_EQ(page.find("\"nan\""), std::string::npos);
    EXPECT_NE(page.find("</html>"), std::string::npos);
}

TEST(Table, IsAlignedMarkdown) {
    Table table({"name", "ms>"});
    table.add({"a", "1.25"});
    table.add({"longer", "10.00"});
    EXPECT_EQ(table.text(),
              "| name   |    ms |\n"
              "|--------|------:|\n"
              "| a      |  1.25 |\n"
              "| longer | 10.00 |\n");
}

}  // namespace
}  // namespace clary::cli
