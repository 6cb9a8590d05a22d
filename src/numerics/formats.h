// SPDX-License-Identifier: Apache-2.0
// The storage formats of quantized attention and their conversions from and to fp32.
//
// Every type holds its code in `bits` and has `from_float` (round to nearest, ties to even) and `to_float` (exact).
//
//   type   sign exponent mantissa bias   largest   above it      NaN codes
//   Fp16     1      5       10     15      65504   infinity      yes
//   Bf16     1      8        7    127   3.39e+38   infinity      yes
//   E4m3     1      4        3      7        448   448           0x7f, 0xff (no infinity)
//   E5m2     1      5        2     15      57344   57344         yes (infinity has codes, from_float never gives them)
//   E2m1     1      2        1      1          6   6             none: NaN becomes +6, as in PTX cvt.satfinite
//   Ue4m3    0      4        3      7        448   448           0x7f; negative values become 0
//
// "Above it" holds for infinities as well: whoever must not lose them looks at the input, not at the code.
// NaN keeps its sign and loses its payload. `==` compares codes, so +0 and -0 differ.
// The types are trivial (no default value), so that they can lie in shared memory.
// A default floating-point environment is assumed (rounding to nearest); flushing subnormals changes nothing except
// for subnormal bf16 and fp32 themselves.
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace clary::numerics {

inline constexpr int kInt8Max = 127;  // -128 is never produced: the range is symmetric
inline constexpr int kInt4Max = 7;    // -8 likewise

namespace detail {

inline constexpr uint32_t kFloatSign = 0x80000000u;
inline constexpr uint32_t kFloatInfinity = 0x7f800000u;

// x is an IEEE-like format without its sign bit: kExponent bits of exponent, kMantissa bits of mantissa.
template <int kExponent, int kMantissa>
struct Layout {
    static constexpr int kDropped = 23 - kMantissa;               // mantissa bits that fp32 has and the format has not
    static constexpr int kRebias = 128 - (1 << (kExponent - 1));  // fp32's exponent bias minus the format's
    static constexpr uint32_t kFirstNormal = static_cast<uint32_t>(kRebias + 1) << 23;  // as fp32 bits
    static constexpr uint32_t kNanAndInfinity = ((1u << kExponent) - 1) << kMantissa;   // IEEE: an exponent of ones

    // `magnitude`: fp32 bits without sign, not NaN. The code of the nearest value as if the exponent had no upper end,
    // so that the caller saturates with one min().
    CLARY_HD static constexpr uint32_t encode(uint32_t magnitude) {
        // Half a unit in the last kept place, less one where the kept part is even: a tie then carries only if odd.
        const uint32_t half = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1);
        const uint32_t normal = ((magnitude + half) >> kDropped) - (static_cast<uint32_t>(kRebias) << kMantissa);
        if constexpr (kRebias == 0) {
            return normal;  // bf16: subnormals lie where fp32's do
        } else {
            // One unit in the last place of `shift` is the format's smallest subnormal: the addition rounds.
            constexpr uint32_t shift = static_cast<uint32_t>(kRebias + 1 + kDropped) << 23;
            const float sum = bit_cast<float>(magnitude) + bit_cast<float>(shift);
            return magnitude < kFirstNormal ? bit_cast<uint32_t>(sum) - shift : normal;
        }
    }

    // The value of a finite code without sign.
    CLARY_HD static constexpr float decode(uint32_t code) {
        if constexpr (kRebias == 0) {
            return bit_cast<float>(code << kDropped);
        } else {
            constexpr float smallest = bit_cast<float>(static_cast<uint32_t>(kRebias + 1 - kMantissa) << 23);
            const float normal = bit_cast<float>((code << kDropped) + (static_cast<uint32_t>(kRebias) << 23));
            return code < (1u << kMantissa) ? static_cast<float>(code) * smallest : normal;
        }
    }
};

CLARY_HD constexpr uint32_t magnitude_bits(float x) { return bit_cast<uint32_t>(x) & ~kFloatSign; }
CLARY_HD constexpr bool is_nan(float x) { return magnitude_bits(x) > kFloatInfinity; }
CLARY_HD constexpr uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
CLARY_HD constexpr float with_sign_of(float magnitude, uint32_t sign_at_bit_31) {
    return bit_cast<float>(bit_cast<uint32_t>(magnitude) | (sign_at_bit_31 & kFloatSign));
}
CLARY_HD constexpr float quiet_nan() { return bit_cast<float>(0x7fc00000u); }

// Formats with infinities: everything past the largest finite value becomes one.
template <int kExponent, int kMantissa>
CLARY_HD constexpr uint16_t encode_ieee16(float x) {
    using L = Layout<kExponent, kMantissa>;
    constexpr uint32_t quiet = L::kNanAndInfinity | (1u << (kMantissa - 1));
    const uint32_t sign = (bit_cast<uint32_t>(x) & kFloatSign) >> 16;
    const uint32_t code = is_nan(x) ? quiet : smaller(L::encode(magnitude_bits(x)), L::kNanAndInfinity);
    return static_cast<uint16_t>(sign | code);
}

// Formats of at most 8 bits: everything past `largest` becomes it; NaN becomes `nan`. Codes without the sign.
template <int kExponent, int kMantissa>
CLARY_HD constexpr uint32_t encode_saturating(float x, uint32_t largest, uint32_t nan) {
    return is_nan(x) ? nan : smaller(Layout<kExponent, kMantissa>::encode(magnitude_bits(x)), largest);
}

}  // namespace detail

struct Fp16 {
    uint16_t bits;

    CLARY_HD static constexpr Fp16 from_float(float x) { return {detail::encode_ieee16<5, 10>(x)}; }
    CLARY_HD constexpr float to_float() const {
        const uint32_t code = bits & 0x7fffu;
        const float special = code == 0x7c00u ? bit_cast<float>(detail::kFloatInfinity) : detail::quiet_nan();
        return detail::with_sign_of(code < 0x7c00u ? detail::Layout<5, 10>::decode(code) : special,
                                    static_cast<uint32_t>(bits) << 16);
    }
    CLARY_HD constexpr bool operator==(const Fp16& other) const { return bits == other.bits; }
};

struct Bf16 {
    uint16_t bits;

    CLARY_HD static constexpr Bf16 from_float(float x) { return {detail::encode_ieee16<8, 7>(x)}; }
    CLARY_HD constexpr float to_float() const { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
    CLARY_HD constexpr bool operator==(const Bf16& other) const { return bits == other.bits; }
};

struct E4m3 {
    uint8_t bits;

    CLARY_HD static constexpr E4m3 from_float(float x) {
        const uint32_t sign = (bit_cast<uint32_t>(x) & detail::kFloatSign) >> 24;
        return {static_cast<uint8_t>(sign | detail::encode_saturating<4, 3>(x, 0x7e, 0x7f))};
    }
    CLARY_HD constexpr float to_float() const {
        const uint32_t code = bits & 0x7fu;
        return detail::with_sign_of(code == 0x7fu ? detail::quiet_nan() : detail::Layout<4, 3>::decode(code),
                                    static_cast<uint32_t>(bits) << 24);
    }
    CLARY_HD constexpr bool operator==(const E4m3& other) const { return bits == other.bits; }
};

struct E5m2 {
    uint8_t bits;

    CLARY_HD static constexpr E5m2 from_float(float x) {
        const uint32_t sign = (bit_cast<uint32_t>(x) & detail::kFloatSign) >> 24;
        return {static_cast<uint8_t>(sign | detail::encode_saturating<5, 2>(x, 0x7b, 0x7f))};
    }
    CLARY_HD constexpr float to_float() const { return Fp16{static_cast<uint16_t>(bits << 8)}.to_float(); }
    CLARY_HD constexpr bool operator==(const E5m2& other) const { return bits == other.bits; }
};

// The code lies in the low nibble; the high one is 0 and ignored.
struct E2m1 {
    uint8_t bits;

    CLARY_HD static constexpr E2m1 from_float(float x) {
        const uint32_t sign = detail::is_nan(x) ? 0 : (bit_cast<uint32_t>(x) & detail::kFloatSign) >> 28;
        return {static_cast<uint8_t>(sign | detail::encode_saturating<2, 1>(x, 7, 7))};
    }
    CLARY_HD constexpr float to_float() const {
        return detail::with_sign_of(detail::Layout<2, 1>::decode(bits & 7u), static_cast<uint32_t>(bits) << 28);
    }
    CLARY_HD constexpr bool operator==(const E2m1& other) const { return bits == other.bits; }
};

// The group scale of NVFP4: E4m3 without a sign, the top bit is 0.
struct Ue4m3 {
    uint8_t bits;

    CLARY_HD static constexpr Ue4m3 from_float(float x) {
        return {static_cast<uint8_t>(x < 0 ? 0 : detail::encode_saturating<4, 3>(x, 0x7e, 0x7f))};
    }
    CLARY_HD constexpr float to_float() const { return E4m3{static_cast<uint8_t>(bits & 0x7fu)}.to_float(); }
    CLARY_HD constexpr bool operator==(const Ue4m3& other) const { return bits == other.bits; }
};

// To the nearest integer, ties to even, as a float: std::nearbyint in the default rounding mode, in constant
// expressions and on devices too. Keeps the sign of zero.
CLARY_HD constexpr float round_half_even(float x) {
    constexpr float first_integer = 8388608.0f;  // 2^23: from here on every fp32 is an integer
    const float magnitude = bit_cast<float>(detail::magnitude_bits(x));
    const float rounded = (magnitude + first_integer) - first_integer;
    return magnitude < first_integer ? detail::with_sign_of(rounded, bit_cast<uint32_t>(x)) : x;
}

namespace detail {

// To the nearest integer in -limit..limit; NaN becomes 0, as cvt.rni.sat does.
CLARY_HD constexpr int8_t quantize_symmetric(float x, float limit) {
    const float low = x < -limit ? -limit : x;
    const float clamped = low > limit ? limit : low;
    return static_cast<int8_t>(is_nan(x) ? 0.0f : round_half_even(clamped));
}

}  // namespace detail

// `x_over_scale`: the value divided by the scale of its group.
CLARY_HD constexpr int8_t quantize_int8(float x_over_scale) {
    return detail::quantize_symmetric(x_over_scale, kInt8Max);
}
CLARY_HD constexpr int8_t quantize_int4(float x_over_scale) {
    return detail::quantize_symmetric(x_over_scale, kInt4Max);
}

}  // namespace clary::numerics
