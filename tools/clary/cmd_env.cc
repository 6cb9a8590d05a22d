// SPDX-License-Identifier: Apache-2.0
// clary env: what a bug report needs to know about machine and build.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "api.h"
#include "commands.h"
#include "failure.h"
#include "options.h"
#include "system_info.h"
#include "table.h"

namespace clary::cli {
namespace {

struct Options {
    OutputOptions output;
    bool torch = false;
};

// Why no GPU is used; what a kernel of this build says rather than one of another.
std::string gpu_note(const std::vector<clary_kernel_info>& kernels) {
    std::string note = "no CUDA backend in this build";
    for (const clary_kernel_info& k : kernels) {
        if (std::string_view(k.backend) != "cuda") continue;
        if (k.usable) return fmt::format("CUDA kernels of {} run here", k.arch);
        if (std::string_view(k.reason).find("this build") == std::string_view::npos) note = k.reason;
    }
    return note;
}

int work(const Options& options) {
    const SystemInfo info = system_info();
    const std::vector<clary_kernel_info> kernels = all_kernels();
    const int threads = clary_context_threads(nullptr);
    const std::string torch = options.torch ? torch_version() : "";
    if (options.output.json) {
        Json json = {{"version", clary_version()},
                     {"build", clary_build_info()},
                     {"os", info.os},
                     {"cpu", info.cpu},
                     {"cpu_features", info.cpu_features},
                     {"cores", info.cores},
                     {"threads", threads},
                     {"memory_gib", info.memory_gib},
                     {"gpus", Json::array()},
                     {"gpu_note", gpu_note(kernels)}};
        if (options.torch) json["torch"] = torch.empty() ? Json(nullptr) : Json(torch);
        for (const clary_kernel_info& k : kernels)
            json["kernels"].push_back({{"name", k.name},
                                       {"backend", k.backend},
                                       {"recipe", k.recipe},
                                       {"usable", k.usable != 0},
                                       {"reason", k.reason}});
        print_json(json);
        return kExitOk;
    }
    fmt::print("clary     {}\nbuild     {}\nos        {}\ncpu       {}\nfeatures  {}\n", clary_version(),
               clary_build_info(), info.os, info.cpu, fmt::join(info.cpu_features, " "));
    fmt::print("cores     {} usable, {} threads in use, {:.1f} GiB memory\ngpus      {}\n", info.cores, threads,
               info.memory_gib, gpu_note(kernels));
    if (options.torch) fmt::print("torch     {}\n", torch.empty() ? "not found by python3" : torch);
    Table table({"kernel", "recipe", "usable"});
    for (const clary_kernel_info& k : kernels)
        table.add({k.name, k.recipe, k.usable ? "yes" : fmt::format("no: {}", k.reason)});
    fmt::print("\n{}", table.text());
    return kExitOk;
}

}  // namespace

void add_env(CLI::App* app, int* exit_code) {
    CLI::App* command = app->add_subcommand("env", "Machine, library build, and the kernels that can run here");
    const auto options = std::make_shared<Options>();
    add_output_options(command, &options->output);
    command->add_flag("--torch", options->torch, "Also ask python3 for its torch (takes a second or two)");
    command->footer("Examples:\n  clary env\n  clary env --json --torch");
    set_action(command, exit_code, options, work);
}

}  // namespace clary::cli
