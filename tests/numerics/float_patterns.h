// SPDX-License-Identifier: Apache-2.0
// Which of the 2^32 fp32 bit patterns the conversion tests try: a slice by default, all with CLARY_EXHAUSTIVE=1.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace clary::numerics {

bool exhaustive();  // CLARY_EXHAUSTIVE=1 in the environment

// Says whether the fp32 value x is treated correctly. One instance serves one thread.
using FloatCheck = std::function<bool(float x)>;

// Runs the check over the patterns: exhaustively on all hardware threads, or over every 4099th pattern, the extremes
// of each class (zero, subnormal, normal, infinity, NaN), and two neighbours on either side of each value in `around`,
// in both signs. Returns "" or the number of failures with the smallest pattern among them.
std::string failures(const std::function<FloatCheck()>& new_check, const std::vector<double>& around);

}  // namespace clary::numerics
