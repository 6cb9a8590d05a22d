// SPDX-License-Identifier: Apache-2.0
// clary explain: which kernel would run, why no other, and what the call costs.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "api.h"
#include "commands.h"
#include "failure.h"
#include "options.h"
#include "table.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    RunOptions run;
    ProblemOptions problem;
    std::string input;
    std::optional<Shape> shape;
    std::string dtype = "fp32";
};

clary_dtype parse_dtype(const std::string& text) {
    if (text == "fp32") return CLARY_FP32;
    if (text == "fp16") return CLARY_FP16;
    if (text == "bf16") return CLARY_BF16;
    fail("--dtype '{}' is not allowed; allowed: fp32, fp16, bf16", text);
}

std::string bytes_text(int64_t bytes) {
    if (bytes < 1024) return fmt::format("{} bytes", bytes);
    const double kib = static_cast<double>(bytes) / 1024;
    return kib < 1024 ? fmt::format("{:.1f} KiB", kib) : fmt::format("{:.1f} MiB", kib / 1024);
}

void print_text(const Json& json) {
    const Json& p = json.at("problem");
    const Shape shape = {p.at("batch"),  p.at("q_heads"),  p.at("kv_heads"),  p.at("q_len"),
                         p.at("kv_len"), p.at("head_dim"), p.at("head_dim_v")};
    fmt::print("problem    {}, scale {:g}\nrecipe     {}\n", shape_text(shape), p.at("scale").get<double>(),
               json.at("recipe").get<std::string>());
    if (json.at("kernel").is_null()) {
        fmt::print("kernel     {}\n", json.contains("would_run") ? json.at("would_run").get<std::string>() +
                                                                       ", on a machine that has what it needs"
                                                                 : "none takes this problem");
        fmt::print("error      {}\n", json.at("error").get<std::string>());
    } else {
        fmt::print("kernel     {}, {} threads\n", json.at("kernel").get<std::string>(), json.at("threads").get<int>());
    }
    if (json.contains("workspace_bytes")) {
        fmt::print("workspace  {} for the whole call, of which {} packed Q, K and V; {} for a phase alone\n",
                   bytes_text(json.at("workspace_bytes")), bytes_text(json.at("packed_bytes")),
                   bytes_text(json.at("phase_workspace_bytes")));
        if (const int pieces = json.value("key_pieces", 1); pieces > 1)
            fmt::print("keys       in {} pieces, attended to side by side and then combined: a short query\n", pieces);
        fmt::print("traffic    {} at least\n", bytes_text(json.at("bytes_moved")));
    }
    if (json.contains("expected_rel_l1")) {
        const Json& e = json.at("expected_rel_l1");
        fmt::print("error      relative L1 {:.4f} on a language model (worst layer {:.4f}), {:.4f} on normal data\n",
                   e.at("language_model_median").get<double>(), e.at("language_model_worst_layer").get<double>(),
                   e.at("normal").get<double>());
    }
    for (const Json& warning : json.at("warnings")) fmt::print("warning    {}\n", warning.get<std::string>());
    Table table({"other kernel", "why not"});
    for (const Json& other : json.at("other_kernels"))
        table.add({other.at("kernel").get<std::string>(), other.at("reason").get<std::string>()});
    fmt::print("\n{}", table.text());
}

int work(const Options& options) {
    if (options.input.empty() == !options.shape.has_value())
        fail("explain: needs either a file or --shape; allowed: one of the two");
    const Context context(options.run.threads);
    Json all = Json::array();
    const auto add = [&](clary_attention_params params, const std::string& layer) {
        params.context = context.get();
        // Nothing is read: the question for a GPU can be put on any machine.
        const bool cuda = options.run.backend.starts_with("cuda"), maca = options.run.backend.starts_with("maca");
        if (cuda || maca)
            for (clary_tensor* tensor : {&params.q, &params.k, &params.v, &params.out, &params.lse, &params.mask})
                tensor->device = cuda ? CLARY_CUDA : CLARY_MACA;
        Json json = explain(params, options.run.recipe, options.run.backend);
        if (!layer.empty()) json["layer"] = layer;
        all.push_back(std::move(json));
    };
    if (options.shape) {
        const std::string causal = options.problem.causal.empty() ? "false" : options.problem.causal;
        clary_attention_params params =
            params_of(*options.shape, parse_dtype(options.dtype),
                      parse_causal(causal, "--causal", options.shape->q_len, options.shape->kv_len));
        params.has_scale = options.problem.scale.has_value();
        params.scale = options.problem.scale.value_or(0);
        add(params, "");
    } else {
        for (const Problem& problem : load_problems(options.input, options.problem))
            add(params_of(problem), problem.layer);
    }
    if (options.output.json) {
        print_json((all.size() == 1 ? all[0] : all));
        return kExitOk;
    }
    for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].contains("layer"))
            fmt::print("{}layer      {}\n", i > 0 ? "\n" : "", all[i]["layer"].get<std::string>());
        print_text(all[i]);
    }
    return kExitOk;
}

}  // namespace

void add_explain(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("explain", "Which kernel would run, why no other, and what it costs");
    const auto options = std::make_shared<Options>();
    command->add_option("IN", options->input, "Capture file (.safetensors, .npz)");
    add_shape_option(command, &options->shape);
    command->add_option("--dtype", options->dtype, "Type of Q, K and V with --shape: fp32, fp16, bf16")
        ->capture_default_str();
    add_recipe_option(command, &options->run);
    add_backend_option(command, &options->run);
    add_threads_option(command, &options->run);
    add_problem_options(command, &options->problem);
    add_output_options(command, &options->output);
    command->footer(
        "Examples:\n"
        "  clary explain --shape 1,32,8,4096,4096,128 --causal\n"
        "  clary explain capture.safetensors --recipe int8_fp16:fast --json");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
