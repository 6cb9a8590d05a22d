// SPDX-License-Identifier: Apache-2.0
// What kernels take, found by asking them: the tables of docs/support.md (CPU memory), docs/support_cuda.md and
// docs/support_maca.md.
#pragma once

#include <string>

#include "core/types.h"

namespace clary::cases {

// Markdown. The same on every machine: asks supports(), not whether the machine has the instructions.
std::string support_table(DeviceType device);

}  // namespace clary::cases
