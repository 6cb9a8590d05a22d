// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace clary::cpu {

// Registers the benchmarks amx/round/..; only where AMX is usable.
void add_tile_rounds();

}  // namespace clary::cpu
