// SPDX-License-Identifier: Apache-2.0
// The kernel tables of every backend in this build, in order of preference. The only place that names all backends.
#pragma once

#include <span>

#include "core/kernel_table.h"

namespace clary {

std::span<const KernelTable> kernel_tables();

}  // namespace clary
