// SPDX-License-Identifier: Apache-2.0
// Every recipe against exact attention in float64, layer by layer: the measurement behind `clary accuracy`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api.h"
#include "metrics.h"
#include "problem.h"
#include "progress.h"

namespace clary::cli {

struct LayerAccuracy {
    std::string layer;
    Metrics metrics;
    double ms = 0, exact_ms = 0;  // medians of the whole call, timed in turns; 0 where not timed
};

struct RecipeAccuracy {
    std::string recipe;     // as the library spells it
    std::string kernel;     // what ran
    bool emulated = false;  // by the reference backend: slow by design, so not timed
    std::vector<LayerAccuracy> layers;

    // Over the layers.
    double middle(double Metrics::*figure) const;
    double worst(double Metrics::*figure) const;  // the smallest cosine, the largest of any other figure
    std::optional<double> ms() const;             // sum over the layers
    std::optional<double> speedup() const;        // of that sum, against the exact path
};

struct AccuracyRequest {
    std::vector<std::string> recipes;
    std::string backend;  // "auto": a kernel where there is one, else the emulation
    int rounds = 5;       // timing rounds; 0: no timing
};

// One entry per recipe, each with all layers. `progress` takes a step per layer and recipe, and per layer for timing.
std::vector<RecipeAccuracy> measure_accuracy(const std::vector<Problem>& problems, const AccuracyRequest& request,
                                             const Context& context, Progress* progress);

// A sentence that compares 8-bit P V with the usual 16-bit P V where both were measured; "" otherwise.
std::string headline(const std::vector<RecipeAccuracy>& results);

}  // namespace clary::cli
