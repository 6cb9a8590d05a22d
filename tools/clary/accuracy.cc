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
    fail(
        "--recipe {}: backend {} has no kernel for it here (clary explain says why); allowed: another recipe, "
        "or --backend auto or reference",
        recipe, backend);
}

std::vector<double> figures(const std::vector<LayerAccuracy>& layers, double Metrics::*figure) {
    std::vector<double> values;
    for (const LayerAccuracy& layer : layers) values.push_back(layer.metrics.*figure);
    return values;
}

// Fills ms and exact_ms of the last layer of all results that a kernel computed; attentions[i] belongs to results[i].
void time_layer(const Problem& problem, int rounds, const Context& context,
                const std::vector<std::unique_ptr<Attention>>& attentions, std::vector<RecipeAccuracy>* results) {
    Attention exact(problem, kExactRecipe, "cpu", context.get());
    std::vector<std::function<void()>> candidates = {[&exact] { exact.run(); }};
    std::vector<std::pair<RecipeAccuracy*, size_t>> owners;  // and the place of their candidate
    for (size_t i = 0; i < results->size(); ++i) {
        RecipeAccuracy& result = (*results)[i];
        if (result.emulated) continue;
        if (result.recipe == kExactRecipe) {
            owners.emplace_back(&result, 0);
            continue;
        }
        owners.emplace_back(&result, candidates.size());
        candidates.emplace_back([&attentions, i] { attentions[i]->run(); });
    }
    if (owners.empty()) return;
    const std::vector<Timing> timings = time_in_turns(candidates, rounds);
    for (const auto& [result, place] : owners) {
        result->layers.back().ms = timings[place].median_ms();
        result->layers.back().exact_ms = timings[0].median_ms();
    }
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
        time_layer(problem, request.rounds, context, attentions, &results);
    }
    return results;
}

std::string headline(const std::vector<RecipeAccuracy>& results) {
    const auto find = [&](const char* recipe) {
        return std::find_if(results.begin(), results.end(),
                            [&](const RecipeAccuracy& r) { return r.recipe == recipe; });
    };
    const auto ours = find("int8_int8:accurate"), usual = find("int8_fp16:sage2");
    if (ours == results.end() || usual == results.end()) return "";
    const double a = ours->middle(&Metrics::relative_l1), b = usual->middle(&Metrics::relative_l1);
    if (!(a > 0) || !(b > 0)) return "";
    return fmt::format(
        "8-bit P V done right (int8_int8:accurate) errs {:.2f} times as much as 16-bit P V done as usual "
        "(int8_fp16:sage2): relative L1 {:.4f} against {:.4f}.",
        a / b, a, b);
}

std::vector<std::string> parse_recipes(const std::string& text) {
    if (text == "all") return {kComparedRecipes.begin(), kComparedRecipes.end()};
    std::vector<std::string> recipes = split_list(text);
    if (recipes.empty()) fail("--recipe '{}' names none; allowed: all, or names separated by commas", text);
    return recipes;
}

}  // namespace clary::cli
