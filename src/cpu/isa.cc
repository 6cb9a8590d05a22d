// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace clary::cpu {
namespace {

// The features that the tier's files are compiled with (cpu/CMakeLists.txt), by the names of the compiler's builtin.
std::string missing_feature(std::string_view tier) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#define CLARY_NEEDS(feature) \
    if (!__builtin_cpu_supports(feature)) return feature;
    if (tier == "avx2" || tier == "avx512") {
        CLARY_NEEDS("avx2")
        CLARY_NEEDS("fma")
        // F16C has no name here; every CPU with AVX2 has it.
    }
    if (tier == "avx512") {
        CLARY_NEEDS("avx512f")
        CLARY_NEEDS("avx512bw")
        CLARY_NEEDS("avx512dq")
        CLARY_NEEDS("avx512vl")
        CLARY_NEEDS("avx512vnni")
    }
#undef CLARY_NEEDS
    return "";
#else
    return tier == "generic" ? "" : "x86-64";
#endif
}

}  // namespace

std::string tier_unusable(const char* name) {
    if (const char* forced = std::getenv("CLARY_CPU_ISA"); forced != nullptr && *forced != '\0') {
        const std::string_view isa = forced;
        const bool known = isa == "amx" || isa == "avx512" || isa == "avx2" || isa == "neon" || isa == "generic";
        if (!known) return fmt::format("CLARY_CPU_ISA: unknown tier '{}'; allowed: avx512, avx2, generic", isa);
        if (isa != name) return fmt::format("CLARY_CPU_ISA={} asks for another tier", isa);
    }
    const std::string missing = missing_feature(name);
    return missing.empty() ? "" : fmt::format("this machine lacks {}", missing);
}

}  // namespace clary::cpu
