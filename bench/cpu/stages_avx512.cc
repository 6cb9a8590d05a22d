// SPDX-License-Identifier: Apache-2.0
#include "stages.h"

#include "cpu/avx512/vec.h"

namespace clary::cpu {

const RunStage kRunAvx512Stage = Stages<avx512::Vec>::run;

}  // namespace clary::cpu
