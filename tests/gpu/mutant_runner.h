// SPDX-License-Identifier: Apache-2.0
// Runs a damaged copy of a kernel of attention (mutants.cmake) on sm80, with copies that land late and early and several
// orders of waves; says which check speaks first.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/attention/attention_kernel.h"
#include "gpu/combine/combine_kernel.h"
#include "gpu/kernels.h"
#include "gpu/launch.h"

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

// The namespace has a damaged kernel, and the other one from clary::gpu.
#define CLARY_ATTENTION_MUTANT(NAME, CHECK)                                                          \
    namespace {                                                                                      \
    using namespace clary;                                                                           \
    using T = sim::Sim<gpu::kSm80>;                                                                  \
    using Attention = gpu::mutant_##NAME::AttentionKernel<T, cases::kMutantConfig>;                  \
    using Combine = gpu::mutant_##NAME::CombineKernel<T>;                                            \
    std::string run() { return cases::first_check(cases::launch_attention<T, Attention, Combine>); } \
    const bool registered = (cases::attention_mutants().push_back({#NAME, CHECK, run}), true);       \
    }

}  // namespace clary::cases
