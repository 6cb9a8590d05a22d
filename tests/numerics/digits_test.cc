// SPDX-License-Identifier: Apache-2.0
// The key bias by INT8 digits: sums and limits over the whole range, zeros and extremes, and the score it adds up to.
#include "numerics/digits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace clary::numerics {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Digits, EveryUnitCountSplitsEvenly) {
    ASSERT_EQ(kBiasMax, 4064);
    for (int units = -kBiasMax; units <= kBiasMax; ++units) {
        int sum = 0, low = 1000, high = -1000;
        for (int column = 0; column < 32; ++column) {
            const int d = digit(units, column);
            sum += d;
            low = std::min(low, d);
            high = std::max(high, d);
        }
        ASSERT_EQ(sum, units);
        ASSERT_GE(low, -127) << units;
        ASSERT_LE(high, 127) << units;
        ASSERT_LE(high - low, 1) << units;
        for (int column = 0; column < 32; column += 4) {
            uint32_t four = 0;
            for (int i = 0; i < 4; ++i) four |= uint32_t{static_cast<uint8_t>(digit(units, column + i))} << 8 * i;
            ASSERT_EQ(digits(units, column), four) << units;
        }
    }
}

TEST(Digits, RepeatIsTheLargestWhoseScaleHoldsTheRow) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> exponent(-12, 3);
    for (int i = 0; i < 100000; ++i) {
        const float q_base = std::exp2(exponent(random) * 3), need = q_base * std::exp2(exponent(random));
        const int r = q_repeat(q_base, need);
        ASSERT_GE(r, 1);
        ASSERT_LE(r, 127);
        const double ratio = static_cast<double>(q_base) / static_cast<double>(need), ulp = std::ldexp(ratio, -23);
        if (r > 1) {
            ASSERT_LE(r, ratio + ulp) << q_base << ' ' << need;
        }
        if (r < 127) {
            ASSERT_GT(r + 1, ratio - ulp) << q_base << ' ' << need;
        }
    }
    for (int r = 1; r <= 127; ++r) {
        EXPECT_EQ(q_repeat(static_cast<float>(r), 1.0f), r);
        EXPECT_EQ(q_repeat(std::nextafter(static_cast<float>(r), 0.0f), 1.0f), std::max(1, r - 1));
    }
}

TEST(Digits, RepeatOfExtremes) {
    EXPECT_EQ(q_repeat(1.0f, 0.0f), 127);
    EXPECT_EQ(q_repeat(kQBaseFloor, 0.0f), 127);
    EXPECT_EQ(q_repeat(1e30f, 0.0f), 127);  // the quotient is infinite
    EXPECT_EQ(q_repeat(1.0f, 2.0f), 1);     // a sampled q_base may be too small: the row saturates
    EXPECT_EQ(q_repeat(1.0f, kInfinity), 1);
    EXPECT_EQ(q_repeat(1.0f, kNan), 1);
    EXPECT_EQ(q_repeat(kNan, 1.0f), 1);
}

TEST(Digits, QBaseHoldsTheLoudestRowAndGivesTheTypicalOneItsRepeat) {
    EXPECT_EQ(q_base_scale(100.0f, 1.0f), 100.0f);
    EXPECT_EQ(q_base_scale(3.0f, 1.0f), 64.0f);
    EXPECT_EQ(q_repeat(q_base_scale(3.0f, 1.0f), 1.0f), kTypicalRepeat);
    EXPECT_EQ(q_base_scale(0.0f, 0.0f), 1e-12f);
}

TEST(Digits, WeightsLieBetween15And240) {
    EXPECT_EQ(v_weight(1.0f, 1.0f), 15);
    EXPECT_EQ(v_weight(1.0f, 0.5f), 30);
    EXPECT_EQ(v_weight(1.0f, 0.51f), 29);
    EXPECT_EQ(v_weight(1.0f, 1.0f / 16), 240);
    EXPECT_EQ(v_weight(1.0f, 1e-3f), 240);
    EXPECT_EQ(v_weight(1.0f, 0.0f), 240);
    EXPECT_EQ(v_weight(v_tile_scale(0.0f), 0.0f), 15) << "a tile of zeros";
    EXPECT_EQ(v_token_scale(v_tile_scale(0.0f), 15), kScaleFloor);
    EXPECT_EQ(v_weight(1.0f, kInfinity), 15);
    EXPECT_EQ(v_weight(1.0f, kNan), 15);
    std::mt19937 random(2);
    std::uniform_real_distribution<float> exponent(-6, 0);
    for (int i = 0; i < 100000; ++i) {
        const float t_tile = std::exp2(exponent(random) * 4), t = t_tile * std::exp2(exponent(random));
        const int w = v_weight(t_tile, t);
        ASSERT_GE(w, 15);
        ASSERT_LE(w, 240);
        // The snapped scale represents the token, and is the tightest that does unless it is the quietest allowed.
        const double ulps = 1 + std::ldexp(4, -24);
        ASSERT_GE(static_cast<double>(v_token_scale(t_tile, w)) * ulps, static_cast<double>(t));
        if (w < 240) {
            ASSERT_LT(static_cast<double>(v_token_scale(t_tile, w + 1)), static_cast<double>(t) * ulps);
        }
    }
}

TEST(Digits, WeightOfTheLoudestTokenIs15ForAnyScale) {
    std::mt19937 random(3);
    std::uniform_real_distribution<float> exponent(-90, 90);
    for (int i = 0; i < 100000; ++i) {
        const float t = std::exp2(exponent(random));
        ASSERT_EQ(v_weight(t, t), 15) << t;
    }
}

TEST(Digits, BiasUnitsRoundToEvenWithinTheRange) {
    EXPECT_EQ(bias_units(2.5f, 1.0f), 2);
    EXPECT_EQ(bias_units(-3.5f, 1.0f), -4);
    EXPECT_EQ(bias_units(1.0f, 0.25f), 4);
    EXPECT_EQ(bias_units(4064.4f, 1.0f), 4064);
    EXPECT_EQ(bias_units(1e30f, 1.0f), 4064);
    EXPECT_EQ(bias_units(-1e30f, 1e-30f), -4064);
    EXPECT_EQ(bias_units(0.0f, 0.0f), 0);
    EXPECT_EQ(bias_units(0.0f, 1.0f), 0);
    EXPECT_EQ(bias_units(kNan, 1.0f), 0);
}

TEST(Digits, ARaisedKScaleAlwaysHoldsTheBias) {
    std::mt19937 random(4);
    std::uniform_real_distribution<float> exponent(-10, 10), fraction(-1, 1);
    for (int i = 0; i < 100000; ++i) {
        const float q_base = std::exp2(exponent(random)), a = std::exp2(exponent(random) / 4);
        const float need = std::exp2(exponent(random)), largest = std::exp2(exponent(random));
        const float k_scale = k_scale_for_bias(need, largest, q_base, a), unit = bias_unit(q_base, k_scale, a);
        ASSERT_EQ(k_scale_for_bias(need, largest, q_base, -a), k_scale) << "a negative softmax scale";
        ASSERT_EQ(bias_units(largest, bias_unit(q_base, k_scale, -a)), -bias_units(largest, unit));
        ASSERT_GE(k_scale, need);
        // Nothing is clamped: the end of the range rounds to itself.
        ASSERT_LT(static_cast<double>(largest) / static_cast<double>(unit), kBiasMax + 0.01);
        const float bias = fraction(random) * largest;
        ASSERT_NEAR(bias_units(bias, unit) * static_cast<double>(unit), static_cast<double>(bias),
                    0.501 * static_cast<double>(unit));
        if (largest < need * q_base * a * 4000) {
            ASSERT_EQ(k_scale, need);
        }
    }
}

TEST(Digits, ZerosGiveFiniteScalesAndNoBias) {
    const float q_base = q_base_scale(0, 0), a = 0.18f;
    const float k_scale = k_scale_for_bias(0, 0, q_base, a);
    EXPECT_EQ(k_scale, kScaleFloor);
    EXPECT_EQ(bias_units(0, bias_unit(q_base, k_scale, a)), 0);
    // Zero Q and K but V scales that differ: the whole bias is carried by the digits.
    const float raised = k_scale_for_bias(0, 4.0f, q_base, a);
    EXPECT_TRUE(std::isfinite(raised));
    EXPECT_NEAR(bias_units(4.0f, bias_unit(q_base, raised, a)), kBiasMax, 1);
}

TEST(Digits, TheIntegerScoreIsTheScorePlusItsBias) {
    // One query row, one key, head dim 64: columns of codes, then 32 columns r x digit, all in integers.
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const float a = 1.4426950408889634f / 8;
    for (int trial = 0; trial < 200; ++trial) {
        float q[64], k[64], q_amax = 0, k_amax = 0;
        for (int d = 0; d < 64; ++d) {
            q_amax = std::max(q_amax, std::fabs(q[d] = normal(random)));
            k_amax = std::max(k_amax, std::fabs(k[d] = normal(random)));
        }
        const float q_base = q_base_scale(q_amax / 127 * 3, q_amax / 127), local_bias = normal(random) * 5;
        const int r = q_repeat(q_base, q_amax / 127);
        const float q_scale = q_base / static_cast<float>(r);
        const float k_scale = k_scale_for_bias(k_amax / 127, std::fabs(local_bias), q_base, a);
        const int units = bias_units(local_bias, bias_unit(q_base, k_scale, a));
        int score = 0;
        double exact = static_cast<double>(local_bias), error = 0;
        for (int d = 0; d < 64; ++d) {
            const int q_code = quantize_int8(q[d] / q_scale), k_code = quantize_int8(k[d] / k_scale);
            score += q_code * k_code;
            const double q_value = q_code * static_cast<double>(q_scale),
                         k_value = k_code * static_cast<double>(k_scale);
            exact += static_cast<double>(a) * q_value * k_value;
            error = std::max(error, std::fabs(q_value - static_cast<double>(q[d])) / static_cast<double>(q_scale));
        }
        for (int column = 0; column < kDigitColumns; ++column) score += r * digit(units, column);
        const double unit = static_cast<double>(bias_unit(q_base, k_scale, a));
        ASSERT_NEAR(score * static_cast<double>(q_scale) * static_cast<double>(k_scale) * static_cast<double>(a), exact,
                    0.501 * unit + 1e-5 * std::fabs(exact));
        ASSERT_LE(error, 0.5001);  // no Q code saturated beyond rounding
    }
}

}  // namespace
}  // namespace clary::numerics
