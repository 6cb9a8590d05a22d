// SPDX-License-Identifier: Apache-2.0
#include "capi/tables.h"

#include "cpu/kernels.h"
#include "reference/kernels.h"
#ifdef CLARY_WITH_CUDA
#include "cuda/kernels.h"
#endif
#ifdef CLARY_WITH_MACA
#include "maca/kernels.h"
#endif

namespace clary {

std::span<const KernelTable> kernel_tables() {
    static const KernelTable tables[] = {
        cpu::kernels(),
#ifdef CLARY_WITH_CUDA
        cuda::kernels(),
#endif
#ifdef CLARY_WITH_MACA
        maca::kernels(),
#endif
        reference::kernels(),
    };
    return tables;
}

}  // namespace clary
