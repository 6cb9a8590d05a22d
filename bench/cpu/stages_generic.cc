// SPDX-License-Identifier: Apache-2.0
#include "stages.h"

#include "cpu/generic/vec.h"

namespace clary::cpu {

const RunStage kRunGenericStage = Stages<generic::Vec>::run;

}  // namespace clary::cpu
