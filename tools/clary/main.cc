// SPDX-License-Identifier: Apache-2.0
// `clary`: the library on the command line. Exit codes: 0 ok, 1 a check failed, 2 bad usage or input.
// Every failure is one line on standard error that starts with "clary: ".
#include <fmt/format.h>

#include <cstdlib>

#include "clary/clary.h"
#include "commands.h"
#include "failure.h"

namespace {

using namespace clary::cli;

int report(std::string text, int exit_code) {
    for (char& c : text)
        if (c == '\n' || c == '\r') c = ' ';
    fmt::print(stderr, "clary: {}\n", text);
    return exit_code;
}

// "env, explain, ...", or only `name` where it is one of the commands.
std::string matching_commands(const CLI::App& app, const std::string& name = "") {
    std::string names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
        if (name.empty() || command->get_name() == name) names += (names.empty() ? "" : ", ") + command->get_name();
    return names;
}

int run(int argc, char** argv) {
    CLI::App app{"Quantized attention in 8 and 4 bits at 16-bit quality", "clary"};
    app.set_version_flag("--version", [] { return std::string(clary_version()); });
    app.require_subcommand(1);
    int exit_code = kExitOk;
    add_env(&app, &exit_code);
    add_explain(&app, &exit_code);
    add_verify(&app, &exit_code);
    add_run(&app, &exit_code);
    add_accuracy(&app, &exit_code);
    add_bench(&app, &exit_code);
    add_quantize(&app, &exit_code);
    add_inspect(&app, &exit_code);
    app.footer("`clary COMMAND --help` shows the options and examples of a command.");
    const std::string first = argc > 1 ? argv[1] : "";
    if (first.empty()) fail("no command given; allowed: {}", matching_commands(app));
    if (first[0] != '-' && matching_commands(app, first).empty())
        fail("unknown command '{}'; allowed: {}", first, matching_commands(app));
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);  // --help
        return report(fmt::format("{} (see clary --help)", error.what()), kExitBadInput);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        return report("standard output: cannot write", kExitBadInput);
    return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const Failure& failure) {
        return report(failure.what(), failure.exit_code());
    } catch (const std::bad_alloc&) {
        return report("not enough memory for this problem", kExitBadInput);
    } catch (const std::exception& error) {
        return report(fmt::format("internal error, please report: {}", error.what()), kExitCheckFailed);
    }
}
