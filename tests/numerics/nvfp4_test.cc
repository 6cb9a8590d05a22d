// SPDX-License-Identifier: Apache-2.0
// NVFP4 groups against a search over all scales and codes.
#include "numerics/nvfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace clary::numerics {
namespace {

constexpr double kE2m1Values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Value and code parity decide: the nearest of the 8 magnitudes, ties to the even code, with x's sign.
double nearest_e2m1(double x) {
    int best = 0;
    for (int code = 1; code < 8; ++code) {
        const double now = std::fabs(kE2m1Values[code] - std::fabs(x)),
                     before = std::fabs(kE2m1Values[best] - std::fabs(x));
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return std::copysign(kE2m1Values[best], x);
}

TEST(Nvfp4, GroupsEqualTheSearch) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int trial = 0; trial < 5000; ++trial) {
        const float loudness = std::exp2(normal(random) * 4);
        float x[kNvfp4Group], amax = 0;
        for (float& value : x) amax = std::max(amax, std::fabs(value = normal(random) * loudness));
        E2m1 codes[kNvfp4Group];
        const Ue4m3 scale = nvfp4_quantize(x, codes);

        const float wanted = amax / 6;
        const float scale_value = scale.to_float();
        for (uint8_t other = 0; other <= 0x7e; ++other) {
            ASSERT_LE(std::fabs(static_cast<double>(scale_value) - static_cast<double>(wanted)),
                      std::fabs(static_cast<double>(Ue4m3{other}.to_float()) - static_cast<double>(wanted)));
        }
        for (int i = 0; i < kNvfp4Group; ++i) {
            const double expected = scale_value == 0 ? 0.0 : nearest_e2m1(static_cast<double>(x[i] / scale_value));
            ASSERT_EQ(static_cast<double>(codes[i].to_float()), expected);
            ASSERT_EQ(static_cast<double>(nvfp4_decode(codes[i], scale)), expected * static_cast<double>(scale_value));
        }
    }
}

TEST(Nvfp4, RangeEnds) {
    EXPECT_EQ(nvfp4_scale(0.0f).bits, 0);
    EXPECT_EQ(nvfp4_scale(6.0f).to_float(), 1.0f);
    EXPECT_EQ(nvfp4_scale(kPFp4RowMax).to_float(), 448.0f);
    EXPECT_EQ(nvfp4_scale(1e30f).to_float(), 448.0f);
    EXPECT_EQ(nvfp4_scale(std::ldexp(6.0f, -10)).bits, 0);
    EXPECT_EQ(nvfp4_scale(std::nextafter(std::ldexp(6.0f, -10), 1.0f)).bits, 1);
    EXPECT_EQ(nvfp4_code(1e30f, 448.0f).to_float(), 6.0f);
    EXPECT_EQ(nvfp4_code(1.0f, 0.0f).bits, 0);
    EXPECT_NEAR(static_cast<double>(std::exp2(kPFp4Log2Offset)), static_cast<double>(kPFp4RowMax), 0.01);
}

TEST(Nvfp4, AGroupWithANonFiniteValueDecodesToNan) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
        for (const int where : {0, 7, 15}) {
            float x[kNvfp4Group];
            std::fill(x, x + kNvfp4Group, 1.0f);
            x[where] = bad;
            E2m1 codes[kNvfp4Group];
            const Ue4m3 scale = nvfp4_quantize(x, codes);
            for (const E2m1 code : codes) EXPECT_TRUE(std::isnan(nvfp4_decode(code, scale)));
        }
    }
}

}  // namespace
}  // namespace clary::numerics
