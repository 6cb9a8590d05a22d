// SPDX-License-Identifier: Apache-2.0
// The MXMACA backend's kernel table, newest architecture first.
#pragma once

#include "core/kernel_table.h"

namespace clary::maca {

KernelTable kernels();

}  // namespace clary::maca
