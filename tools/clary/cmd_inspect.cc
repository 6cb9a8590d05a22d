// SPDX-License-Identifier: Apache-2.0
// clary inspect: what a tensor file holds.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <memory>

#include "api.h"
#include "commands.h"
#include "failure.h"
#include "options.h"
#include "table.h"
#include "values.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    std::string input;
};

// Over the finite values.
struct Statistics {
    int64_t count = 0, zeros = 0, non_finite = 0;
    double sum = 0, amax = 0;
    double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();

    explicit Statistics(const io::Tensor& tensor) {
        for_each_value(tensor, [this](double x) {
            if (!std::isfinite(x)) {
                ++non_finite;
                return;
            }
            ++count;
            zeros += x == 0;
            sum += x;
            amax = std::max(amax, std::abs(x));
            min = std::min(min, x);
            max = std::max(max, x);
        });
    }
    double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
    double zero_share() const { return count == 0 ? 0 : static_cast<double>(zeros) / static_cast<double>(count); }
};

int work(const Options& options) {
    io::TensorFile file;
    require_ok(io::load(options.input, &file));
    Json tensors = Json::array();
    Table table({"tensor", "dtype", "shape", "min>", "max>", "amax>", "mean>", "zeros>", "not finite>"});
    for (const io::Tensor& tensor : file.tensors) {
        const Statistics s(tensor);
        const std::string dtype = dtype_name(tensor.dtype);
        Json entry = {
            {"name", tensor.name}, {"dtype", dtype},   {"shape", tensor.shape}, {"bytes", tensor.bytes.size()},
            {"amax", s.amax},      {"mean", s.mean()}, {"zeros", s.zeros},      {"non_finite", s.non_finite}};
        entry["min"] = s.count > 0 ? Json(s.min) : Json(nullptr);
        entry["max"] = s.count > 0 ? Json(s.max) : Json(nullptr);
        tensors.push_back(std::move(entry));
        table.add({tensor.name, dtype, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                   s.count > 0 ? fmt::format("{:.5g}", s.min) : "-", s.count > 0 ? fmt::format("{:.5g}", s.max) : "-",
                   fmt::format("{:.5g}", s.amax), fmt::format("{:.4g}", s.mean()),
                   fmt::format("{:.2f} %", 100 * s.zero_share()), fmt::format("{}", s.non_finite)});
    }
    if (options.output.json) {
        print_json(Json({{"file", options.input}, {"metadata", file.metadata}, {"tensors", tensors}}));
        return kExitOk;
    }
    for (const auto& [key, value] : file.metadata) fmt::print("{:<12} {}\n", key, value);
    if (!file.metadata.empty()) fmt::print("\n");
    fmt::print("{}", table.text());
    return kExitOk;
}

}  // namespace

void add_inspect(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("inspect", "Shapes, types, metadata and statistics of a tensor file");
    const auto options = std::make_shared<Options>();
    command->add_option("FILE", options->input, "Tensor file (.safetensors, .npz, .npy), packed or not")->required();
    add_output_options(command, &options->output);
    command->footer("Examples:\n  clary inspect capture.safetensors\n  clary inspect packed.safetensors --json");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
