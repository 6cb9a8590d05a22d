// SPDX-License-Identifier: Apache-2.0
// clary accuracy: how wrong and how fast every recipe is on given tensors.
#include <fmt/format.h>

#include <fstream>
#include <memory>

#include "accuracy.h"
#include "commands.h"
#include "failure.h"
#include "options.h"
#include "recipes.h"
#include "report.h"
#include "system_info.h"
#include "table.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    RunOptions run;
    ProblemOptions problem;
    std::string input, html, preset;
    std::optional<Shape> shape;
    uint64_t seed = 1;
    int rounds = 5;
};

std::string number(std::optional<double> value, const char* unit = "") {
    return value ? fmt::format("{:.2f}{}", *value, unit) : "-";
}

Table table_of(const std::vector<RecipeAccuracy>& results) {
    const bool several = results[0].layers.size() > 1;
    std::vector<std::string> headers = {"recipe", "cosine>", "rel L1>"};
    if (several) headers.insert(headers.end(), {"worst cosine>", "worst L1>"});
    headers.insert(headers.end(), {"head L1>", "row L1>", "RMSE>", "max abs>", "ms>", "speed-up>", "kernel"});
    Table table(headers);
    for (const RecipeAccuracy& r : results) {
        std::vector<std::string> row = {r.recipe, fmt::format("{:.6f}", r.middle(&Metrics::cosine)),
                                        fmt::format("{:.5f}", r.middle(&Metrics::relative_l1))};
        if (several) {
            row.push_back(fmt::format("{:.6f}", r.worst(&Metrics::cosine)));
            row.push_back(fmt::format("{:.5f}", r.worst(&Metrics::relative_l1)));
        }
        row.push_back(fmt::format("{:.5f}", r.worst(&Metrics::worst_head_l1)));
        row.push_back(fmt::format("{:.5f}", r.worst(&Metrics::p999_row_l1)));
        row.push_back(fmt::format("{:.3g}", r.middle(&Metrics::rmse)));
        row.push_back(fmt::format("{:.3g}", r.worst(&Metrics::max_abs)));
        row.push_back(number(r.ms()));
        row.push_back(number(r.speedup(), "x"));
        row.push_back(r.emulated ? "emulated" : r.kernel);
        table.add(row);
    }
    return table;
}

Json json_of(const Metrics& m) {
    Json heads = Json::array();
    for (const HeadError& head : m.heads) heads.push_back({{"cosine", head.cosine}, {"rel_l1", head.relative_l1}});
    return {{"cosine", m.cosine},
            {"rel_l1", m.relative_l1},
            {"worst_head_rel_l1", m.worst_head_l1},
            {"p999_row_rel_l1", m.p999_row_l1},
            {"rmse", m.rmse},
            {"max_abs", m.max_abs},
            {"skipped_rows", m.skipped_rows},
            {"heads", heads}};
}

Json json_of(const std::vector<RecipeAccuracy>& results, const AccuracyReport& report) {
    const auto maybe = [](std::optional<double> value) { return value ? Json(*value) : Json(nullptr); };
    Json recipes = Json::array();
    for (const RecipeAccuracy& r : results) {
        Json layers = Json::array();
        for (const LayerAccuracy& layer : r.layers) {
            Json entry = json_of(layer.metrics);
            entry["layer"] = layer.layer;
            entry["ms"] = layer.ms > 0 ? Json(layer.ms) : Json(nullptr);
            entry["exact_ms"] = layer.exact_ms > 0 ? Json(layer.exact_ms) : Json(nullptr);
            layers.push_back(std::move(entry));
        }
        recipes.push_back({{"recipe", r.recipe},
                           {"kernel", r.kernel},
                           {"emulated", r.emulated},
                           {"cosine_median", r.middle(&Metrics::cosine)},
                           {"cosine_worst", r.worst(&Metrics::cosine)},
                           {"rel_l1_median", r.middle(&Metrics::relative_l1)},
                           {"rel_l1_worst", r.worst(&Metrics::relative_l1)},
                           {"ms", maybe(r.ms())},
                           {"speedup", maybe(r.speedup())},
                           {"layers", layers}});
    }
    return {{"input", report.input},       {"shape", report.shape},     {"machine", report.machine},
            {"date", report.date},         {"threads", report.threads}, {"version", clary_version()},
            {"metadata", report.metadata}, {"recipes", recipes}};
}

// Into a temporary file first: the name never holds half a page.
void write_text(const std::string& path, const std::string& text) {
    const std::string partial = path + ".partial";
    std::ofstream file(partial, std::ios::binary);
    file << text;
    file.close();
    if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
        std::remove(partial.c_str());
        fail("{}: cannot write", path);
    }
}

int work(const Options& options) {
    if (options.input.empty() == options.preset.empty())
        fail("accuracy: needs either a file or --preset; allowed: one of the two");
    AccuracyReport report;
    std::vector<Problem> problems;
    if (options.preset.empty()) {
        problems = load_problems(options.input, options.problem, &report.metadata);
        report.input = options.input;
    } else {
        const Shape shape = options.shape.value_or(Shape{1, 4, 2, 1024, 1024, 64, 64});
        const std::string causal = options.problem.causal.empty() ? "false" : options.problem.causal;
        problems.push_back(synthetic_problem(options.preset, shape, causal, options.seed));
        report.input = fmt::format("preset {}, seed {}", options.preset, options.seed);
    }
    warn_of_non_finite(problems);
    const Context context(options.run.threads);
    const AccuracyRequest request = {parse_recipes(options.run.recipe), options.run.backend, options.rounds};
    report.shape = shape_text(problems[0].shape) + (problems[0].causal == CLARY_CAUSAL_NONE ? "" : " causal");
    report.machine = machine_text();
    report.date = today();
    report.threads = context.threads();
    {
        Progress progress(static_cast<int64_t>(problems.size() * (request.recipes.size() + 1)), options.output.quiet);
        report.results = measure_accuracy(problems, request, context, &progress);
    }
    if (!options.html.empty()) write_text(options.html, html_page(report));

    if (options.output.json) {
        print_json(json_of(report.results, report));
        return kExitOk;
    }
    fmt::print("{}: {} layer{}, {}; against float64\n{}, {} thread{}, {}\n\n{}", report.input, problems.size(),
               problems.size() == 1 ? "" : "s", report.shape, report.machine, report.threads,
               report.threads == 1 ? "" : "s", report.date, table_of(report.results).text());
    const bool emulated =
        std::any_of(report.results.begin(), report.results.end(), [](const auto& r) { return r.emulated; });
    if (emulated) fmt::print("\nemulated: no kernel of this build runs the recipe; its oracle computed it, untimed.\n");
    if (const std::string text = headline(report.results); !text.empty())
        fmt::print("{}{}\n", emulated ? "" : "\n", text);
    if (!options.html.empty()) fmt::print("{}\n", options.html);
    return kExitOk;
}

}  // namespace

void add_accuracy(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("accuracy", "How wrong and how fast every recipe is on given tensors");
    const auto options = std::make_shared<Options>();
    options->run.recipe = "all";
    command->add_option("IN", options->input, "Capture file with q, k, v (.safetensors, .npz)");
    command->add_option("--preset", options->preset, "Generated tensors instead: " + synthetic_presets());
    add_shape_option(command, &options->shape);
    command->add_option("--seed", options->seed, "Seed of the generator")->capture_default_str();
    command->add_option("--recipe", options->run.recipe, "all, or recipes separated by commas")->capture_default_str();
    add_backend_option(command, &options->run);
    add_threads_option(command, &options->run);
    add_problem_options(command, &options->problem);
    command->add_option("--html", options->html, "Also write one self-contained page with table and plots");
    command->add_option("--repeat", options->rounds, "Timing rounds, in turns; 0: no timing")
        ->check(CLI::Range(0, 10000))
        ->capture_default_str();
    add_output_options(command, &options->output);
    command->footer(
        "Examples:\n"
        "  clary accuracy examples/data/smollm2_gpl3_layers.safetensors --html accuracy.html\n"
        "  clary accuracy --preset llm --shape 1,8,2,2048,2048,128 --recipe int8_int8,int8_fp16:sage2");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
