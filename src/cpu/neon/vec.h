// SPDX-License-Identifier: Apache-2.0
// The NEON tier's vectors (64-bit ARM with I8MM): 4 lanes; u8 x s8 dot products of 4 by USDOT.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "core/types.h"
#include "cpu/byte_dot.h"
#include "cpu/polynomial.h"

namespace clary::cpu::neon {

struct Vec : ByteDot {
    static constexpr const char* kName = "neon";
    static constexpr int kLanes = 4;
    static constexpr int kQueryVectors = 4;
    static constexpr int kRows = 4;  // 4 x 4 accumulators of 32 registers

    using F = float32x4_t;
    using I = int32x4_t;
    using M = uint32x4_t;  // all ones or zeros per lane

    // -- fp32 --
    static F load(const float* p) { return vld1q_f32(p); }
    static F loadu(const float* p) { return vld1q_f32(p); }
    static void store(float* p, F x) { vst1q_f32(p, x); }
    static void storeu(float* p, F x) { vst1q_f32(p, x); }
    static F set1(float x) { return vdupq_n_f32(x); }
    static F add(F a, F b) { return vaddq_f32(a, b); }
    static F sub(F a, F b) { return vsubq_f32(a, b); }
    static F mul(F a, F b) { return vmulq_f32(a, b); }
    static F div(F a, F b) { return vdivq_f32(a, b); }
    static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
    static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // b where either is NaN
    static F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }  // likewise
    static F abs(F a) { return vabsq_f32(a); }

    // -- masks --
    static M greater(F a, F b) { return vcgtq_f32(a, b); }               // false where NaN
    static M equal(F a, F b) { return vceqq_f32(a, b); }                 // false where NaN
    static M not_equal(F a, F b) { return vmvnq_u32(vceqq_f32(a, b)); }  // true where NaN
    static M is_nan(F a) { return vmvnq_u32(vceqq_f32(a, a)); }
    static M both(M a, M b) { return vandq_u32(a, b); }
    static M either(M a, M b) { return vorrq_u32(a, b); }
    static M none() { return vdupq_n_u32(0); }
    static bool any(M m) { return vmaxvq_u32(m) != 0; }
    static F select(M m, F yes, F no) { return vbslq_f32(m, yes, no); }
    // begin <= j < end, or j < keep.
    static M in_range(int j, I begin, I end, I keep) {
        const I at = set1(j);
        return vorrq_u32(vandq_u32(vcleq_s32(begin, at), vcltq_s32(at, end)), vcltq_s32(at, keep));
    }

    // -- int32 --
    static I load(const int32_t* p) { return vld1q_s32(p); }
    static void store(int32_t* p, I x) { vst1q_s32(p, x); }
    static I set1(int32_t x) { return vdupq_n_s32(x); }
    static I zero() { return vdupq_n_s32(0); }
    static I add(I a, I b) { return vaddq_s32(a, b); }
    static F to_float(I x) { return vcvtq_f32_s32(x); }
    // NaN gives a large negative number, as on x86.
    static I round(F x) { return vbslq_s32(is_nan(x), set1(INT32_MIN), vcvtnq_s32_f32(x)); }

    // 2^x by n + r: Degree of the polynomial of 2^r on [-1/2, 1/2]. x <= 127; below -126 gives 0, NaN stays.
    template <int Degree>
    static F exp2(F x) {
        const M tiny = vcltq_f32(x, set1(-126.0f));
        x = max(set1(-126.0f), x);
        const F n = vrndnq_f32(x);
        const I exponent = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), set1(127)), 23);
        // NaN reaches the product through the polynomial. Times zero, not zero in its place: a product below 2^-126 is slow.
        return mul(polynomial<Degree, Vec>(sub(x, n)),
                   vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(exponent), tiny)));
    }

    // -- dot products: lanes hold kDot elements of one query, rows are broadcast --
    static I dot(I sum, I lanes, I row) {
        return vusdotq_s32(sum, vreinterpretq_u8_s32(lanes), vreinterpretq_s8_s32(row));
    }
    static I dot16(I sum, I a, I b) {  // s16 x s16, pairs
        const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
        return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
    }
    // P of four tokens to one step of lane operands: bytes in token order, saturated to 0..255.
    static void store_p(int32_t* to, int64_t, I p0, I p1, I p2, I p3) {
        store(to, bytes(to_byte(p0), to_byte(p1), to_byte(p2), to_byte(p3)));
    }

    // -- parts: 4 lanes, here the whole vector --
    static I spread4(const int32_t* p) { return vld1q_s32(p); }
    static F spread4(const float* p) { return vld1q_f32(p); }
    // Lane j: the sum of the j-th vector.
    static I sum4(I a, I b, I c, I d) { return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)); }
    static F sum4(F a, F b, F c, F d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }
    // Lane i gets lane i ^ kBit; all lanes get lane kLane.
    template <int kBit>
    static F exchange(F x) {
        return kBit == 1 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
    }
    template <int kLane>
    static F splat4(F x) {
        return vdupq_laneq_f32(x, kLane);
    }
    // P of 16 tokens of a query, four a vector, to one step of operands in the order of V's positions.
    static void store_p_run(int32_t* to, int64_t, I p0, I p1, I p2, I p3) {
        const uint16x8_t low = vcombine_u16(vqmovun_s32(p0), vqmovun_s32(p1));
        const uint16x8_t high = vcombine_u16(vqmovun_s32(p2), vqmovun_s32(p3));
        const uint8x16_t bytes = vcombine_u8(vqmovn_u16(low), vqmovn_u16(high));
        store(to, vreinterpretq_s32_u8(vqtbl1q_u8(bytes, vld1q_u8(kPositions))));
    }

    // Codes (-127..127) of four channels to one word per lane.
    static I pack_codes(I c0, I c1, I c2, I c3) { return bytes(c0, c1, c2, c3); }
    // Codes of 4 kLanes tokens to bytes, saturated, in the order of V's positions (numerics/permutation.h).
    static void store_v_codes(int8_t* to, I c0, I c1, I c2, I c3) {
        const int8x16_t codes = vcombine_s8(vqmovn_s16(vcombine_s16(vqmovn_s32(c0), vqmovn_s32(c1))),
                                            vqmovn_s16(vcombine_s16(vqmovn_s32(c2), vqmovn_s32(c3))));
        vst1q_s8(to, vqtbl1q_s8(codes, vld1q_u8(kPositions)));
    }

    // -- moving data --
    // The 4 columns of 4 x 4 elements of 32 bits, and their transpose; strides in elements.
    static void columns(const float* from, int64_t from_stride, F (&to)[4]) {
        const F r0 = vld1q_f32(from), r1 = vld1q_f32(from + from_stride);
        const F r2 = vld1q_f32(from + 2 * from_stride), r3 = vld1q_f32(from + 3 * from_stride);
        const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)), b = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
        const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3)), d = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
        to[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
        to[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
        to[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
        to[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
    }
    static void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
        F column[4];
        columns(from, from_stride, column);
        for (int c = 0; c < 4; ++c) vst1q_f32(to + c * to_stride, column[c]);
    }
    static F load16(const uint16_t* p, DType dtype) {
        const uint16x4_t half = vld1_u16(p);
        return dtype == DType::kF16 ? vcvt_f32_f16(vreinterpret_f16_u16(half))
                                    : vreinterpretq_f32_u32(vshll_n_u16(half, 16));
    }
    static void store16(uint16_t* p, DType dtype, F x) {
        vst1_u16(p, dtype == DType::kF16 ? vreinterpret_u16_f16(vcvt_f16_f32(x)) : vshrn_n_u32(bf16_rounded(x), 16));
    }
    static F round_fp16(F x) { return vcvt_f32_f16(vcvt_f16_f32(x)); }
    static F round_bf16(F x) { return vreinterpretq_f32_u32(vandq_u32(bf16_rounded(x), vdupq_n_u32(0xffff0000u))); }

  private:
    static constexpr uint8_t kPositions[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};  // V's order
    static I to_byte(I x) { return vminq_s32(vmaxq_s32(x, zero()), set1(255)); }
    // The low byte of each.
    static I bytes(I b0, I b1, I b2, I b3) { return vsliq_n_s32(vsliq_n_s32(vsliq_n_s32(b0, b1, 8), b2, 16), b3, 24); }
    // fp32 bits rounded to nearest even at bit 16; NaN keeps its upper half, made quiet.
    static uint32x4_t bf16_rounded(F x) {
        const uint32x4_t bits = vreinterpretq_u32_f32(x);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(vdupq_n_u32(0x7fff), odd));
        return vbslq_u32(is_nan(x), vorrq_u32(bits, vdupq_n_u32(0x00400000)), rounded);
    }
};

}  // namespace clary::cpu::neon
