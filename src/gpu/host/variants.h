// SPDX-License-Identifier: Apache-2.0
// The attention kernels that a build has of a recipe and its head dims (a unit). Which list is a recipe's stands in
// cmake/ClaryGpu.cmake.
#pragma once

#include "gpu/attention/configs.h"

namespace clary::gpu {

struct Unit {
    Format qk, pv;  // INT4's Q and K are INT8 to kernels
    Sums sums;
    int head_dim, head_dim_v;

    constexpr AttentionConfig config(bool key_bias, KeyScales key_scales, bool biased, int tile) const {
        return config_for(
            {element_of(qk), element_of(pv), head_dim, head_dim_v, tile, key_bias, key_scales, biased, sums});
    }
};

}  // namespace clary::gpu

// Lists X(suffix of the kernel's name, arguments of Unit::config). A kernel with scales per key serves groups too, and one
// with masks problems without: only common cases have their own.
#define CLARY_LANE clary::gpu::KeyScales::kLane
#define CLARY_KEY clary::gpu::KeyScales::kKey
#define CLARY_NONE clary::gpu::KeyScales::kNone

#define CLARY_QUANTIZED_TILE(X, tile)                   \
    X(bias_t##tile, true, CLARY_LANE, false, tile)      \
    X(t##tile, false, CLARY_LANE, false, tile)          \
    X(bias_masked_t##tile, true, CLARY_KEY, true, tile) \
    X(masked_t##tile, false, CLARY_KEY, true, tile)
// int8_fp16 and int8_bf16 scale K per token in the preset accurate.
#define CLARY_TOKEN_TILE(X, tile) X(bias_token_t##tile, true, CLARY_KEY, false, tile)
// Tiles are no part of exact recipes.
#define CLARY_EXACT(X)                     \
    X(plain, false, CLARY_NONE, false, 64) \
    X(masked, false, CLARY_NONE, true, 64)

#define CLARY_BYTE_V(X)         \
    CLARY_QUANTIZED_TILE(X, 64) \
    CLARY_QUANTIZED_TILE(X, 128)
#define CLARY_WIDE_V(X)     \
    CLARY_BYTE_V(X)         \
    CLARY_TOKEN_TILE(X, 64) \
    CLARY_TOKEN_TILE(X, 128)
// Steps of 64 keys serve both tiles (tile_of() in configs.h).
#define CLARY_HALF_V(X)                           \
    CLARY_TOKEN_TILE(X, 64)                       \
    X(t64, false, CLARY_LANE, false, 64)          \
    X(bias_masked_t64, true, CLARY_KEY, true, 64) \
    X(masked_t64, false, CLARY_KEY, true, 64)
