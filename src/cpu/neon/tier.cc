// SPDX-License-Identifier: Apache-2.0
#include "cpu/neon/vec.h"

#include "cpu/tier_table.h"

namespace clary::cpu {

const Tier& neon_tier() { return TierFunctions<neon::Vec>::kTier; }

}  // namespace clary::cpu
