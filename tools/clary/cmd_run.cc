// SPDX-License-Identifier: Apache-2.0
// clary run: attention on the tensors of a file.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "api.h"
#include "commands.h"
#include "failure.h"
#include "options.h"
#include "progress.h"
#include "table.h"
#include "timer.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    RunOptions run;
    ProblemOptions problem;
    std::string input, out;
    bool lse = false;
};

bool is_safetensors(const std::string& path) {
    std::string extension = std::filesystem::path(path).extension().string();
    for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return extension == ".safetensors";
}

void drop_batch(const Problem& problem, io::Tensor* tensor) {
    if (problem.batchless) tensor->shape.erase(tensor->shape.begin());
}

int work(const Options& options) {
    std::map<std::string, std::string> metadata;
    const std::vector<Problem> problems = load_problems(options.input, options.problem, &metadata);
    warn_of_non_finite(problems);
    const Context context(options.run.threads);
    // numpy has no bf16: such results are written as fp32.
    const bool safetensors = is_safetensors(options.out);

    io::TensorFile file;
    Json layers = Json::array();
    Progress progress(static_cast<int64_t>(problems.size()), options.output.quiet);
    for (const Problem& problem : problems) {
        progress.step(problem.in_layer("out"));
        const DType dtype = problem.q.dtype == DType::kBF16 && !safetensors ? DType::kF32 : problem.q.dtype;
        Attention attention(problem, options.run.recipe, options.run.backend, context.get(), dtype, options.lse);
        const double ms = milliseconds([&] { attention.run(); });
        layers.push_back({{"layer", problem.layer},
                          {"kernel", attention.kernel()},
                          {"ms", ms},
                          {"shape", shape_text(problem.shape)}});
        // The recipe with every default spelt out, as the library understood it.
        const Json explained = explain(params_of(problem), options.run.recipe, options.run.backend);
        layers.back()["recipe"] = explained.at("recipe");
        io::Tensor out = attention.take_out();
        out.name = problem.in_layer("out");
        drop_batch(problem, &out);
        file.tensors.push_back(std::move(out));
        if (!options.lse) continue;
        io::Tensor lse = attention.take_lse();
        lse.name = problem.in_layer("lse");
        drop_batch(problem, &lse);
        file.tensors.push_back(std::move(lse));
    }
    progress.clear();
    if (safetensors)
        file.metadata = {{"recipe", layers[0]["recipe"]},
                         {"kernel", layers[0]["kernel"]},
                         {"version", clary_version()},
                         {"layout", problems[0].layout == MemoryLayout::kHnd ? "hnd" : "nhd"},
                         {"input", options.input}};
    require_ok(io::save(options.out, file));

    if (options.output.json) {
        print_json(Json({{"input", options.input}, {"output", options.out}, {"layers", layers}}));
    } else if (!options.output.quiet) {
        Table table({"layer", "shape", "recipe", "kernel", "ms>"});
        for (const Json& l : layers)
            table.add({l["layer"].get<std::string>(), l["shape"].get<std::string>(), l["recipe"].get<std::string>(),
                       l["kernel"].get<std::string>(), fmt::format("{:.2f}", l["ms"].get<double>())});
        fmt::print("{}{}\n", table.text(), options.out);
    }
    return kExitOk;
}

}  // namespace

void add_run(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("run", "Attention on the tensors of a file");
    const auto options = std::make_shared<Options>();
    command->add_option("IN", options->input, "Capture file with q, k, v (.safetensors, .npz)")->required();
    command->add_option("-o,--output", options->out, "File for out (and lse): .safetensors, .npz, .npy")->required();
    add_recipe_option(command, &options->run);
    add_backend_option(command, &options->run);
    add_threads_option(command, &options->run);
    add_problem_options(command, &options->problem);
    command->add_flag("--lse", options->lse, "Also write lse, the natural log of each row's softmax denominator");
    add_output_options(command, &options->output);
    command->footer(
        "Examples:\n"
        "  clary run capture.safetensors -o out.safetensors --recipe int8_int8 --causal\n"
        "  clary run qkv.npz -o out.npz --layout nhd --lse --backend reference --recipe fp32_fp32");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
