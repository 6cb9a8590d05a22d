// SPDX-License-Identifier: Apache-2.0
// Runs a damaged copy of the skeleton kernel on two machines, with whole and short problems, late and early copies and
// several orders of waves; says which check speaks first.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../../examples/skeleton_kernel/simulated.h"
#include "sim/sim.h"

namespace clary::sim {

struct Mutant {
    const char *name, *sm80_check, *xcore1000_check;       // expected
    std::function<std::string()> run_sm80, run_xcore1000;  // "CHECK: text", "result: difference" or "none"
};

inline std::vector<Mutant>& mutants() {
    static std::vector<Mutant> all;
    return all;
}

template <class T, class Kernel, class Params>
std::string first_check(int tile_q) {
    for (const auto& [q_len, k_len] : {std::pair{76, 100}, std::pair{40, 20}}) {
        const examples::Problem problem(q_len, k_len, 64);
        for (const Copies copies : {Copies::kLate, Copies::kEarly})
            for (uint64_t seed = 0; seed < 2; ++seed) {
                Options options;
                options.copies = copies;
                options.seed = seed;
                const auto outcome = examples::run_simulated<T, Kernel, Params>(problem, tile_q, options);
                if (!outcome.report.ok()) return outcome.report.describe();
                if (!outcome.difference.empty()) return "result: " + outcome.difference;
            }
    }
    return "none";
}

#define CLARY_MUTANT(NAME, SM80, XCORE1000)                                                                \
    namespace {                                                                                            \
    using namespace clary;                                                                                 \
    using namespace clary::mutant_##NAME;                                                                  \
    template <gpu::Machine kMachine>                                                                       \
    std::string run() {                                                                                    \
        using T = sim::Sim<kMachine>;                                                                      \
        return sim::first_check<T, SkeletonKernel<T, SkeletonConfig{32, 32, 64, 2}>, SkeletonParams>(32);  \
    }                                                                                                      \
    const bool registered =                                                                                \
        (sim::mutants().push_back({#NAME, SM80, XCORE1000, run<gpu::kSm80>, run<gpu::kXcore1000>}), true); \
    }

}  // namespace clary::sim
