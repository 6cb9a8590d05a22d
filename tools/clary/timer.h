// SPDX-License-Identifier: Apache-2.0
// Timing on a machine that is never quiet: candidates take turns, so that a slow spell hits all of them, and medians
// are reported.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "metrics.h"

namespace clary::cli {

struct Timing {
    std::vector<double> ms;  // one per round
    double median_ms() const { return median(ms); }
    double iqr_ms() const { return interquartile_range(ms); }
};

inline double milliseconds(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Runs every candidate once to warm up, then `rounds` times in turn.
inline std::vector<Timing> time_in_turns(
    const std::vector<std::function<void()>>& candidates, int rounds, const std::function<void()>& after_each = [] {}) {
    std::vector<Timing> timings(candidates.size());
    for (int round = -1; round < rounds; ++round) {
        for (size_t i = 0; i < candidates.size(); ++i) {
            const double ms = milliseconds(candidates[i]);
            if (round >= 0) timings[i].ms.push_back(ms);
            after_each();
        }
    }
    return timings;
}

}  // namespace clary::cli
