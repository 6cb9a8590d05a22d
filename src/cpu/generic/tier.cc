// SPDX-License-Identifier: Apache-2.0
#include "cpu/generic/vec.h"

#include "cpu/tier_table.h"

namespace clary::cpu {

const Tier& generic_tier() { return TierFunctions<generic::Vec>::kTier; }

}  // namespace clary::cpu
