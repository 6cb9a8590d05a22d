// SPDX-License-Identifier: Apache-2.0
// Runs a damaged copy of the attention kernel (mutants.cmake) on sm80, with copies that land late and early and several
// orders of waves; says which check speaks first.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/kernels.h"
#include "sim/sim.h"

namespace clary::cases {

struct AttentionMutant {
    const char *name, *check;          // expected
    std::function<std::string()> run;  // "CHECK: text", "result: text" or "none"
};

inline std::vector<AttentionMutant>& attention_mutants() {
    static std::vector<AttentionMutant> all;
    return all;
}

// 32 columns, tiles of 64 keys, digits: small, and everything is in it but masks.
inline constexpr gpu::AttentionConfig kMutantConfig =
    gpu::config_for(entry(gpu::kSm80, kInt8Int8, 32, 32, 64, Variant::kBias).needs);

// launch(params, options): of the kernel.
std::string first_check(
    const std::function<sim::Report(const gpu::AttentionParams& params, const sim::Options& options)>& launch);

#define CLARY_ATTENTION_MUTANT(NAME, CHECK)                                                             \
    namespace {                                                                                         \
    using namespace clary;                                                                              \
    using T = sim::Sim<gpu::kSm80>;                                                                     \
    using Kernel = gpu::mutant_##NAME::AttentionKernel<T, cases::kMutantConfig>;                        \
    std::string run() {                                                                                 \
        return cases::first_check([](const gpu::AttentionParams& params, const sim::Options& options) { \
            const auto blocks = static_cast<int>(gpu::attention_blocks(params.desc, Kernel::kTileQ));   \
            return sim::launch<T>({blocks, 1, 1}, Kernel::kThreads, Kernel::kSharedBytes, options,      \
                                  [&] { Kernel::run(params); });                                        \
        });                                                                                             \
    }                                                                                                   \
    const bool registered = (cases::attention_mutants().push_back({#NAME, CHECK, run}), true);          \
    }

}  // namespace clary::cases
