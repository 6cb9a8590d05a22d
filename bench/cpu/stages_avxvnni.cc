// SPDX-License-Identifier: Apache-2.0
#include "stages.h"

#include "cpu/avxvnni/vec.h"

namespace clary::cpu {

const RunStage kRunAvxvnniStage = Stages<avxvnni::Vec>::run;

}  // namespace clary::cpu
