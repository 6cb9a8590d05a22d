// SPDX-License-Identifier: Apache-2.0
// The reference as a backend: one row per recipe, named reference_<qk>_<pv>.
#pragma once

#include "core/kernel_table.h"

namespace clary::reference {

KernelTable kernels();

}  // namespace clary::reference
