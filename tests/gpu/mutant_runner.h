// SPDX-License-Identifier: Apache-2.0
// Runs a damaged copy of a kernel of attention (mutants.cmake), with copies that land late and early and several orders of
// waves; says which check speaks first.
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

// What mutants are compiled for: small, and between them everything is in it but masks.
struct MutantOf {
    const char* recipe;
    KernelEntry kernel;
};
inline constexpr MutantOf kOfBytes{"int8_int8+tile=64", entry(gpu::kSm80, kInt8Int8, 32, 32, 64, Variant::kBias)};
inline constexpr MutantOf kOfFp8{"int8_fp8:fast+accum=fp32_fp16",
                                 entry(gpu::kSm89, kInt8Fp8, 32, 32, 128, Variant::kPlain, gpu::Sums::kHalf)};
inline constexpr MutantOf kOfHalfTiles{"int8_fp16:fast+accum=fp16_fp32",
                                       entry(gpu::kSm80, kInt8Fp16, 32, 32, 64, Variant::kPlain, gpu::Sums::kHalf)};
inline constexpr MutantOf kOfHalfRows{"int8_fp16:fast+accum=fp16",
                                      entry(gpu::kSm80, kInt8Fp16, 32, 32, 64, Variant::kPlain, gpu::Sums::kHalfRow)};

// launch(params, options): of the kernel.
std::string first_check(
    const MutantOf& of,
    const std::function<sim::Report(const gpu::AttentionParams& params, const sim::Options& options)>& launch);

// The namespace has a damaged kernel, and the other one from clary::gpu.
#define CLARY_ATTENTION_MUTANT(NAME, CHECK, OF)                                                                 \
    namespace {                                                                                                 \
    using namespace clary;                                                                                      \
    using T = sim::Sim<cases::OF.kernel.machine>;                                                               \
    constexpr gpu::AttentionConfig kConfig = gpu::config_for(cases::OF.kernel.needs);                           \
    using Attention = gpu::mutant_##NAME::AttentionKernel<T, kConfig>;                                          \
    using Combine = gpu::mutant_##NAME::CombineKernel<T>;                                                       \
    std::string run() { return cases::first_check(cases::OF, cases::launch_attention<T, Attention, Combine>); } \
    const bool registered = (cases::attention_mutants().push_back({#NAME, CHECK, run}), true);                  \
    }

}  // namespace clary::cases
