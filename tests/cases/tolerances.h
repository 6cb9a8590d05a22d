// SPDX-License-Identifier: Apache-2.0
// Every tolerance of the kernel tests, each with its derivation. u = 2^-24 is fp32's half unit; errors are relative to
// what they are compared with unless a unit is given.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "cases/case.h"
#include "core/recipe.h"
#include "core/types.h"

namespace clary::cases {

// Sums of a whole row in fp16 have no scale for a tile, and hold up to 65504.
inline bool beyond_fp16(const Recipe& recipe, const Case& c) {
    if (recipe.pv != Format::kFp16) return false;
    const bool whole_row = recipe.accumulator == Accumulator::kFp16;
    return (c.values == Values::kHugeV && (whole_row || !recipe.quantized())) ||
           (c.values == Values::kConstantV && whole_row);
}

// -- result against exact float64 attention: relative L1 over the whole output --
//
// Scores. Q and K of N(0, 1) elements with per-row scales amax / 127, amax about 3: a code step of 3 / 127 = 0.024 and
// so an error of 0.024 / sqrt(12) = 0.0068 per element, uniform and independent. A score sums D products, of Q's and
// K's errors each: 0.0068 * sqrt(2 D) * scale = 0.0097 * (scale * sqrt(D)) in natural units. The relative error of a
// weight is the error of its score, and the output's error is the same mean over keys as the output itself, so relative
// L1 comes out at about that number; shared scales (groups of rows, per_thread, per_warp) have steps of up to amax 4.5
// instead of 3 and a small D has fewer terms to average: factor 1.5 each.
inline constexpr double kScoreError = 0.0097;
inline constexpr double kSharedScaleFactor = 1.5;
inline constexpr double kInt4ScoreError = kScoreError * 127 / 7;  // steps so much wider
// P and V. u8 P: steps of 1 / 255 of the tile's maximum against typical weights of exp(-2) of it: 0.0039 / sqrt(12) /
// 0.13 = 0.0085. INT8 V: 0.0068 per element of size 0.8 (mean of |N(0, 1)|). FP16 P and V: 2^-12 each; bf16: 2^-9 each.
inline constexpr double kInt8PvError = 0.0085 + 0.0068 / 0.8;
// FP8: steps of 2^-4 to 2^-3 of a value, in the mean 1 / 11, over sqrt(12); of P and of V.
inline constexpr double kFp8PvError = 2 * 0.026;
// Few keys, few channels and few rows scatter around these means.
inline constexpr double kScatter = 1.5;
// Exact recipe: sums of some hundred terms in fp32, scores up to 2^4 in base 2: 2^4 u ln 2 + sqrt(300) u + exp2's 2e-9,
// all below 2e-6.
inline constexpr double kExactError = 2e-6;

// 16-bit exact recipes: Q, K, V and P rounded, each by half a unit (2^-11 of a value in fp16, 2^-8 in bf16), 0.29 units in
// the mean square. A score sums products with the errors of Q and K, sqrt(2) of that of its own spread; P and V add one
// each.
constexpr double exact_16_bit_error(Format format, double score_gain) {
    return 0.58 * (format == Format::kFp16 ? 0x1p-11 : 0x1p-8) * (1.5 * score_gain + 2);
}

// Sums in fp16: kernel and oracle round a running sum after each product, of 16 keys (8 on sm75) or 32 of FP8, which leaves
// an error of ulp / sqrt(12) = 2^-10 * 0.75 / sqrt(12) = 2.1e-4 of it, in the mean over mantissas. The sum of values of both
// signs grows as the root of the keys, so n roundings leave sqrt(n / 2) of that in the result; the two sides' errors are
// independent once one of them has rounded the other way: sqrt(2). n: of a tile of 64 keys, or of a row.
inline double half_sums(const Recipe& recipe, const Case& c) {
    const Accumulator a = recipe.accumulator;
    if (a == Accumulator::kFp32 || a == Accumulator::kFp32Fp32) return 0;
    int64_t keys = 64;
    if (a == Accumulator::kFp16) {
        keys = c.kv_len;
        for (const int64_t length : c.seqlens_k) keys = length > keys ? length : keys;
    }
    return kScatter * 2.1e-4 * std::sqrt(std::ceil(static_cast<double>(keys) / 8));
}

inline double error_against_exact(const Recipe& recipe, const Case& c) {
    if (recipe.pv == Format::kFp32) return kExactError * std::fmax(1, c.score_gain);
    if (!recipe.quantized()) return kScatter * exact_16_bit_error(recipe.pv, c.score_gain);
    const bool own_scales =
        recipe.granularity == numerics::Granularity::kFine || recipe.granularity == numerics::Granularity::kPerToken;
    const double score = recipe.qk == Format::kInt4 ? kInt4ScoreError : kScoreError;
    const double scores = score * c.score_gain * (own_scales ? 1 : kSharedScaleFactor);
    const double pv = recipe.pv == Format::kInt8   ? kInt8PvError
                      : recipe.pv == Format::kFp8  ? kFp8PvError
                      : recipe.pv == Format::kBf16 ? 0x1p-8
                                                   : 0x1p-11;
    return kScatter * (scores + pv) + half_sums(recipe, c);
}

// Rounding of the result to its type, half a unit.
inline double output_rounding(DType out) {
    return out == DType::kF16 ? 0x1p-11 : out == DType::kBF16 ? 0x1p-8 : 0x1p-23;
}

// -- attend from identical packed operands against the oracle --
//
// Integer sums are exact on both sides. exp2 differs: the polynomial (2.6e-6) and the fma of score and maximum, whose
// rounding in base 2 is u * |x| <= 2^-24 * 2^6 (weights below 2^-64 count nothing): 4e-6 ln 2. So P before rounding
// differs by at most 7e-6 relative, 255 * 7e-6 = 0.0018 of a code: an INT8 code differs (by one) where the oracle lies
// that close to a tie, one in 280 at most, one in 800 on average over weights below 1. A flip moves a row by
// |v| / sum P <= |v| / 255, and in the mean over independent signs far less.
inline constexpr double kAttendInt8L1 = 3e-4;    // 1 / 800 flips of relative size 1 / (255 * 0.3), plus fp32 sums
inline constexpr double kAttendInt8Max = 0.016;  // of the largest |v|: two flips in a row that one key dominates, each
                                                 // moving numerator and denominator by 1 / 255
inline constexpr double kTiedInt8L1 = 2e-3;  // scores all equal: half a code of 127 (weight 30) on the share of keys
                                             // that have such a weight, about a half
// 16-bit P: 7e-6 of a weight, in the mean over flips of its last bit too. The output is a mean of values of both signs
// and so smaller than the values, up to 5 times at 300 keys. bf16's flips are coarse (2^-8) and few: in an output of
// some thousand weights a handful, twice the mean.
inline constexpr double kAttendFp16L1 = 3.5e-5;
inline constexpr double kAttendBf16L1 = 1e-4;
// FP8 P: steps of 2^-4 to 2^-3 of a weight, twice 7e-6 of that from a tie: one code in 6000 differs, by a twelfth in the mean,
// which is 1.4e-5 of the weights; times 5 as above, and three times that for so few and coarse flips.
inline constexpr double kAttendFp8L1 = 2e-4;
inline constexpr double kAttendFp8Max = 0.0625;  // one flip of 2^-3 of a weight w moves O by w (1 - w) 2^-3 |v - O|, at
                                                 // most 2^-3 / 4 of what is at most 2 |v|
inline constexpr double kAttend16Max = 0.004;    // one flip of bf16 (2^-8) in a row that one key dominates

// Tensor cores of GPUs keep less of FP8's sums than fp32 holds (sm_90's wgmma: 13 bits behind the exponent of the largest term),
// and cut off the rest. In a sum over a tile of 128 keys of one sign, the worst there is, half of the products, of 8 bits, have
// bits below that, a quarter of a unit in the mean; the sum is 3/8 of the last one in the mean over its four steps.
inline constexpr double kCutSums = 128 * 0.5 * 0.25 * 0x1p-13 * 0.375;

// Few rows: one flip of the last bit of a weight that carries a quarter of its row, in one of the rows.
inline double one_flip(double unit, const Case& c) {
    const int64_t rows = c.varlen() ? c.q_heads : c.batch * c.q_heads * c.q_len;
    return unit * 0.25 / static_cast<double>(rows > 0 ? rows : 1);
}

inline double attend_l1(const Recipe& recipe, const Case& c) {
    if (recipe.pv == Format::kFp32) return kExactError * c.score_size;
    if (recipe.pv == Format::kInt8) return (c.tied ? kTiedInt8L1 : kAttendInt8L1) + one_flip(1.0 / 255, c);
    if (recipe.pv == Format::kFp8) return kAttendFp8L1 + one_flip(0x1p-3, c) + half_sums(recipe, c);
    if (recipe.pv == Format::kFp16) return kAttendFp16L1 + one_flip(0x1p-11, c) + half_sums(recipe, c);
    return kAttendBf16L1 + one_flip(0x1p-8, c);
}
// Added to it where the kernel runs on a chip, not simulated.
inline double cut_sums(const Recipe& recipe, std::string_view backend) {
    const bool in_fp32 = recipe.accumulator == Accumulator::kFp32 || recipe.accumulator == Accumulator::kFp32Fp32;
    return recipe.pv == Format::kFp8 && in_fp32 && backend == "cuda" ? kCutSums : 0;
}
// (Of errors that are normal, the largest of some ten thousand is four times their spread, which is 1.25 times their mean.)
inline double attend_max(const Recipe& recipe, const Case& c) {
    const double format = recipe.pv == Format::kInt8  ? kAttendInt8Max
                          : recipe.pv == Format::kFp8 ? kAttendFp8Max
                                                      : kAttend16Max;
    return format + 5 * half_sums(recipe, c);
}

// -- a result beside which no LSE is wanted, against the one with it --
//
// The same to the last bits, but for kernels with scores in fixed point (cpu/amx/int8_kernel.h), which serve where none is. There a
// score is rounded four times, each by up to a unit in the mean square of 1 / 12: 0.58 units of 2^-8 octaves, 0.0016 of a weight; up
// to four times that in the units of louder scores. P is rounded to 8 bits after that, so a code of typical size 40 flips to its
// neighbour in 0.0016 * 40 = 6 % of cases, by 1 / 40: sqrt(0.06) / 40 = 0.006 of a weight in the mean square, twice that at four
// times the unit; the output differs as its weights do.
inline double without_lse_l1(const Recipe& recipe, std::string_view kernel, const Case& c) {
    if (recipe.pv != Format::kInt8 || kernel != "cpu:amx") return 1e-6;
    return kScatter * 0.006 * (c.score_gain == 1 ? 1 : 2) + one_flip(1.0 / 255, c);
}

// LSE in natural units: the promise of docs/recipes.md. It stands for the sum of 2^x before P is rounded.
inline constexpr double kLse = 1e-4;
// fp32 holds an LSE of size x to 2^-24 x, and its terms (reference, shift) likewise.
inline double lse_rounding(float lse) { return 0x1p-21 * std::fabs(static_cast<double>(lse)); }
// Tensor cores cut a sum of scores of 16 bits off after each product of 16 channels, where fp32 rounds: up to 2^-23 of it, and
// always towards zero. The LSE is about the row's highest score, which in random rows is the largest of its running sums, too.
// (Products of sm75 are 8 deep: not allowed for.)
inline double lse_cut(const Recipe& recipe, std::string_view backend, int64_t dim, float lse) {
    const bool cuts = (recipe.qk == Format::kFp16 || recipe.qk == Format::kBf16) && backend == "cuda";
    return cuts ? static_cast<double>((dim + 15) / 16) * 0x1p-23 * std::fabs(static_cast<double>(lse)) : 0;
}

// -- packed codes against the reference quantizer --
//
// Both follow one written order of fp32 operations; only means (float64 against chunks), dot products and log2 may
// differ in the last bits. A code flips where x / scale lies within some 2^-22 * 127 of a tie: 3e-5 of all codes, ten
// times that where a mean of 20 was taken away (its ulp is 2^-20 of an element).
inline constexpr double kCodeFlipRate = 1e-3;
inline constexpr double kScaleError = 1e-6;  // relative
// Absolute: a sum of 128 values up to 4 loses 2^-22 of one; a scale is taken from values that lost such a mean. A
// hundred times that where a value is so much louder.
inline constexpr double kMeanError = 1e-6;

// -- tiers against each other --
// Each is within attend_l1 of the oracle from its own packed operands, and those differ in kCodeFlipRate of the codes
// by one step of 1 / 127 of amax.
inline double tiers_l1(const Recipe& recipe, const Case& c) {
    return 2 * attend_l1(recipe, c) + (recipe.quantized() ? 1e-4 : 0);
}

}  // namespace clary::cases
