// SPDX-License-Identifier: Apache-2.0
// Numbers of the softmax and of the recipes, with the reason for each.
#pragma once

namespace clary::numerics {

// Softmax runs in base 2: exp(x) = 2^(x log2 e). fp32 nearest values.
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

// Largest finite values.
inline constexpr float kFp16Max = 65504.0f;
inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE5m2Max = 57344.0f;
inline constexpr float kE2m1Max = 6.0f;

// INT8 PV: P in 0..1 becomes an unsigned byte.
inline constexpr float kPUint8Max = 255.0f;
inline constexpr float kPUint8Log2Max = 7.99435343685886f;  // log2 255

// FP8 PV: P in 0..1 times 2^8.807, which fills e4m3: log2(448) = 8.80735..., rounded down so that no P saturates
// (SageAttention 2 uses the same figure).
inline constexpr float kPFp8Log2Offset = 8.807f;
inline constexpr float kPFp8Max = 447.88985f;  // 2^8.807

// FP8 PV: V's channel scale is amax / kVFp8Max. With fp16 accumulators 448 * 2.25 * 64 keys = 64512 stays below 65504.
inline constexpr float kVFp8Max = kE4m3Max;
inline constexpr float kVFp8MaxFp16Accumulator = 2.25f;
inline constexpr int kFp8HalfKeys = 64;  // that fp16 has room for
static_assert(kE4m3Max * kVFp8MaxFp16Accumulator * kFp8HalfKeys < kFp16Max);

// FP8 PV on Hopper: the MMA's accumulators keep 13-14 bits of mantissa, so they are added to fp32 at least this often.
inline constexpr int kFp8FlushKeys = 512;

// FP4 PV: a row of P is scaled so that its maximum is the largest NVFP4 value, 448 * 6 = 2688; as an exponent,
// log2(2688) = 11.39231742...
inline constexpr float kPFp4RowMax = kE4m3Max * kE2m1Max;
inline constexpr float kPFp4Log2Offset = 11.392317422778760f;

// Tile-local softmax: a row's reference R moves only when a tile's maximum lies further above it than this (base 2).
inline constexpr float kReferenceSlack = 64.0f;

}  // namespace clary::numerics
