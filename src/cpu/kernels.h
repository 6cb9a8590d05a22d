// SPDX-License-Identifier: Apache-2.0
// The CPU backend's kernel table, best tier first.
#pragma once

#include "core/kernel_table.h"

namespace clary::cpu {

KernelTable kernels();

}  // namespace clary::cpu
