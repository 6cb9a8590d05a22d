// SPDX-License-Identifier: Apache-2.0
// The AVX2 tier's vectors (AVX2, FMA, F16C): 8 lanes; s16 x s16 dot products of 2 by VPMADDWD. VPMADDUBSW would take
// bytes, but its 16-bit sums saturate with P up to 255.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "core/types.h"
#include "cpu/polynomial.h"

namespace clary::cpu::avx2 {

// Everything but the name; a template, so that functions compiled for one tier are not another's (cpu/CMakeLists.txt).
template <class Tier>
struct VecOf {
    static constexpr int kLanes = 8;
    static constexpr int kQueryVectors = 2;
    static constexpr int kRows = 4;  // 4 x 2 accumulators of 16 registers

    using F = __m256;
    using I = __m256i;
    using M = __m256;  // all ones or zeros per lane

    // -- fp32 --
    static F load(const float* p) { return _mm256_load_ps(p); }
    static F loadu(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, F x) { _mm256_store_ps(p, x); }
    static void storeu(float* p, F x) { _mm256_storeu_ps(p, x); }
    static F set1(float x) { return _mm256_set1_ps(x); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
    static F min(F a, F b) { return _mm256_min_ps(a, b); }  // likewise
    static F abs(F a) { return _mm256_andnot_ps(set1(-0.0f), a); }

    // -- masks --
    static M greater(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }     // false where NaN
    static M equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }       // false where NaN
    static M not_equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }  // true where NaN
    static M is_nan(F a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
    static M both(M a, M b) { return _mm256_and_ps(a, b); }
    static M either(M a, M b) { return _mm256_or_ps(a, b); }
    static M none() { return _mm256_setzero_ps(); }
    static bool any(M m) { return _mm256_movemask_ps(m) != 0; }
    static F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
    // begin <= j < end, or j < keep.
    static M in_range(int j, I begin, I end, I keep) {
        const I at = set1(j);
        const I window = _mm256_andnot_si256(_mm256_cmpgt_epi32(begin, at), _mm256_cmpgt_epi32(end, at));
        return _mm256_castsi256_ps(_mm256_or_si256(window, _mm256_cmpgt_epi32(keep, at)));
    }

    // -- int32 --
    static I load(const int32_t* p) { return _mm256_load_si256(reinterpret_cast<const I*>(p)); }
    static void store(int32_t* p, I x) { _mm256_store_si256(reinterpret_cast<I*>(p), x); }
    static I set1(int32_t x) { return _mm256_set1_epi32(x); }
    static I zero() { return _mm256_setzero_si256(); }
    static I add(I a, I b) { return _mm256_add_epi32(a, b); }
    static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
    static I round(F x) { return _mm256_cvtps_epi32(x); }

    // 2^x by n + r: Degree of the polynomial of 2^r on [-1/2, 1/2]. x <= 127; below -126 gives 0, NaN stays.
    template <int Degree>
    static F exp2(F x) {
        const M tiny = _mm256_cmp_ps(x, set1(-126.0f), _CMP_LT_OQ);
        x = max(set1(-126.0f), x);
        const F n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const I exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), set1(127)), 23);
        // NaN reaches the product through the polynomial. Times zero, not zero in its place: a product below 2^-126 is slow.
        return mul(polynomial<Degree, VecOf>(sub(x, n)), _mm256_andnot_ps(tiny, _mm256_castsi256_ps(exponent)));
    }

    // -- dot products: lanes hold kDot elements of one query, rows are broadcast --
    static constexpr int kDot = 2;  // 16-bit elements per lane and step
    static constexpr int32_t kCodeBias = 0;
    static I dot(I sum, I lanes, I row) { return dot16(sum, lanes, row); }
    static I dot16(I sum, I a, I b) {
        // (Not the intrinsic: GCC 12 would sum into another register, and run out of them.)
        asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
        return sum;
    }
    static int32_t pair(int32_t low, int32_t high) {
        return static_cast<int32_t>((static_cast<uint32_t>(high) << 16) | (static_cast<uint32_t>(low) & 0xffffu));
    }
    static int32_t code_word(const int8_t* codes) { return pair(codes[0], codes[1]); }
    // Rows of codes as broadcast operands: widened to 16 bits once per tile. count is a multiple of 16.
    static constexpr int64_t kRowScratch = 2;  // bytes per code
    static const int32_t* row_operand(const int8_t* codes, int64_t count, void* scratch) {
        auto* const wide = static_cast<__m256i*>(scratch);
        for (int64_t i = 0; i < count / 16; ++i)
            _mm256_store_si256(wide + i,
                               _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * i))));
        return static_cast<const int32_t*>(scratch);
    }
    // P of four tokens to two steps of lane operands, saturated to 0..255.
    static void store_p(int32_t* to, int64_t stride, I p0, I p1, I p2, I p3) {
        store(to, byte_pair(p0, p1));
        store(to + stride, byte_pair(p2, p3));
    }
    // P of 16 tokens of each part's query, four a vector, to operands in the order of V's positions.
    static void store_p_run(int32_t* to, int64_t stride, I p0, I p1, I p2, I p3) {
        const I low = clamped(_mm256_packs_epi32(p0, p1)), high = clamped(_mm256_packs_epi32(p2, p3));
        store(to, _mm256_unpacklo_epi32(low, high));
        store(to + stride, _mm256_unpackhi_epi32(low, high));
    }
    // `count` weights as broadcast operands.
    static constexpr int kWeightParts = 1;
    static void weight_operands(const uint8_t* weights, int count, int32_t* to) {
        for (int i = 0; i < count / 2; ++i) to[i] = pair(weights[2 * i], weights[2 * i + 1]);
    }

    // -- parts: 4 lanes, 128 bits --
    static I spread4(const int32_t* p) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static F spread4(const float* p) { return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p)); }
    // Lane j of a part: the sum of the j-th vector's part.
    static I sum4(I a, I b, I c, I d) { return _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)); }
    static F sum4(F a, F b, F c, F d) { return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d)); }
    // Lane i gets lane i ^ kBit; all lanes get lane kLane.
    template <int kBit>
    static F exchange(F x) {
        return _mm256_permute_ps(x, kBit == 1 ? 0xb1 : 0x4e);
    }
    template <int kLane>
    static F splat4(F x) {
        return _mm256_permute_ps(x, kLane * 0x55);
    }
    // Codes (-127..127) of four channels to one word per lane.
    static I pack_codes(I c0, I c1, I c2, I c3) {
        return by_lane(_mm256_packs_epi16(_mm256_packs_epi32(c0, c1), _mm256_packs_epi32(c2, c3)));
    }
    // Codes of 4 kLanes tokens to bytes, saturated, in the order of V's positions (numerics/permutation.h).
    static void store_v_codes(int8_t* to, I c0, I c1, I c2, I c3) {
        const I bytes = _mm256_packs_epi16(_mm256_packs_epi32(c0, c1), _mm256_packs_epi32(c2, c3));
        const I runs = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        const I order =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
        _mm256_storeu_si256(reinterpret_cast<I*>(to), _mm256_shuffle_epi8(runs, order));
    }

    // -- moving data --
    // The 8 columns of 8 x 8 elements of 32 bits, and their transpose; strides in elements.
    [[gnu::always_inline]] static void columns(const float* from, int64_t from_stride, F (&to)[8]) {
        __m256 r[8], t[8];
        for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; ++j) {
                r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
                r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
            }
        for (int c = 0; c < 4; ++c) {
            to[c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x20);
            to[4 + c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x31);
        }
    }
    static void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
        F column[8];
        columns(from, from_stride, column);
        for (int c = 0; c < 8; ++c) _mm256_storeu_ps(to + c * to_stride, column[c]);
    }
    static F load16(const uint16_t* p, DType dtype) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return dtype == DType::kF16 ? _mm256_cvtph_ps(half)
                                    : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    static void store16(uint16_t* p, DType dtype, F x) {
        __m128i half;
        if (dtype == DType::kF16) {
            half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        } else {
            const I upper = _mm256_srli_epi32(bf16_rounded(x), 16);
            half = _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
        }
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
    }
    static F round_fp16(F x) {
        return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static F round_bf16(F x) {
        return _mm256_castsi256_ps(_mm256_and_si256(bf16_rounded(x), set1(static_cast<int32_t>(0xffff0000u))));
    }

  protected:
    // Bytes of four vectors as packing leaves them, to one word per lane.
    static I by_lane(I bytes) {
        const I order =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        return _mm256_shuffle_epi8(bytes, order);
    }

  private:
    // 16-bit elements.
    static I clamped(I x) {
        return _mm256_min_epi16(_mm256_max_epi16(x, _mm256_setzero_si256()), _mm256_set1_epi16(255));
    }
    static I byte_pair(I low, I high) {
        const I top = set1(255), zero = _mm256_setzero_si256();
        low = _mm256_min_epi32(_mm256_max_epi32(low, zero), top);
        high = _mm256_min_epi32(_mm256_max_epi32(high, zero), top);
        return _mm256_or_si256(low, _mm256_slli_epi32(high, 16));
    }
    // fp32 bits rounded to nearest even at bit 16; NaN keeps its upper half, made quiet.
    static I bf16_rounded(F x) {
        const I bits = _mm256_castps_si256(x);
        const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), set1(1));
        const I rounded = _mm256_add_epi32(bits, _mm256_add_epi32(set1(0x7fff), odd));
        return _mm256_castps_si256(_mm256_blendv_ps(
            _mm256_castsi256_ps(rounded), _mm256_castsi256_ps(_mm256_or_si256(bits, set1(0x00400000))), is_nan(x)));
    }
};

struct Vec : VecOf<Vec> {
    static constexpr const char* kName = "avx2";
};

}  // namespace clary::cpu::avx2
