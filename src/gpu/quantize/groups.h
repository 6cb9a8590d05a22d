// SPDX-License-Identifier: Apache-2.0
// Scale groups within a slab, and limits of codes.
#pragma once

#include "gpu/quantize/configs.h"
#include "gpu/target/target.h"
#include "numerics/constants.h"
#include "numerics/scale_groups.h"

namespace clary::gpu {

// visit(row) for every row of the slab that shares the scale of `row` (see numerics/scale_groups.h; a slab holds whole
// groups of every granularity but per_tensor).
template <class Visit>
CLARY_DEVICE void each_of_group(const QuantizeParams& p, int row, bool is_q, const Visit& visit) {
    using numerics::Granularity;
    const Granularity granularity = p.desc.recipe.granularity;
    int run = 0, comb = 0;  // rows of a run; of a comb: keys that differ in key / 8 (and key % 2)
    switch (granularity) {
        case Granularity::kPerBlock:
            run = is_q ? p.family.block_q : p.family.block_k;
            break;
        case Granularity::kPerWarp:
            run = is_q ? p.family.warp_q : p.family.block_k;
            break;
        case Granularity::kPerThread:
            comb = is_q ? p.family.warp_q : p.family.warp_k;
            break;
        case Granularity::kFine:
            comb = is_q ? 0 : p.family.block_k;
            break;
        default:
            break;
    }
    if (run > 0) {
        for (int r = row / run * run; r < row / run * run + run; ++r) visit(r);
    } else if (comb > 0) {
        const int teeth = is_q ? 1 : 2, first = row / comb * comb + row % 8 / teeth * teeth;
        for (int r = first; r < row / comb * comb + comb; r += 8)
            for (int tooth = 0; tooth < teeth; ++tooth) visit(r + tooth);
    } else {
        visit(row);
    }
}

// V's scale is amax over this.
CLARY_DEVICE float v_code_limit(const Recipe& recipe) {
    if (recipe.pv == Format::kInt8) return static_cast<float>(numerics::kInt8Max);
    return recipe.accumulator == Accumulator::kFp32Fp16 ? numerics::kVFp8MaxFp16Accumulator : numerics::kVFp8Max;
}

}  // namespace clary::gpu
