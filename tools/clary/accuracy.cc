// SPDX-License-Identifier: Apache-2.0
#include "accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "failure.h"
#include "options.h"
#include "recipes.h"
#include "timer.h"

namespace clary::cli {
namespace {

// The backend that serves `recipe`: the one asked for, or the emulation where "auto" finds no kernel.
std::string backend_for(const Problem& problem, const std::string& recipe, const std::string& backend) {
    const Json plan = explain(params_of(problem), recipe, backend);
    if (!plan.at("kernel").is_null()) return backend;
    if (backend == "auto") return "reference";
    fail("--recipe {}: backend {} has no kernel for it here (clary explain says why); allowed: another recipe, "
         "or --backend auto or reference", recipe, backend);
}

std::vector<double> figures(const std::vector<LayerAccuracy>& layers, double Metrics::*figure) {
    std::vector<double> values;
    for (const LayerAccuracy& layer : layers) values.push_back(layer.metrics.*figure);
    return values;
}

}  // namespace

double RecipeAccuracy::middle(double Metrics::*figure) const { return median(figures(layers, figure)); }

double RecipeAccuracy::worst(double Metrics::*figure) const {
    const std::vector<double> values = figures(layers, figure);
    const bool broken = std::any_of(values.begin(), values.end(), [](double x) { return std::isnan(x); });
    if (broken || values.empty()) return std::nan("");
    return figure == &Metrics::cosine ? *std::min_element(values.begin(), values.end())
                                      : *std::max_element(values.begin(), values.end());
}

std::optional<double> RecipeAccuracy::ms() const {
    double sum = 0;
    for (const LayerAccuracy& layer : layers) sum += layer.ms;
    return sum > 0 ? std::optional(sum) : std::nullopt;
}

std::optional<double> RecipeAccuracy::speedup() const {
    double exact = 0;
    for (const LayerAccuracy& layer : layers) exact += layer.exact_ms;
    const std::optional<double> own = ms();
    return own && exact > 0 ? std::optional(exact / *own) : std::nullopt;
}

std::vector<RecipeAccuracy> measure_accuracy(const std::vector<Problem>& problems, const AccuracyRequest& request,
                                             const Context& context, Progress* progress) {
    std::vector<RecipeAccuracy> results(request.recipes.size());
    for (const Problem& problem : problems) {
        const io::Tensor exact = exact_output(problem);
        std::vector<std::unique_ptr<Attention>> attentions;
        for (size_t i = 0; i < results.size(); ++i) {
            const std::string& recipe = request.recipes[i];
            progress->step(fmt::format("{} {}", problem.layer, recipe));
            const std::string backend = backend_for(problem, recipe, request.backend);
            attentions.push_back(std::make_unique<Attention>(problem, recipe, backend, context.get()));
            attentions.back()->run();
            RecipeAccuracy& result = results[i];
            result.recipe = explain(params_of(problem), recipe, backend).at("recipe");
            result.kernel = attentions.back()->kernel();
            result.emulated = result.kernel.starts_with("reference");
            result.layers.push_back({problem.layer, compare(exact, attentions.back()->out(), problem.layout)});
        }
        progress->step(fmt::format("{} timing", problem.layer));
        if (request.rounds == 0) continue;
        Attention baseline(problem, kExactRecipe, "cpu", context.get());
        std::vector<std::function<void()>> candidates = {[&] { baseline.run(); }};
        std::vector<size_t> owners;
        for (size_t i = 0; i < results.size(); ++i) {
            if (results[i].emulated) continue;
            owners.push_back(i);
            candidates.emplace_back([&attentions, i] { attentions[i]->run(); });
        }
        if (owners.empty()) continue;
        const std::vector<Timing> timings = time_in_turns(candidates, request.rounds);
        for (size_t t = 0; t < owners.size(); ++t) {
            results[owners[t]].layers.back().ms = timings[t + 1].median_ms();
            results[owners[t]].layers.back().exact_ms = timings[0].median_ms();
        }
    }
    return results;
}

std::string headline(const std::vector<RecipeAccuracy>& results) {
    const auto find = [&](const char* recipe) {
        return std::find_if(results.begin(), results.end(), [&](const RecipeAccuracy& r) { return r.recipe == recipe; });
    };
    const auto ours = find("int8_int8:accurate"), usual = find("int8_fp16:sage2");
    if (ours == results.end() || usual == results.end()) return "";
    const double a = ours->middle(&Metrics::relative_l1), b = usual->middle(&Metrics::relative_l1);
    if (!(a > 0) || !(b > 0)) return "";
    return fmt::format("8-bit P V done right (int8_int8:accurate) errs {:.2f} times as much as 16-bit P V done as usual "
                       "(int8_fp16:sage2): relative L1 {:.4f} against {:.4f}.", a / b, a, b);
}

std::vector<std::string> parse_recipes(const std::string& text) {
    if (text == "all") return {kComparedRecipes.begin(), kComparedRecipes.end()};
    std::vector<std::string> recipes = split_list(text);
    if (recipes.empty()) fail("--recipe '{}' names none; allowed: all, or names separated by commas", text);
    return recipes;
}

}  // namespace clary::cli
