// SPDX-License-Identifier: Apache-2.0
// clary quantize: the packed form of Q, K and V as a file: one tensor per section of the packed layouts.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "api.h"
#include "commands.h"
#include "failure.h"
#include "options.h"
#include "progress.h"
#include "table.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    RunOptions run;
    ProblemOptions problem;
    std::string input, out;
};

void add_sections(const clary_packed_layout& layout, const io::Bytes& buffer, const std::string& prefix,
                  io::TensorFile* file) {
    for (int32_t i = 0; i < layout.section_count; ++i) {
        const clary_section& section = layout.sections[i];
        io::Tensor tensor;
        require_ok(io::make_tensor(prefix + section.name, static_cast<DType>(section.dtype),
                                   {section.shape, section.shape + section.ndim}, &tensor));
        if (!tensor.bytes.empty())
            std::memcpy(tensor.bytes.data(), buffer.data() + section.offset, tensor.bytes.size());
        file->tensors.push_back(std::move(tensor));
    }
}

int work(const Options& options) {
    const std::vector<Problem> problems = load_problems(options.input, options.problem);
    warn_of_non_finite(problems);
    const Context context(options.run.threads);
    io::TensorFile file;
    Json layers = Json::array();
    Progress progress(static_cast<int64_t>(problems.size()), options.output.quiet);
    for (const Problem& problem : problems) {
        progress.step(problem.layer);
        Attention attention(problem, options.run.recipe, options.run.backend, context.get());
        attention.quantize();
        const clary_packed_layout& kv = attention.kv_layout();
        add_sections(attention.q_layout(), attention.packed_q(), problem.in_layer("q."), &file);
        add_sections(kv, attention.packed_kv(), problem.in_layer("kv."), &file);
        file.metadata = {{"format", "clary packed"},
                         {"recipe", kv.recipe},
                         {"tile", std::to_string(kv.tile)},
                         {"version", clary_version()},
                         {"input", options.input}};
        const int64_t before =
            static_cast<int64_t>(problem.q.bytes.size() + problem.k.bytes.size() + problem.v.bytes.size());
        layers.push_back({{"layer", problem.layer},
                          {"recipe", kv.recipe},
                          {"tile", kv.tile},
                          {"input_bytes", before},
                          {"packed_q_bytes", attention.q_layout().bytes},
                          {"packed_kv_bytes", kv.bytes}});
    }
    progress.clear();
    require_ok(io::save(options.out, file));
    if (options.output.json) {
        print_json(Json({{"input", options.input}, {"output", options.out}, {"layers", layers}}));
    } else if (!options.output.quiet) {
        Table table({"layer", "recipe", "tile>", "input bytes>", "packed Q bytes>", "packed K, V bytes>"});
        for (const Json& l : layers)
            table.add({l["layer"].get<std::string>(), l["recipe"].get<std::string>(), l["tile"].dump(),
                       l["input_bytes"].dump(), l["packed_q_bytes"].dump(), l["packed_kv_bytes"].dump()});
        fmt::print("{}{}\n", table.text(), options.out);
    }
    return kExitOk;
}

}  // namespace

void add_quantize(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("quantize", "Write the packed form of Q, K and V");
    const auto options = std::make_shared<Options>();
    command->add_option("IN", options->input, "Capture file with q, k, v (.safetensors, .npz)")->required();
    command->add_option("-o,--output", options->out, "File for the packed tensors (.safetensors)")->required();
    add_recipe_option(command, &options->run);
    add_backend_option(command, &options->run);
    add_threads_option(command, &options->run);
    add_problem_options(command, &options->problem);
    add_output_options(command, &options->output);
    command->footer(
        "Examples:\n"
        "  clary quantize capture.safetensors -o packed.safetensors --recipe int8_int8\n"
        "  clary inspect packed.safetensors");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
