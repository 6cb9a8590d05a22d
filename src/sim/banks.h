// SPDX-License-Identifier: Apache-2.0
// Shared memory has 32 banks of 4 bytes; one pass serves one word of each bank (to any number of lanes).
#pragma once

#include <cstdint>

#include "gpu/target/machines.h"

namespace clary::sim {

// Passes that an instruction takes beyond those that its bytes need: `count` lanes access `bytes` bytes each.
// NVIDIA serves up to 4 bytes of 32 lanes together, 8 bytes of 16 lanes, 16 bytes of 8 lanes. MetaX's order is not
// documented: a wave's bytes count as a whole.
int excess_passes(gpu::Vendor vendor, const uint32_t* addresses, int count, uint32_t bytes);

}  // namespace clary::sim
