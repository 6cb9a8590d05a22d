// SPDX-License-Identifier: Apache-2.0
// The storage formats against their mathematical definition: a code's value by ldexp, and a value's code by search
// for the nearest among the values of all codes, ties to the even code. No bit trick of formats.h is repeated here.
#include "numerics/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "numerics/float_patterns.h"

namespace clary::numerics {
namespace {

struct Format {
    std::string name;
    int mantissa_bits, bias;
    uint32_t largest;   // the code of the largest finite value; finite codes without sign are 0..largest
    bool has_infinity;  // codes largest + 1 = infinity, above it NaN
    bool overflows_to_infinity;
    uint32_t sign;  // the sign bit, 0 for unsigned formats
    uint32_t nan;   // the code from_float gives to +NaN
    bool nan_has_sign;
    uint32_t codes;  // of the storage, sign included
    uint32_t (*encode)(float);
    float (*decode)(uint32_t);
};

template <typename T>
uint32_t encode_as(float x) {
    return T::from_float(x).bits;
}

template <typename T>
float decode_as(uint32_t code) {
    return T{static_cast<decltype(T::bits)>(code)}.to_float();
}

template <typename T>
Format with_functions(Format format) {
    format.encode = encode_as<T>;
    format.decode = decode_as<T>;
    return format;
}

std::vector<Format> formats() {
    return {
        with_functions<Fp16>({"fp16", 10, 15, 0x7bff, true, true, 0x8000, 0x7e00, true, 0x10000, {}, {}}),
        with_functions<Bf16>({"bf16", 7, 127, 0x7f7f, true, true, 0x8000, 0x7fc0, true, 0x10000, {}, {}}),
        with_functions<E4m3>({"e4m3", 3, 7, 0x7e, false, false, 0x80, 0x7f, true, 0x100, {}, {}}),
        with_functions<E5m2>({"e5m2", 2, 15, 0x7b, true, false, 0x80, 0x7f, true, 0x100, {}, {}}),
        with_functions<E2m1>({"e2m1", 1, 1, 7, false, false, 8, 7, false, 16, {}, {}}),
        with_functions<Ue4m3>({"ue4m3", 3, 7, 0x7e, false, false, 0, 0x7f, false, 0x80, {}, {}}),
    };
}

// The value of a code without sign; one past `largest` it is the value that would follow if exponents had no end.
double value_of(const Format& format, uint32_t code) {
    const int exponent = static_cast<int>(code >> format.mantissa_bits);
    const double mantissa = std::ldexp(code & ((1u << format.mantissa_bits) - 1), -format.mantissa_bits);
    return exponent == 0 ? std::ldexp(mantissa, 1 - format.bias) : std::ldexp(1 + mantissa, exponent - format.bias);
}

class Nearest {
  public:
    explicit Nearest(const Format& format) : format_(format) {
        const uint32_t last = format.largest + (format.overflows_to_infinity ? 1 : 0);
        for (uint32_t code = 0; code <= last; ++code) values_.push_back(value_of(format, code));
    }

    // The code that x should get.
    uint32_t operator()(float x) const {
        const bool negative = std::signbit(x);
        if (std::isnan(x)) return format_.nan | (negative && format_.nan_has_sign ? format_.sign : 0);
        if (negative && format_.sign == 0) return 0;
        return search(std::fabs(static_cast<double>(x))) | (negative ? format_.sign : 0);
    }

    const std::vector<double>& values() const { return values_; }

  private:
    // Walks from the last answer: neighbouring inputs have neighbouring answers.
    uint32_t search(double x) const {
        const size_t last = values_.size() - 1;
        while (here_ < last && values_[here_ + 1] <= x) ++here_;
        while (here_ > 0 && values_[here_] > x) --here_;
        if (here_ == last) return static_cast<uint32_t>(last);
        const double below = x - values_[here_], above = values_[here_ + 1] - x;
        const bool up = below > above || (below == above && here_ % 2 == 1);
        return static_cast<uint32_t>(here_ + (up ? 1 : 0));
    }

    Format format_;
    std::vector<double> values_;
    mutable size_t here_ = 0;
};

class FormatTest : public testing::TestWithParam<Format> {};

TEST_P(FormatTest, EveryCodeDecodesToItsValue) {
    const Format& format = GetParam();
    for (uint32_t code = 0; code < format.codes; ++code) {
        const uint32_t magnitude = code & ~format.sign;
        const float decoded = format.decode(code);
        ASSERT_EQ(std::signbit(decoded), (code & format.sign) != 0) << code;
        if (magnitude <= format.largest) {
            ASSERT_EQ(std::fabs(static_cast<double>(decoded)), value_of(format, magnitude)) << code;
        } else if (format.has_infinity && magnitude == format.largest + 1) {
            ASSERT_TRUE(std::isinf(decoded)) << code;
        } else {
            ASSERT_TRUE(std::isnan(decoded)) << code;
        }
    }
}

TEST_P(FormatTest, EveryFiniteCodeSurvivesTheRoundTrip) {
    const Format& format = GetParam();
    for (uint32_t code = 0; code < format.codes; ++code) {
        if ((code & ~format.sign) <= format.largest) {
            ASSERT_EQ(format.encode(format.decode(code)), code);
        }
    }
}

TEST_P(FormatTest, FloatsGetTheNearestCode) {
    const Format& format = GetParam();
    const Nearest nearest(format);
    std::vector<double> around = nearest.values();
    for (size_t i = 0; i + 1 < nearest.values().size(); ++i) {
        around.push_back((nearest.values()[i] + nearest.values()[i + 1]) / 2);
    }
    const auto new_check = [&]() -> FloatCheck {
        return [&format, expected = nearest](float x) { return format.encode(x) == expected(x); };
    };
    EXPECT_EQ(failures(new_check, around), "");
}

TEST_P(FormatTest, All16BitValuesGetTheNearestCode) {
    const Format& format = GetParam();
    const Nearest nearest(format);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float from_fp16 = Fp16{static_cast<uint16_t>(bits)}.to_float();
        const float from_bf16 = Bf16{static_cast<uint16_t>(bits)}.to_float();
        ASSERT_EQ(format.encode(from_fp16), nearest(from_fp16)) << "fp16 " << bits;
        ASSERT_EQ(format.encode(from_bf16), nearest(from_bf16)) << "bf16 " << bits;
    }
}

INSTANTIATE_TEST_SUITE_P(Numerics, FormatTest, testing::ValuesIn(formats()),
                         [](const auto& instance) { return instance.param.name; });

TEST(Formats, KnownValues) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(Fp16::from_float(65504.0f).bits, 0x7bff);
    EXPECT_EQ(Fp16::from_float(65519.996f).bits, 0x7bff);
    EXPECT_EQ(Fp16::from_float(65520.0f).bits, 0x7c00);
    EXPECT_EQ(Fp16{0x3555}.to_float(), 0.333251953125f);
    EXPECT_EQ(Bf16::from_float(3.14159265f).bits, 0x4049);
    EXPECT_EQ(Bf16::from_float(std::numeric_limits<float>::max()).bits, 0x7f80);
    EXPECT_EQ(E4m3::from_float(infinity).to_float(), 448.0f);
    EXPECT_EQ(E4m3::from_float(-1e30f).to_float(), -448.0f);
    EXPECT_EQ(E4m3{0x01}.to_float(), 0.001953125f);
    EXPECT_EQ(E5m2::from_float(infinity).to_float(), 57344.0f);
    EXPECT_EQ(E5m2::from_float(-65536.0f).to_float(), -57344.0f);
    EXPECT_TRUE(std::isinf(E5m2{0x7c}.to_float()));
    EXPECT_EQ(Ue4m3::from_float(-1.0f).bits, 0);
    EXPECT_EQ(Ue4m3::from_float(-infinity).bits, 0);
    EXPECT_EQ(Ue4m3::from_float(infinity).to_float(), 448.0f);
    const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint8_t code = 0; code < 8; ++code) {
        EXPECT_EQ(E2m1{code}.to_float(), e2m1[code]);
        EXPECT_EQ(E2m1{static_cast<uint8_t>(code | 0xf0u)}.to_float(), e2m1[code]) << "the high nibble is ignored";
        EXPECT_EQ(E2m1{static_cast<uint8_t>(code | 0xf8u)}.to_float(), -e2m1[code]);
    }
    EXPECT_EQ(E2m1::from_float(std::numeric_limits<float>::quiet_NaN()).to_float(), 6.0f);
    EXPECT_EQ(E2m1::from_float(-std::numeric_limits<float>::quiet_NaN()).to_float(), 6.0f);
    EXPECT_EQ(E2m1::from_float(-infinity).to_float(), -6.0f);
}

}  // namespace
}  // namespace clary::numerics
