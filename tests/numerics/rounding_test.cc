// SPDX-License-Identifier: Apache-2.0
// Rounding to integers, and the INT8 and INT4 codes, against std::nearbyint and a search over all codes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "numerics/float_patterns.h"
#include "numerics/formats.h"

namespace clary::numerics {
namespace {

std::vector<double> integers_and_ties() {
    std::vector<double> values;
    for (int i = 0; i <= 4200; ++i) values.push_back(i * 0.5);
    for (const double power : {4194304.0, 8388608.0, 16777216.0}) {
        for (int i = -8; i <= 8; ++i) values.push_back(power + i * 0.5);
    }
    return values;
}

TEST(Rounding, HalfEvenEqualsNearbyint) {
    const auto new_check = []() -> FloatCheck {
        return [](float x) {
            const float rounded = round_half_even(x);
            if (std::isnan(x)) return std::isnan(rounded);
            return std::bit_cast<uint32_t>(rounded) == std::bit_cast<uint32_t>(std::nearbyint(x));
        };
    };
    EXPECT_EQ(failures(new_check, integers_and_ties()), "");
}

// The code in -limit..limit nearest to x, ties to even, found by trying all.
int nearest_code(float x, int limit) {
    if (std::isnan(x)) return 0;
    if (std::fabs(x) > static_cast<float>(limit)) return x > 0 ? limit : -limit;  // distances of huge x look equal
    int best = -limit;
    for (int code = -limit + 1; code <= limit; ++code) {
        const double now = std::fabs(code - static_cast<double>(x)), before = std::fabs(best - static_cast<double>(x));
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return best;
}

TEST(Rounding, Int8AndInt4CodesAreTheNearest) {
    // Trying 255 codes for each of 2^32 inputs is out of reach: all ties and their neighbours, and a grid between.
    std::vector<float> inputs;
    for (int i = -600; i <= 600; ++i) {
        const float tie = static_cast<float>(i) * 0.5f;
        inputs.insert(inputs.end(), {tie, std::nextafter(tie, 1e9f), std::nextafter(tie, -1e9f), tie * 0.987f});
    }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float x : {1e-40f, 1e5f, 1e10f, 3e9f, 1e38f, infinity}) inputs.insert(inputs.end(), {x, -x});
    inputs.push_back(std::numeric_limits<float>::quiet_NaN());
    for (const float x : inputs) {
        ASSERT_EQ(quantize_int8(x), nearest_code(x, 127)) << x;
        ASSERT_EQ(quantize_int4(x), nearest_code(x, 7)) << x;
    }
}

TEST(Rounding, IntegerCodesOfAnyFloat) {
    const auto new_check = []() -> FloatCheck {
        return [](float x) {
            const auto expected = [x](float limit) {
                return std::isnan(x) ? 0.0f : std::fmin(std::fmax(std::nearbyint(x), -limit), limit);
            };
            return static_cast<float>(quantize_int8(x)) == expected(127) &&
                   static_cast<float>(quantize_int4(x)) == expected(7);
        };
    };
    EXPECT_EQ(failures(new_check, integers_and_ties()), "");
}

}  // namespace
}  // namespace clary::numerics
