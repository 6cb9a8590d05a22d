// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's kernel table, newest architecture first.
#pragma once

#include "core/kernel_table.h"

namespace clary::cuda {

KernelTable kernels();

}  // namespace clary::cuda
