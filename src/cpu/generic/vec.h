// SPDX-License-Identifier: Apache-2.0
// The portable tier's vectors: 4 lanes in GCC's and clang's vector types, which the compiler maps to
// whatever the baseline instruction set has. The same interface as the other tiers' Vec.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/types.h"
#include "cpu/polynomial.h"
#include "numerics/formats.h"
#include "numerics/permutation.h"

namespace clary::cpu::generic {

struct Vec {
    static constexpr const char* kName = "generic";
    static constexpr int kLanes = 4;
    static constexpr int kQueryVectors = 2;
    static constexpr int kRows = 4;

    typedef float F __attribute__((vector_size(16)));
    typedef int32_t I __attribute__((vector_size(16)));
    using M = I;  // 0 or -1 per lane

    // -- fp32 --
    static F load(const float* p) { return loadu(p); }
    static F loadu(const float* p) {
        F x;
        std::memcpy(&x, p, sizeof(x));
        return x;
    }
    static void store(float* p, F x) { std::memcpy(p, &x, sizeof(x)); }
    static void storeu(float* p, F x) { std::memcpy(p, &x, sizeof(x)); }
    static F set1(float x) { return F{x, x, x, x}; }
    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    // Not fused where the baseline has no FMA: P codes may then differ by one from the other tiers'.
    static F fma(F a, F b, F c) { return a * b + c; }
    static F max(F a, F b) { return select(a > b, a, b); }  // b where either is NaN
    static F min(F a, F b) { return select(a < b, a, b); }  // likewise
    static F abs(F a) { return reinterpret_cast<F>(reinterpret_cast<I>(a) & 0x7fffffff); }

    // -- masks --
    static M greater(F a, F b) { return a > b; }
    static M equal(F a, F b) { return a == b; }
    static M not_equal(F a, F b) { return a != b; }
    static M is_nan(F a) { return a != a; }  // NOLINT(misc-redundant-expression): NaN alone
    static M both(M a, M b) { return a & b; }
    static M either(M a, M b) { return a | b; }
    static M none() { return I{0, 0, 0, 0}; }
    static bool any(M m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
    static F select(M m, F yes, F no) {
        return reinterpret_cast<F>((m & reinterpret_cast<I>(yes)) | (~m & reinterpret_cast<I>(no)));
    }
    static M in_range(int j, I begin, I end, I keep) {
        const I at = set1(j);
        return ((begin <= at) & (at < end)) | (at < keep);
    }

    // -- int32 --
    static I load(const int32_t* p) {
        I x;
        std::memcpy(&x, p, sizeof(x));
        return x;
    }
    static void store(int32_t* p, I x) { std::memcpy(p, &x, sizeof(x)); }
    static I set1(int32_t x) { return I{x, x, x, x}; }
    static I zero() { return set1(0); }
    static I add(I a, I b) { return a + b; }
    static F to_float(I x) { return __builtin_convertvector(x, F); }
    // To nearest even for |x| < 2^22, which all codes are; NaN gives a large negative number, as on x86.
    static I round(F x) {
        const F shifted = x + set1(kRoundShift);
        const I bits = reinterpret_cast<I>(shifted) - reinterpret_cast<I>(set1(kRoundShift));
        const M nan = is_nan(x);
        return (nan & set1(INT32_MIN)) | (~nan & bits);
    }

    template <int Degree>
    static F exp2(F x) {
        const M tiny = x < set1(-126.0f);  // false for NaN
        x = max(set1(-126.0f), x);
        const F n = (x + set1(kRoundShift)) - set1(kRoundShift);
        const I exponent = (reinterpret_cast<I>(x + set1(kRoundShift)) - reinterpret_cast<I>(set1(kRoundShift)) + 127)
                           << 23;
        // Times zero, not zero in its place: a product below 2^-126 is slow.
        const F value = polynomial<Degree, Vec>(x - n) * reinterpret_cast<F>(~tiny & exponent);
        return select(is_nan(x), x, value);
    }

    // -- dot products of 4 signed bytes, held as two pairs of 16 bits --
    static constexpr int kDot = 2;
    static constexpr int32_t kCodeBias = 0;
    static I dot(I sum, I lanes, I row) { return dot16(sum, lanes, row); }
    static I dot16(I sum, I a, I b) {
#if defined(__SSE2__)
        return sum + reinterpret_cast<I>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
        return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
    }
    static int32_t pair(int32_t low, int32_t high) {
        return static_cast<int32_t>((static_cast<uint32_t>(high) << 16) | (static_cast<uint32_t>(low) & 0xffffu));
    }
    static int32_t code_word(const int8_t* codes) { return pair(codes[0], codes[1]); }
    static constexpr int64_t kRowScratch = 2;
    static const int32_t* row_operand(const int8_t* codes, int64_t count, void* scratch) {
        auto* const wide = static_cast<int16_t*>(scratch);
        for (int64_t i = 0; i < count; ++i) wide[i] = codes[i];
        return static_cast<const int32_t*>(scratch);
    }
    static I to_byte(I x) {
        const I positive = x & ~(x >> 31);
        const M above = positive > set1(255);
        return (above & set1(255)) | (~above & positive);
    }
    static void store_p(int32_t* to, int64_t stride, I p0, I p1, I p2, I p3) {
        store(to, to_byte(p0) | (to_byte(p1) << 16));
        store(to + stride, to_byte(p2) | (to_byte(p3) << 16));
    }
    static void store_p_run(int32_t* to, int64_t stride, I p0, I p1, I p2, I p3) {
        const I p[4] = {to_byte(p0), to_byte(p1), to_byte(p2), to_byte(p3)};
        const auto at = [&](int position) {
            const auto token = static_cast<int>(numerics::v_token(position));
            return p[token / 4][token % 4];
        };
        for (int i = 0; i < 8; ++i) to[i / 4 * stride + i % 4] = pair(at(2 * i), at(2 * i + 1));
    }
    static constexpr int kWeightParts = 1;
    static void weight_operands(const uint8_t* weights, int count, int32_t* to) {
        for (int i = 0; i < count / 2; ++i) to[i] = pair(weights[2 * i], weights[2 * i + 1]);
    }
    // A part is the whole vector here.
    static I spread4(const int32_t* p) { return load(p); }
    static F spread4(const float* p) { return load(p); }
    template <typename X>
    static X sum4(X a, X b, X c, X d) {
        return X{a[0] + a[1] + a[2] + a[3], b[0] + b[1] + b[2] + b[3], c[0] + c[1] + c[2] + c[3],
                 d[0] + d[1] + d[2] + d[3]};
    }
    template <int kBit>
    static F exchange(F x) {
        return F{x[0 ^ kBit], x[1 ^ kBit], x[2 ^ kBit], x[3 ^ kBit]};
    }
    template <int kLane>
    static F splat4(F x) {
        return set1(x[kLane]);
    }
    static I pack_codes(I c0, I c1, I c2, I c3) {
        return (c0 & 0xff) | ((c1 & 0xff) << 8) | ((c2 & 0xff) << 16) | (c3 << 24);
    }
    // Codes of 4 kLanes tokens to bytes, saturated, in the order of V's positions.
    static void store_v_codes(int8_t* to, I c0, I c1, I c2, I c3) {
        const I codes[4] = {c0, c1, c2, c3};
        for (int i = 0; i < 4 * kLanes; ++i) {
            const auto token = static_cast<int>(numerics::v_token(i));
            const int32_t code = codes[token / kLanes][token % kLanes];
            to[i] = static_cast<int8_t>(code < -128 ? -128 : code > 127 ? 127 : code);
        }
    }

    // -- moving data --
    // The 4 columns of 4 x 4 elements of 32 bits, and their transpose; strides in elements.
    static void columns(const float* from, int64_t from_stride, F (&to)[kLanes]) {
        for (int j = 0; j < kLanes; ++j)
            to[j] = F{from[j], from[from_stride + j], from[2 * from_stride + j], from[3 * from_stride + j]};
    }
    static void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
        for (int i = 0; i < kLanes; ++i)
            for (int j = 0; j < kLanes; ++j)
                std::memcpy(to + j * to_stride + i, from + i * from_stride + j, sizeof(float));
    }
    static F load16(const uint16_t* p, DType dtype) {
        F x = set1(0.0f);
        for (int i = 0; i < kLanes; ++i)
            x[i] = dtype == DType::kF16 ? numerics::Fp16{p[i]}.to_float() : numerics::Bf16{p[i]}.to_float();
        return x;
    }
    static void store16(uint16_t* p, DType dtype, F x) {
        for (int i = 0; i < kLanes; ++i)
            p[i] = dtype == DType::kF16 ? numerics::Fp16::from_float(x[i]).bits : numerics::Bf16::from_float(x[i]).bits;
    }
    static F round_fp16(F x) {
        for (int i = 0; i < kLanes; ++i) x[i] = numerics::Fp16::from_float(x[i]).to_float();
        return x;
    }
    static F round_bf16(F x) {
        for (int i = 0; i < kLanes; ++i) x[i] = numerics::Bf16::from_float(x[i]).to_float();
        return x;
    }

  private:
    static constexpr float kRoundShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
};

}  // namespace clary::cpu::generic
