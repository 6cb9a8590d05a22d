// SPDX-License-Identifier: Apache-2.0
// The chart of `clary bench --svg`.
#pragma once

#include <string>
#include <vector>

#include "api.h"

namespace clary::cli {

// Bars of operations per second of the whole call: a panel per head dim, a group per length, a bar per recipe, the
// baseline first. `records` are those of `clary bench --json`.
std::string bench_plot(const std::vector<Json>& records);

}  // namespace clary::cli
