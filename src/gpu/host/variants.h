// SPDX-License-Identifier: Apache-2.0
// The attention kernels that a build has of a recipe and its head dims. A kernel with scales per key serves groups too, and
// one with masks problems without: only common cases have their own.
#pragma once

#include "gpu/attention/configs.h"

namespace clary::gpu {

struct Variant {
    int tile;
    bool key_bias;
    KeyScales key_scales;
    bool biased;
};
inline constexpr Variant kExactVariants[] = {{64, false, KeyScales::kNone, false}, {64, false, KeyScales::kNone, true}};
inline constexpr Variant kQuantizedVariants[] = {
    {64, true, KeyScales::kLane, false},
    {64, false, KeyScales::kLane, false},
    {64, true, KeyScales::kKey, true},
    {64, false, KeyScales::kKey, true},
    {128, true, KeyScales::kLane, false},
    {128, false, KeyScales::kLane, false},
    {128, true, KeyScales::kKey, true},
    {128, false, KeyScales::kKey, true},
    // int8_fp16 and int8_bf16 scale K per token in the preset accurate; the others have no use for these.
    {64, true, KeyScales::kKey, false},
    {128, true, KeyScales::kKey, false},
};
constexpr int variant_count(Element qk, Element v) {
    return qk != Element::kS8 ? 2 : v == Element::kF16 || v == Element::kBf16 ? 10 : 8;
}
constexpr AttentionConfig variant_config(Element qk, Element v, int head_dim, int head_dim_v, int index) {
    const Variant& variant = qk == Element::kS8 ? kQuantizedVariants[index] : kExactVariants[index];
    AttentionNeeds needs{};
    needs.qk = qk;
    needs.v = v;
    needs.head_dim = head_dim;
    needs.head_dim_v = head_dim_v;
    needs.tile_k = variant.tile;
    needs.key_bias = variant.key_bias;
    needs.key_scales = variant.key_scales;
    needs.biased = variant.biased;
    return config_for(needs);
}

}  // namespace clary::gpu
