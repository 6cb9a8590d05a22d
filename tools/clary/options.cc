// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <charconv>

#include "failure.h"

namespace clary::cli {
namespace {

Shape parse_shape(const std::string& text) {
    std::vector<int64_t> sizes;
    for (const std::string& part : split_list(text)) {
        int64_t value = -1;
        const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
        if (error != std::errc() || end != part.data() + part.size() || value < 0)
            fail("--shape {}: '{}' is not a size; allowed: whole numbers from 0 on", text, part);
        sizes.push_back(value);
    }
    if (sizes.size() != 6 && sizes.size() != 7)
        fail("--shape {}: {} sizes given; allowed: 6 or 7, as B,H,Hkv,Lq,Lk,D[,Dv]", text, sizes.size());
    return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes.size() == 7 ? sizes[6] : sizes[5]};
}

}  // namespace

void add_output_options(CLI::App* command, OutputOptions* options) {
    command->add_flag("--json", options->json, "Print JSON instead of text");
    command->add_flag("-q,--quiet", options->quiet, "No progress on standard error");
}

void add_backend_option(CLI::App* command, RunOptions* options) {
    command
        ->add_option("--backend", options->backend,
                     "auto, cpu, reference (exact, or the recipe's emulation), cuda, maca, sim:<target>")
        ->capture_default_str();
}

void add_recipe_option(CLI::App* command, RunOptions* options) {
    command
        ->add_option("--recipe", options->recipe,
                     "<name>[:accurate|:fast|:sage2][+option...], e.g. int8_int8:accurate, or auto")
        ->capture_default_str();
}

void add_threads_option(CLI::App* command, RunOptions* options) {
    command->add_option("--threads", options->threads, "CPU threads; 0: CLARY_NUM_THREADS, or all cores")
        ->check(CLI::Range(0, 4096))
        ->capture_default_str();
}

void add_problem_options(CLI::App* command, ProblemOptions* options) {
    command->add_option("--layout", options->layout,
                        "Order of the tensors' dimensions: hnd [B,H,L,D] or nhd [B,L,H,D]");
    command->add_flag("--causal{true}", options->causal,
                      "Causal mask; --causal=top_left or --causal=bottom_right where Lq and Lk differ");
    command->add_option("--scale", options->scale, "Factor of the scores before the softmax (default: 1/sqrt(D))");
    command->add_option("--layer", options->layer, "Only this layer of a file that holds several, e.g. layer.05");
}

void add_shape_option(CLI::App* command, std::optional<Shape>* shape) {
    command
        ->add_option_function<std::string>(
            "--shape", [shape](const std::string& text) { *shape = parse_shape(text); }, "B,H,Hkv,Lq,Lk,D[,Dv]")
        ->type_name("SHAPE");
}

std::vector<std::string> split_list(const std::string& text) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        if (end > begin) parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

}  // namespace clary::cli
