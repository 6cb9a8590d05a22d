// SPDX-License-Identifier: Apache-2.0
// clary bench: how fast recipes are against a baseline that takes turns with them.
#include <fmt/format.h>

#include <fstream>
#include <memory>

#include "bench.h"
#include "bench_plot.h"
#include "commands.h"
#include "failure.h"
#include "options.h"
#include "progress.h"
#include "recipes.h"
#include "system_info.h"
#include "table.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    RunOptions run;
    ProblemOptions problem;
    int64_t batch = 1, q_heads = 8, kv_heads = 0;
    std::vector<int64_t> head_dims = {64, 128}, lengths = {1024, 2048, 4096};
    std::string baseline = kExactRecipe, data = "normal", svg;
    int rounds = 10;
    bool bench_only = false, correctness_only = false, markdown = false;
};

std::vector<Json> records_of(const BenchResult& r, const Options& options, const std::string& protocol) {
    const Shape& s = r.problem->shape;
    const double clock = cpu_clock_mhz();
    std::vector<Json> records;
    const auto add = [&](const char* what, const std::optional<Timing>& timing, bool counts_operations) {
        const double ms = timing ? timing->median_ms() : 0;
        const auto maybe = [&](double value) { return timing ? Json(value) : Json(nullptr); };
        records.push_back({{"date", today()},
                           {"commit", commit_text()},
                           {"machine", machine_text()},
                           {"clock_mhz", clock > 0 ? Json(clock) : Json(nullptr)},
                           {"protocol", protocol},
                           {"backend", r.backend},
                           {"kernel", r.kernel},
                           {"recipe", r.recipe},
                           {"tile", r.tile > 0 ? Json(r.tile) : Json(nullptr)},
                           {"data", options.data},
                           {"what", what},
                           {"batch", s.batch},
                           {"q_heads", s.q_heads},
                           {"kv_heads", s.kv_heads},
                           {"q_len", s.q_len},
                           {"kv_len", s.kv_len},
                           {"head_dim", s.head_dim},
                           {"causal", r.problem->causal != CLARY_CAUSAL_NONE},
                           {"ms", maybe(ms)},
                           {"ms_iqr", maybe(timing ? timing->iqr_ms() : 0)},
                           {"tops", counts_operations ? maybe(operations(*r.problem) / ms * 1e-9) : Json(nullptr)},
                           {"baseline", options.baseline},
                           {"baseline_ms", timing ? Json(r.baseline->median_ms()) : Json(nullptr)},
                           {"ratio", timing ? Json(r.baseline->median_ms() / ms) : Json(nullptr)},
                           {"rel_l1", r.rel_l1 ? Json(*r.rel_l1) : Json(nullptr)}});
    };
    add("call", r.call, true);
    if (!r.call) return records;
    add("kernel", r.attend, true);
    add("quantize", r.quantize, false);
    return records;
}

std::string fixed(const Json& value, int digits) {
    return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>(), digits);
}

void print_table(const std::vector<Json>& records) {
    Table table(
        {"length>", "D>", "recipe", "what", "ms>", "IQR>", "TOPS>", "baseline ms>", "ratio>", "rel L1>", "kernel"});
    for (const Json& r : records)
        table.add({r["q_len"].dump(), r["head_dim"].dump(), r["recipe"].get<std::string>(),
                   r["what"].get<std::string>(), fixed(r["ms"], 3), fixed(r["ms_iqr"], 3), fixed(r["tops"], 3),
                   fixed(r["baseline_ms"], 3), fixed(r["ratio"], 2), fixed(r["rel_l1"], 5),
                   r["kernel"].get<std::string>()});
    fmt::print("{}", table.text());
}

int work(const Options& options) {
    if (options.bench_only && options.correctness_only)
        fail("--bench-only and --correctness-only exclude each other; allowed: one of the two");
    const BenchRequest request = {
        parse_recipes(options.run.recipe), options.baseline, options.run.backend, options.rounds, !options.bench_only,
        !options.correctness_only};
    const Context context(options.run.threads);
    const std::string causal = options.problem.causal.empty() ? "false" : options.problem.causal;
    const int64_t kv_heads = options.kv_heads > 0 ? options.kv_heads : options.q_heads;
    const std::string protocol = fmt::format("candidates in turns, 1 warm-up, median of {} rounds, {} threads",
                                             options.rounds, context.threads());
    std::vector<Json> records;
    std::vector<std::string> mismatches;
    Progress progress(static_cast<int64_t>(options.head_dims.size() * options.lengths.size()), options.output.quiet);
    for (const int64_t dim : options.head_dims) {
        for (const int64_t length : options.lengths) {
            const Shape shape = {options.batch, options.q_heads, kv_heads, length, length, dim, dim};
            progress.step(shape_text(shape));
            const Problem problem = synthetic_problem(options.data, shape, causal, 1);
            for (const BenchResult& result : bench_problem(problem, request, context)) {
                for (Json& record : records_of(result, options, protocol)) records.push_back(std::move(record));
                if (!result.matches())
                    mismatches.push_back(fmt::format("{} {}: relative L1 {:.3g} against float64; allowed: {}",
                                                     shape_text(shape), result.recipe, *result.rel_l1, result.limit));
            }
        }
    }
    progress.clear();
    if (!options.svg.empty()) {
        std::ofstream file(options.svg, std::ios::binary);
        file << bench_plot(records);
        if (!file.flush()) fail("--svg {}: cannot write", options.svg);
    }
    if (options.output.json) {
        print_json(Json(records));
    } else {
        if (!options.markdown)
            fmt::print("batch {}, {} query heads, {} kv heads{}, {} data; baseline {}\n{}, {}\n{}\n\n", options.batch,
                       options.q_heads, kv_heads, causal == "false" ? "" : ", causal", options.data, options.baseline,
                       machine_text(), today(), protocol);
        print_table(records);
    }
    for (const std::string& text : mismatches) fmt::print(stderr, "clary: wrong result: {}\n", text);
    return mismatches.empty() ? kExitOk : kExitCheckFailed;
}

}  // namespace

void add_bench(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("bench", "How fast recipes are, after their results have been checked");
    const auto options = std::make_shared<Options>();
    options->run.recipe = "int8_int8:accurate,int8_int8:fast,int8_fp16:accurate";
    const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 24);
    command->add_option("--batch", options->batch, "Batch size")->check(positive)->capture_default_str();
    command->add_option("--q-heads", options->q_heads, "Query heads")->check(positive)->capture_default_str();
    command->add_option("--kv-heads", options->kv_heads, "Key and value heads (default: as many)")->check(positive);
    command->add_option("--head-dim", options->head_dims, "Head dimensions, separated by commas")
        ->delimiter(',')
        ->check(positive)
        ->capture_default_str();
    command->add_option("--seq-lengths", options->lengths, "Lengths of Q and K, separated by commas")
        ->delimiter(',')
        ->check(positive)
        ->capture_default_str();
    command->add_flag("--causal{true}", options->problem.causal, "Causal mask");
    command->add_option("--recipe", options->run.recipe, "Recipes separated by commas")->capture_default_str();
    command->add_option("--baseline", options->baseline, "Recipe that the others are compared with")
        ->capture_default_str();
    command->add_option("--data", options->data, "Data: " + synthetic_presets())->capture_default_str();
    add_backend_option(command, &options->run);
    add_threads_option(command, &options->run);
    command->add_option("--repeat", options->rounds, "Rounds")->check(CLI::Range(1, 100000))->capture_default_str();
    command->add_flag("--bench-only", options->bench_only, "Do not check results");
    command->add_flag("--correctness-only", options->correctness_only, "Check results, time nothing");
    command->add_flag("--markdown", options->markdown, "Only the table, as Markdown");
    command->add_option("--svg", options->svg, "Also draw the speeds into this file");
    add_output_options(command, &options->output);
    command->footer(
        "Exit code 1 where a result is wrong.\nExamples:\n  clary bench\n"
        "  clary bench --batch 2 --q-heads 16 --kv-heads 4 --head-dim 128 --seq-lengths 1024,2048 --causal\n"
        "  clary bench --recipe int8_int8:accurate --json > bench.json");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
