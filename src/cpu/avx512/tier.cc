// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/vec.h"

#include "cpu/tier_table.h"

namespace clary::cpu {

const Tier& avx512_tier() { return TierFunctions<avx512::Vec>::kTier; }

}  // namespace clary::cpu
