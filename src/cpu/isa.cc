// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace clary::cpu {
namespace {

#if defined(__x86_64__)
// Asked of the processor itself: what __builtin_cpu_supports reads is left empty by some toolchains' run-time libraries.
struct Features {
    uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0, leaf7_1_eax = 0;
    uint64_t saved = 0;  // the registers that the operating system saves for each thread

    Features() {
        uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
        if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return;
        leaf1_ecx = ecx;
        if ((leaf1_ecx >> 27 & 1) == 0) return;  // OSXSAVE: nothing beyond SSE is switched on
        uint32_t low = 0, high = 0;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        saved = uint64_t{high} << 32 | low;
        if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return;
        leaf7_ebx = ebx, leaf7_ecx = ecx, leaf7_edx = edx;
        if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) leaf7_1_eax = eax;
    }
};
#endif

#if defined(__x86_64__)
// AMX's registers must be asked for once in a process; its threads have them then, and need larger stacks for signals: so
// only where AMX may be used.
bool ask_for_tiles() {
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}
#endif

// The first feature that the tier's files are compiled with (cpu/CMakeLists.txt) and this machine lacks; "" if none.
std::string missing_feature(std::string_view tier) {
#if defined(__x86_64__)
    static const Features features;
    const auto bit = [](uint32_t word, int index) { return (word >> index & 1) != 0; };
    constexpr unsigned kAvx2 = 1, kVnni = 2, kAvx512 = 4, kAmx = 8, kAll = 15;
    const unsigned wanted = tier == "avx2"      ? kAvx2
                            : tier == "avxvnni" ? kVnni
                            : tier == "avx512"  ? kAvx512
                            : tier == "amx"     ? kAvx512 | kAmx
                                                : 0;
    struct Need {
        const char* name;
        bool there;
        unsigned of;  // tiers
    };
    const Need needs[] = {
        {"registers of AVX saved by the operating system", (features.saved & 0x06) == 0x06, kAll},
        {"avx2", bit(features.leaf7_ebx, 5), kAll},
        {"fma", bit(features.leaf1_ecx, 12), kAll},
        {"f16c", bit(features.leaf1_ecx, 29), kAll},
        {"avx_vnni", bit(features.leaf7_1_eax, 4), kVnni},
        {"registers of AVX-512 saved by the operating system", (features.saved & 0xe0) == 0xe0, kAvx512},
        {"avx512f", bit(features.leaf7_ebx, 16), kAvx512},
        {"avx512bw", bit(features.leaf7_ebx, 30), kAvx512},
        {"avx512dq", bit(features.leaf7_ebx, 17), kAvx512},
        {"avx512vl", bit(features.leaf7_ebx, 31), kAvx512},
        {"avx512vnni", bit(features.leaf7_ecx, 11), kAvx512},
        {"avx512_vbmi", bit(features.leaf7_ecx, 1), kAmx},
        {"amx_tile", bit(features.leaf7_edx, 24), kAmx},
        {"amx_int8", bit(features.leaf7_edx, 25), kAmx},
        {"amx_bf16", bit(features.leaf7_edx, 22), kAmx},
        {"registers of AMX saved by the operating system", (features.saved & 0x60000) == 0x60000, kAmx},
    };
    for (const Need& need : needs)
        if (!need.there && (need.of & wanted) != 0) return need.name;
    if ((wanted & kAmx) != 0) {
        static const bool allowed = ask_for_tiles();
        if (!allowed) return "the operating system's leave to use AMX";
    }
    return "";
#elif defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long kI8mm = 1ul << 13;  // HWCAP2_I8MM
    if (tier == "generic" || (tier == "neon" && (getauxval(AT_HWCAP2) & kI8mm) != 0)) return "";
    return tier == "neon" ? "i8mm" : "x86-64";
#else
    return tier == "generic" ? "" : "the processor of that tier, or an operating system that tells of it";
#endif
}

}  // namespace

std::string tier_unusable(const char* name) {
    if (const char* forced = std::getenv("CLARY_CPU_ISA"); forced != nullptr && *forced != '\0') {
        const std::string_view isa = forced;
        const bool known =
            isa == "amx" || isa == "avx512" || isa == "avxvnni" || isa == "avx2" || isa == "neon" || isa == "generic";
        if (!known)
            return fmt::format("CLARY_CPU_ISA: unknown tier '{}'; allowed: amx, avx512, avxvnni, avx2, neon, generic",
                               isa);
        if (isa != name) return fmt::format("CLARY_CPU_ISA={} asks for another tier", isa);
    }
    const std::string missing = missing_feature(name);
    return missing.empty() ? "" : fmt::format("this machine lacks {}", missing);
}

}  // namespace clary::cpu
