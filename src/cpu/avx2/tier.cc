// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/vec.h"

#include "cpu/tier_table.h"

namespace clary::cpu {

const Tier& avx2_tier() { return TierFunctions<avx2::Vec>::kTier; }

}  // namespace clary::cpu
