// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on the host: launch<Sim<kSm80>>(grid, threads, shared_bytes, options, [&] { kernel<Sim<kSm80>>(...); }).
#pragma once

#include <functional>

#include "gpu/target/machines.h"
#include "sim/report.h"

namespace clary::sim {

// Every lane of every block calls `kernel` once. Stops at the first failure; never throws for one.
// shared_bytes: dynamic shared memory of a block. threads: of a block, a multiple of the machine's lanes.
[[nodiscard]] Report launch(const gpu::Machine& machine, Grid grid, int threads, uint32_t shared_bytes,
                            const Options& options, std::function<void()> kernel);

template <class T, class Kernel>
[[nodiscard]] Report launch(Grid grid, int threads, uint32_t shared_bytes, const Options& options, Kernel kernel) {
    return launch(T::kChip, grid, threads, shared_bytes, options, std::function<void()>(std::move(kernel)));
}

}  // namespace clary::sim
