// SPDX-License-Identifier: Apache-2.0
#include "stages.h"

#include "cpu/avx2/vec.h"

namespace clary::cpu {

const RunStage kRunAvx2Stage = Stages<avx2::Vec>::run;

}  // namespace clary::cpu
