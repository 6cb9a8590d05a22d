// SPDX-License-Identifier: Apache-2.0
#include "cpu/avxvnni/vec.h"

#include "cpu/tier_table.h"

namespace clary::cpu {

const Tier& avxvnni_tier() { return TierFunctions<avxvnni::Vec>::kTier; }

}  // namespace clary::cpu
