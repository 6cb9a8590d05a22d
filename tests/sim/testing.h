// SPDX-License-Identifier: Apache-2.0
// Small things that the simulator's tests share.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "sim/sim.h"

namespace clary::sim {

// Runs `kernel` as one block of `waves` waves.
template <class T>
Report run_block(int waves, uint32_t shared_bytes, std::function<void()> kernel, const Options& options = {}) {
    return launch<T>(Grid{}, waves * T::kLanes, shared_bytes, options, std::move(kernel));
}

inline Options with(Copies copies, uint64_t seed = 0) {
    Options options;
    options.copies = copies;
    options.seed = seed;
    return options;
}

template <gpu::Machine kMachine>
struct On {
    using T = Sim<kMachine>;
};
using Machines =
    testing::Types<On<gpu::kSm75>, On<gpu::kSm80>, On<gpu::kSm89>, On<gpu::kXcore1000>, On<gpu::kXcore1500>>;

struct MachineNames {
    template <class M>
    static std::string GetName(int) {
        return gpu::machine_name(M::T::kChip);
    }
};

}  // namespace clary::sim
