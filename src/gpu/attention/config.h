// SPDX-License-Identifier: Apache-2.0
// What an attention kernel is compiled for.
#pragma once

#include "gpu/target/atoms.h"

namespace clary::gpu {

inline constexpr int kScaleKeys = 64;  // K scales repeat within runs of this many keys

// How a lane finds the K scale of a score.
enum class KeyScales {
    kNone,  // exact recipes
    kLane,  // keys of a run with equal key % 8 / 2 share one (all granularities but per_token): in registers
    kKey,   // one per key
};

struct AttentionConfig {
    Element qk;                // of Q and K: kS8, kF16, kBf16
    Element v;                 // kS8, kF16, kBf16; P follows: unsigned bytes, or the same type
    int head_dim, head_dim_v;  // padded
    bool key_bias;             // 32 digit columns behind the head dim
    KeyScales key_scales;
    bool biased;  // mask tensors and ALiBi
    int tile_q;   // rows of a block
    int tile_k;   // keys of a step, the recipe's tile
    int waves;    // of a block
    int blocks;   // of a multiprocessor, which bounds the registers

    friend constexpr bool operator==(const AttentionConfig&, const AttentionConfig&) = default;
};

}  // namespace clary::gpu
