// SPDX-License-Identifier: Apache-2.0
#include "cases/features.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "capi/tables.h"
#include "cases/problem.h"
#include "core/validate.h"

namespace clary::cases {
namespace {

// One line of the table: a feature and the problem that shows it. The recipe's options are appended to its name.
struct Feature {
    std::string name;
    Case problem;
    std::string options = "";
};

std::vector<Feature> features(DeviceType device) {
    std::vector<Feature> list;
    // Every topic of the case list: its first case stands for it, those that may differ have lines of their own. Where head
    // dims are not the topic they are those that all kernels have.
    std::map<std::string, bool> seen;
    for (const Case& c : all_cases())
        if (!seen[c.topic]) {
            seen[c.topic] = true;
            list.push_back({c.topic, widened(c)});
        }
    const Case plain{.name = "plain", .topic = "plain"};
    for (const char* options : {":fast", ":sage2", "+tile=64", "+smooth_v", "+smooth_q_block", "+rotate_v"})
        list.push_back({fmt::format("`{}`", options), plain, options});
    for (const char* granularity : {"per_tensor", "per_block", "per_warp", "per_thread", "per_token", "fine"})
        list.push_back(
            {fmt::format("`+granularity={}`", granularity), plain, fmt::format("+granularity={}", granularity)});
    for (const char* v_scale : {"channel", "channel_tile", "token"})
        list.push_back({fmt::format("`+v_scale={}`", v_scale), plain, fmt::format("+v_scale={}", v_scale)});
    for (const char* accum : {"fp16", "fp16_fp32", "fp32_fp32", "fp32_fp16"})
        list.push_back({fmt::format("`+accum={}`", accum), plain, fmt::format("+accum={}", accum)});
    if (device != DeviceType::kCuda) return list;
    // What chips have too little shared memory for.
    for (const auto& [dim, dim_v] : {std::pair<int64_t, int64_t>{128, 128}, {192, 128}, {192, 192}, {256, 256}})
        for (const char* options : {"", "+tile=64"}) {
            const std::string dims = dim == dim_v ? fmt::format("{}", dim) : fmt::format("{}/{}", dim, dim_v);
            list.push_back({fmt::format("head dim {}{}", dims, *options ? ", `+tile=64`" : ""),
                            {.name = "dims", .dim = dim, .dim_v = dim_v},
                            options});
        }
    return list;
}

// A kernel's name without backend and architecture: its recipe, and what else tells it from others.
std::string column_of(const KernelRow& row) {
    const std::string prefix = fmt::format("{}_{}{}", row.backend, row.arch, *row.arch ? "_" : "");
    return std::string(row.name).substr(prefix.size());
}

// "yes", "no", or "-" where the recipe has no such option.
std::string answer(const KernelRow& row, const Feature& feature, const Problem& problem) {
    clary_attention_params params = problem.params;
    const std::string recipe = fmt::format("{}_{}{}", format_name(row.qk), format_name(row.pv), feature.options);
    params.recipe = recipe.c_str();
    AttentionDesc desc;
    bool recipe_is_auto = false;
    if (!validate(params, Purpose::kShapes, &desc, &recipe_is_auto).is_ok()) return "-";
    return row.supports(desc).empty() ? "yes" : "no";
}

}  // namespace

std::string support_table(DeviceType device) {
    std::string text =
        fmt::format("# What runs {}\n\n", device == DeviceType::kCpu    ? "where"
                                          : device == DeviceType::kCuda ? "on NVIDIA GPUs"
                                                                        : "on MetaX GPUs") +
        "Written by `support_table` (tests/cases) from the kernels' own answers; a test keeps it up to date. `clary "
        "explain`\ngives the reason for a *no*. *-*: the recipe has no such option.\n";
    if (device == DeviceType::kCuda)
        text +=
            "Of builds with all kernels. Of several columns for a recipe the first serves that takes the problem.\n";
    const std::vector<Feature> list = features(device);
    std::map<std::string, std::vector<const KernelRow*>> backends;  // by backend and architecture
    for (const KernelTable& table : kernel_tables())
        for (const KernelRow& row : table)
            if (row.device == device)
                backends[*row.arch ? fmt::format("{}:{}", row.backend, row.arch) : row.backend].push_back(&row);
    std::map<std::string, std::string> bodies;  // table to the backends that it holds for
    for (const auto& [backend, rows] : backends) {
        std::string body = "| feature |", rule = "|---|";
        for (const KernelRow* row : rows) {
            body += fmt::format(" {} |", column_of(*row));
            rule += "---|";
        }
        body += "\n" + rule + "\n";
        for (const Feature& feature : list) {
            const Problem problem(feature.problem);
            body += fmt::format("| {} |", feature.name);
            for (const KernelRow* row : rows) body += fmt::format(" {} |", answer(*row, feature, problem));
            body += "\n";
        }
        std::string& names = bodies[body];
        names += (names.empty() ? "" : ", ") + backend;
    }
    std::map<std::string, std::string> sorted;
    for (const auto& [body, names] : bodies) sorted[names] = body;
    for (const auto& [names, body] : sorted) text += fmt::format("\n## {}\n\n{}", names, body);
    return text;
}

}  // namespace clary::cases
