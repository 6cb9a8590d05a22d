// SPDX-License-Identifier: Apache-2.0
// Which instruction-set tiers this machine can run.
#pragma once

#include <string>

#include "cpu/tier.h"

namespace clary::cpu {

// "" when the tier of that name runs here, else why not. CLARY_CPU_ISA=<name> leaves only that tier.
std::string tier_unusable(const char* name);

}  // namespace clary::cpu
