// SPDX-License-Identifier: Apache-2.0
// How two softmax denominators join: shares of a merge, and a learned sink beside the keys.
#pragma once

#include <cmath>

#include "numerics/host_device.h"

namespace clary::numerics {

// log(exp(a) + exp(b)). -inf is an empty side, also on both; NaN and +inf, which no sum of scores has, give NaN.
CLARY_HD inline double log_add_exp(double a, double b) {
    const double larger = a < b ? b : a;
    if (a != a || b != b || larger == double{INFINITY}) return double{NAN};
    if (larger == -double{INFINITY}) return larger;
    return larger + std::log(std::exp(a - larger) + std::exp(b - larger));
}

}  // namespace clary::numerics
