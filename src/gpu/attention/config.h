// SPDX-License-Identifier: Apache-2.0
// What an attention kernel is compiled for.
#pragma once

#include "core/recipe.h"
#include "gpu/target/atoms.h"
#include "numerics/constants.h"

namespace clary::gpu {

inline constexpr int kScaleKeys = 64;  // K scales repeat within runs of this many keys

// How a lane finds the K scale of a score.
enum class KeyScales {
    kNone,  // exact recipes
    kLane,  // keys of a run with equal key % 8 / 2 share one (all granularities but per_token): in registers
    kKey,   // one per key
};

CLARY_HD constexpr Element element_of(Format format) {
    switch (format) {
        case Format::kFp16:
            return Element::kF16;
        case Format::kBf16:
            return Element::kBf16;
        case Format::kFp8:
            return Element::kE4m3;
        default:
            return Element::kS8;
    }
}

// P in 0..1 is multiplied by this before it is rounded: as much as its format has room for.
struct PTop {
    float value, log2;
};
CLARY_HD constexpr PTop p_top(Element v) {
    if (v == Element::kS8) return {numerics::kPUint8Max, numerics::kPUint8Log2Max};
    if (v == Element::kE4m3) return {numerics::kPFp8Max, numerics::kPFp8Log2Offset};
    return {1.0f, 0.0f};
}

// What the products of P and V add up in.
enum class Sums {
    kWide,     // int32 or fp32 for a tile, then fp32
    kHalf,     // fp16 for a tile, FP8 for 64 keys (more would overflow), then fp32
    kHalfRow,  // fp16 for the whole row
};
constexpr Sums sums_for(Accumulator accumulator) {
    switch (accumulator) {
        case Accumulator::kFp16:
            return Sums::kHalfRow;
        case Accumulator::kFp16Fp32:
        case Accumulator::kFp32Fp16:
            return Sums::kHalf;
        case Accumulator::kFp32:
        case Accumulator::kFp32Fp32:
            break;
    }
    return Sums::kWide;
}

struct AttentionConfig {
    Element qk;                // of Q and K: kS8, kF16, kBf16
    Element v;                 // kS8, kE4m3, kF16, kBf16; P follows: unsigned bytes, or the same type
    int head_dim, head_dim_v;  // padded
    bool key_bias;             // 32 digit columns behind the head dim
    KeyScales key_scales;
    bool biased;  // mask tensors and ALiBi
    int tile_q;   // rows of a block
    int tile_k;   // keys of a step, the recipe's tile
    int waves;    // of a block
    int blocks;   // of a multiprocessor, which bounds the registers
    Sums sums = Sums::kWide;

    friend constexpr bool operator==(const AttentionConfig&, const AttentionConfig&) = default;
};

}  // namespace clary::gpu
