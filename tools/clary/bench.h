// SPDX-License-Identifier: Apache-2.0
// The measurement behind `clary bench`: one problem, one recipe against one baseline, correctness first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api.h"
#include "problem.h"
#include "timer.h"

namespace clary::cli {

// What was measured of one recipe on one problem.
struct BenchResult {
    const Problem* problem = nullptr;
    std::string recipe, kernel, backend;  // as the library spells them
    std::optional<double> rel_l1;         // against float64
    int tile = 0;                         // keys per tile; 0: not known, as nothing was timed
    double limit = 0;                     // rel_l1 above it means a broken kernel, not an inaccurate one
    std::optional<Timing> call, attend, quantize, baseline;  // baseline: its whole call, in the same rounds
    bool matches() const { return !rel_l1 || *rel_l1 <= limit; }
};

struct BenchRequest {
    std::vector<std::string> recipes;
    std::string baseline, backend;
    int rounds = 10;
    bool check = true, time = true;
};

// One result per recipe. A recipe whose result does not match is not timed.
std::vector<BenchResult> bench_problem(const Problem& problem, const BenchRequest& request, const Context& context);

double operations(const Problem& problem);  // 4 B H Lq Lk D, halved where causal

}  // namespace clary::cli
