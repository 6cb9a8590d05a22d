// SPDX-License-Identifier: Apache-2.0
// The AVX-512 tier's vectors (F, BW, DQ, VL, VNNI): 16 lanes; u8 x s8 dot products of 4 by VPDPBUSD.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "core/types.h"
#include "cpu/byte_dot.h"
#include "cpu/polynomial.h"

namespace clary::cpu::avx512 {

struct Vec : ByteDot {
    static constexpr const char* kName = "avx512";
    static constexpr int kLanes = 16;
    static constexpr int kQueryVectors = 2;  // vectors of queries per task: each broadcast of K or V serves two
    static constexpr int kRows = 8;          // keys or channels per inner block: 8 x 2 accumulators of 32 registers

    using F = __m512;
    using I = __m512i;
    using M = __mmask16;

    // -- fp32 --
    static F load(const float* p) { return _mm512_load_ps(p); }
    static F loadu(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F x) { _mm512_store_ps(p, x); }
    static void storeu(float* p, F x) { _mm512_storeu_ps(p, x); }
    static F set1(float x) { return _mm512_set1_ps(x); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
    static F min(F a, F b) { return _mm512_min_ps(a, b); }  // likewise
    static F abs(F a) { return _mm512_abs_ps(a); }
    static F max_magnitude(F a, F b) {
        return _mm512_range_ps(a, b, 0x0b);
    }  // of |a| and |b|; the other one's where NaN

    // -- masks --
    static M greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }     // false where NaN
    static M not_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }  // true where NaN
    static M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
    static M is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
    static M both(M a, M b) { return static_cast<M>(a & b); }
    static M either(M a, M b) { return static_cast<M>(a | b); }
    static M none() { return 0; }
    static bool any(M m) { return m != 0; }
    static F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
    // begin <= j < end, or j < keep.
    static M in_range(int j, I begin, I end, I keep) {
        const I at = _mm512_set1_epi32(j);
        return static_cast<M>((_mm512_cmple_epi32_mask(begin, at) & _mm512_cmplt_epi32_mask(at, end)) |
                              _mm512_cmplt_epi32_mask(at, keep));
    }

    // -- int32 --
    static I load(const int32_t* p) { return _mm512_load_si512(p); }
    static void store(int32_t* p, I x) { _mm512_store_si512(p, x); }
    static I set1(int32_t x) { return _mm512_set1_epi32(x); }
    static I zero() { return _mm512_setzero_si512(); }
    static I add(I a, I b) { return _mm512_add_epi32(a, b); }
    static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
    static I round(F x) { return _mm512_cvtps_epi32(x); }

    // 2^x: Degree of the polynomial. x <= 127; below -126 gives 0, NaN stays. (VSCALEF makes smaller numbers, but takes a hundred
    // cycles for them.)
    template <int Degree>
    static F exp2(F x) {
        const M normal = _mm512_cmp_ps_mask(x, set1(-126.0f), _CMP_NLT_UQ);
        if constexpr (Degree == 4) {
            // By floor(x), which VSCALEF takes itself, and the rest in [0, 1): polynomial.h's of degree 4, moved by 1/2.
            const F r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
            F sum = fma(set1(0x1.bb7cd6p-7f), r, set1(0x1.aa13eep-5f));
            sum = fma(sum, r, set1(0x1.ee798ap-3f));
            sum = fma(sum, r, set1(0x1.62d166p-1f));
            return _mm512_maskz_scalef_ps(normal, fma(sum, r, set1(0x1.00002cp+0f)), x);
        } else {
            const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            return _mm512_maskz_scalef_ps(normal, polynomial<Degree, Vec>(sub(x, n)), n);
        }
    }

    // -- dot products: lanes hold kDot elements of one query, rows are broadcast --
    static I dot(I sum, I lanes, I row) {
#if defined(__clang__)
        return _mm512_dpbusd_epi32(sum, lanes, row);
#else
        // GCC 12 copies every accumulator of the intrinsic twice in a loop, which halves its speed.
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(lanes), "v"(row));
        return sum;
#endif
    }
    static I dot16(I sum, I a, I b) { return _mm512_dpwssd_epi32(sum, a, b); }  // s16 x s16, pairs
    // P of four tokens to one step of lane operands: bytes in token order, saturated to 0..255.
    static void store_p(int32_t* to, int64_t, I p0, I p1, I p2, I p3) {
        store(to, in_parts(p_bytes(p0, p1, p2, p3), 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    }

    // -- parts: 4 lanes, 128 bits --
    static I spread4(const int32_t* p) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static F spread4(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
    // Lane j of a part: the sum of the j-th vector's part.
    static I sum4(I a, I b, I c, I d) {
        const I ab = add(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        const I cd = add(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        return add(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    static F sum4(F a, F b, F c, F d) {
        const __m512d ab = _mm512_castps_pd(add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        const __m512d cd = _mm512_castps_pd(add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
        return add(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    }
    // Lane i gets lane i ^ kBit; all lanes get lane kLane.
    template <int kBit>
    static F exchange(F x) {
        return _mm512_permute_ps(x, kBit == 1 ? 0xb1 : 0x4e);
    }
    template <int kLane>
    static F splat4(F x) {
        return _mm512_permute_ps(x, kLane * 0x55);
    }
    // P of 16 tokens of each part's query, four a vector, to operands in the order of V's positions.
    static void store_p_run(int32_t* to, int64_t, I p0, I p1, I p2, I p3) {
        store(to, in_parts(p_bytes(p0, p1, p2, p3), 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    }
    // Codes (-127..127) of four channels to one word per lane.
    static I pack_codes(I c0, I c1, I c2, I c3) {
        const I bytes = _mm512_packs_epi16(_mm512_packs_epi32(c0, c1), _mm512_packs_epi32(c2, c3));
        return in_parts(bytes, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    }
    // Codes of 4 kLanes tokens to bytes, saturated, in the order of V's positions (numerics/permutation.h).
    static void store_v_codes(int8_t* to, I c0, I c1, I c2, I c3) {
        const I bytes = _mm512_packs_epi16(_mm512_packs_epi32(c0, c1), _mm512_packs_epi32(c2, c3));
        const I runs = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_storeu_si512(
            to, in_parts(_mm512_permutexvar_epi32(runs, bytes), 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    }

    // -- moving data --
    // The 16 columns of 16 x 16 elements of 32 bits, and their transpose; strides in elements.
    [[gnu::always_inline]] static void columns(const float* from, int64_t from_stride, F (&to)[16]) {
        __m512 r[16], t[16];
        for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_stride);
        for (int i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
        }
        for (int i = 0; i < 16; i += 4)
            for (int j = 0; j < 2; ++j) {
                const __m512d lo = _mm512_castps_pd(t[i + j]), hi = _mm512_castps_pd(t[i + 2 + j]);
                r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
                r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
            }
        // r[4g + c] holds, in its 128-bit part q, column 4q + c of rows 4g..4g+3; gather the parts.
        for (int c = 0; c < 4; ++c) {
            const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
            const __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
            const __m512 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
            to[c] = _mm512_shuffle_f32x4(a, d, 0x88);
            to[4 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
            to[8 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
            to[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
        }
    }
    [[gnu::always_inline]] static void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
        F column[16];
        columns(from, from_stride, column);
        for (int c = 0; c < 16; ++c) _mm512_storeu_ps(to + c * to_stride, column[c]);
    }
    static F load16(const uint16_t* p, DType dtype) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return dtype == DType::kF16 ? _mm512_cvtph_ps(half)
                                    : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    static void store16(uint16_t* p, DType dtype, F x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            dtype == DType::kF16 ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                                                 : _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_rounded(x), 16)));
    }
    static F round_fp16(F x) {
        return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static F round_bf16(F x) {
        return _mm512_castsi512_ps(_mm512_and_si512(bf16_rounded(x), set1(static_cast<int32_t>(0xffff0000u))));
    }

  private:
    // In each part the four bytes of a vector follow those of the one before it.
    static I p_bytes(I p0, I p1, I p2, I p3) {
        return _mm512_packus_epi16(_mm512_packus_epi32(p0, p1), _mm512_packus_epi32(p2, p3));
    }
    template <typename... Bytes>
    static I in_parts(I x, Bytes... order) {
        return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_setr_epi8(static_cast<char>(order)...)));
    }
    // fp32 bits rounded to nearest even at bit 16; NaN keeps its upper half, made quiet.
    static I bf16_rounded(F x) {
        const I bits = _mm512_castps_si512(x);
        const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), set1(1));
        const I rounded = _mm512_add_epi32(bits, _mm512_add_epi32(set1(0x7fff), odd));
        return _mm512_mask_mov_epi32(rounded, is_nan(x), _mm512_or_si512(bits, set1(0x00400000)));
    }
};

}  // namespace clary::cpu::avx512
