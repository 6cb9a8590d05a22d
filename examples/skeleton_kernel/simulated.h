// SPDX-License-Identifier: Apache-2.0
// Runs a skeleton kernel on a simulated machine. A template over the kernel, because the tests also run damaged copies of it.
#pragma once

#include "problem.h"
#include "sim/launch.h"

namespace clary::examples {

struct Outcome {
    sim::Report report;
    std::string difference;  // see Problem::difference
};

// Runs Kernel (SkeletonKernel<T, config>, with Params) on the simulated T.
template <class T, class Kernel, class Params>
Outcome run_simulated(const Problem& problem, int tile_q, sim::Options options) {
    constexpr float kUntouched = -12345.0f;
    std::vector<float> s(problem.expected_s.size(), kUntouched), row_max(problem.expected_max.size(), kUntouched);
    options.global = {{problem.q.data(), problem.q.size() * 16}, {problem.k.data(), problem.k.size() * 16}};
    const Params params{problem.q[0].byte, problem.k[0].byte, problem.q_scale.data(), problem.k_scale.data(),
                        s.data(),          row_max.data(),    problem.q_len,          problem.k_len};
    const sim::Grid grid{(problem.q_len + tile_q - 1) / tile_q};
    Outcome outcome;
    outcome.report =
        sim::launch<T>(grid, Kernel::kThreads, Kernel::kSharedBytes, options, [&] { Kernel::run(params); });
    if (outcome.report.ok()) outcome.difference = problem.difference(s, row_max);
    return outcome;
}

}  // namespace clary::examples
