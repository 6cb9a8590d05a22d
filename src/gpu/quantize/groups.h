// SPDX-License-Identifier: Apache-2.0
// Scale groups within a slab of 128 rows (see numerics/scale_groups.h; a slab holds whole groups of every granularity but
// per_tensor, whose are measured before), and limits of codes.
#pragma once

#include "core/recipe.h"
#include "numerics/constants.h"
#include "numerics/formats.h"
#include "numerics/scale_groups.h"

namespace clary::gpu {

// The rows that share a scale, seen from any of them: rows whose index differs in bits of `mask`.
struct RowGroup {
    int mask = 0;
};

inline RowGroup q_row_group(const Recipe& recipe) {
    using numerics::Granularity;
    const numerics::TileFamily& family = tile_family(recipe.family);
    switch (recipe.granularity) {
        case Granularity::kPerBlock:
            return {family.block_q - 1};
        case Granularity::kPerWarp:
            return {family.warp_q - 1};
        case Granularity::kPerThread:
            return {family.warp_q - 8};
        default:
            return {};
    }
}
inline RowGroup k_row_group(const Recipe& recipe) {
    using numerics::Granularity;
    const numerics::TileFamily& family = tile_family(recipe.family);
    switch (recipe.granularity) {
        case Granularity::kPerBlock:
        case Granularity::kPerWarp:
            return {family.block_k - 1};
        case Granularity::kPerThread:
            return {family.warp_k - 8 + 1};
        case Granularity::kFine:
            return {family.block_k - 8 + 1};
        default:
            return {};
    }
}

// V's scale is amax over this.
CLARY_HD inline float v_code_limit(const Recipe& recipe) {
    if (recipe.pv == Format::kInt8) return static_cast<float>(numerics::kInt8Max);
    return recipe.accumulator == Accumulator::kFp32Fp16 ? numerics::kVFp8MaxFp16Accumulator : numerics::kVFp8Max;
}

}  // namespace clary::gpu
