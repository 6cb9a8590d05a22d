// SPDX-License-Identifier: Apache-2.0
// The commands of `clary`. Each adds its subcommand, with options, help and examples; when it is the one that was asked
// for, its work runs at the end of parsing and leaves the exit code in *exit_code.
#pragma once

#include <CLI/CLI.hpp>

namespace clary::cli {

void add_env(CLI::App* app, int* exit_code);
void add_explain(CLI::App* app, int* exit_code);
void add_verify(CLI::App* app, int* exit_code);
void add_run(CLI::App* app, int* exit_code);
void add_accuracy(CLI::App* app, int* exit_code);
void add_bench(CLI::App* app, int* exit_code);
void add_quantize(CLI::App* app, int* exit_code);
void add_inspect(CLI::App* app, int* exit_code);

// Gives `command` its own options object and makes `work` its action.
template <typename Options>
void set_action(CLI::App* command, int* exit_code, std::shared_ptr<Options> options, int (*work)(const Options&)) {
    command->callback([exit_code, options = std::move(options), work] { *exit_code = work(*options); });
}

}  // namespace clary::cli
