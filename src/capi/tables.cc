// SPDX-License-Identifier: Apache-2.0
#include "capi/tables.h"

#include "cpu/kernels.h"
#include "reference/kernels.h"

namespace clary {

std::span<const KernelTable> kernel_tables() {
    static const KernelTable tables[] = {cpu::kernels(), reference::kernels()};
    return tables;
}

}  // namespace clary
