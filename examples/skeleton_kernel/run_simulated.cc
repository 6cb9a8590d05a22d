// SPDX-License-Identifier: Apache-2.0
// Runs the skeleton kernel on simulated machines and compares with plain loops.
//
//   skeleton_kernel            every machine, both modes of asynchronous copies; exit code 1 if one is wrong
//   skeleton_kernel --speed    GFLOP/s of the simulation by one core (processor time)
#include <fmt/format.h>

#include <cstring>
#include <ctime>

#include "sim/sim.h"
#include "simulated.h"
#include "skeleton_kernel.h"

namespace {

using namespace clary;
using examples::SkeletonConfig;

template <gpu::Machine kMachine, SkeletonConfig kConfig>
examples::Outcome run(const examples::Problem& problem, const sim::Options& options) {
    using T = sim::Sim<kMachine>;
    using Kernel = examples::SkeletonKernel<T, kConfig>;
    return examples::run_simulated<T, Kernel, examples::SkeletonParams>(problem, kConfig.tile_q, options);
}

template <gpu::Machine kMachine>
bool verify() {
    bool right = true;
    const examples::Problem problem(150, 333, 128);
    for (const sim::Copies copies : {sim::Copies::kEarly, sim::Copies::kLate}) {
        sim::Options options;
        options.copies = copies;
        const auto outcome = run<kMachine, SkeletonConfig{64, 64, 128, 4}>(problem, options);
        const bool ok = outcome.report.ok() && outcome.difference.empty();
        right = right && ok;
        fmt::print("{:10} copies {:5}  {}\n", gpu::machine_name(kMachine),
                   copies == sim::Copies::kEarly ? "early" : "late",
                   outcome.difference.empty() ? outcome.report.describe() : outcome.difference);
    }
    return right;
}

template <gpu::Machine kMachine>
void measure() {
    const examples::Problem problem(256, 2048, 128);
    const std::clock_t start = std::clock();
    const auto outcome = run<kMachine, SkeletonConfig{64, 64, 128, 4}>(problem, {});
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    fmt::print("{:10} {:.2f} GFLOP/s\n", gpu::machine_name(kMachine),
               2e-9 * static_cast<double>(outcome.report.counters.multiply_adds) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--speed") == 0) {
        measure<gpu::kSm75>();
        measure<gpu::kSm80>();
        measure<gpu::kXcore1000>();
        measure<gpu::kXcore1500>();
        return 0;
    }
    bool right = verify<gpu::kSm75>();
    right = verify<gpu::kSm80>() && right;
    right = verify<gpu::kSm89>() && right;
    right = verify<gpu::kXcore1000>() && right;
    right = verify<gpu::kXcore1500>() && right;
    return right ? 0 : 1;
}
