// SPDX-License-Identifier: Apache-2.0
// Options that several commands share, each declared once: spelling, help and default.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "problem.h"

namespace clary::cli {

struct OutputOptions {
    bool json = false;
    bool quiet = false;
};
void add_output_options(CLI::App* command, OutputOptions* options);

struct RunOptions {
    std::string backend = "auto";
    std::string recipe = "auto";
    int32_t threads = 0;  // 0: CLARY_NUM_THREADS, or all cores
};
void add_backend_option(CLI::App* command, RunOptions* options);
void add_recipe_option(CLI::App* command, RunOptions* options);
void add_threads_option(CLI::App* command, RunOptions* options);

// --layout, --causal, --scale, --layer: what a file's metadata says unless given here.
void add_problem_options(CLI::App* command, ProblemOptions* options);

// "1,32,8,1024,1024,128[,Dv]": B, H, Hkv, Lq, Lk, D and the head dim of V (default: D).
void add_shape_option(CLI::App* command, std::optional<Shape>* shape);

// "a,b,c" without empty parts; a comma inside a recipe does not occur.
std::vector<std::string> split_list(const std::string& text);

}  // namespace clary::cli
