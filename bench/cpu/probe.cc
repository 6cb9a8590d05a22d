// SPDX-License-Identifier: Apache-2.0
// What this machine gives at most: reads from memory, byte dot products by vectors and by tiles, for the records of
// bench/compare_torch.py. A
// shared library, so that the probes run in the process that measures attention, between its calls, on the same clock.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace {

volatile int64_t sink;

// work(i) on `threads` threads, this one among them.
void on_threads(int threads, const std::function<void(int)>& work) {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
    work(0);
    for (std::thread& other : others) other.join();
}

__attribute__((target("avx2"))) int64_t sum(const char* from, int64_t bytes, int64_t streams) {
    const int64_t part = bytes / streams;
    __m256i sums[4] = {};
    for (int64_t at = 0; at + 128 <= part; at += 128)
        for (int64_t stream = 0; stream < streams; ++stream) {
            const auto* const p = reinterpret_cast<const __m256i*>(from + stream * part + at);
            for (int i = 0; i < 4; ++i) sums[i] = _mm256_add_epi64(sums[i], _mm256_loadu_si256(p + i));
        }
    sums[0] = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
    return _mm256_extract_epi64(sums[0], 0);
}

// 16 independent accumulators hide the latency of any processor; operands are not zero.
__attribute__((target("avx512f"))) void dot_products(int64_t rounds) {
    asm volatile("vpternlogd $0xff, %%zmm16, %%zmm16, %%zmm16\n vpabsd %%zmm16, %%zmm17\n" ::: "xmm16", "xmm17");
    for (int64_t i = 0; i < rounds; ++i)
        asm volatile(
            ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n vpdpbusd %%zmm17, %%zmm16, %%zmm\\i\n "
            ".endr" ::
                : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                  "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17");
}

// Products of AMX's tile registers, in four sums; operands are as random as those of attention, for zeros draw less power and
// run faster.
__attribute__((target("amx-tile"))) void tile_products(int64_t rounds) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    alignas(64) uint32_t codes[256];
    uint32_t random = 1;
    for (uint32_t& code : codes) code = random = random * 1664525 + 1013904223;
    asm volatile("ldtilecfg %0\n .irp i, 0, 1, 2, 3, 4, 5, 6, 7\n tileloadd (%1,%2,1), %%tmm\\i\n .endr" ::"m"(config),
                 "r"(codes), "r"(int64_t{64})
                 : "memory");
    for (int64_t i = 0; i < rounds; ++i)
        asm volatile(
            "tdpbssd %%tmm4, %%tmm5, %%tmm0\n tdpbssd %%tmm4, %%tmm6, %%tmm1\n tdpbssd %%tmm7, %%tmm5, %%tmm2\n "
            "tdpbssd %%tmm7, %%tmm6, %%tmm3" ::);
    asm volatile("tilerelease");
}

bool has_amx() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 25 & 1) != 0 &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

extern "C" {

// Reads a buffer once, each thread its share in so many streams side by side.
[[gnu::visibility("default")]] void clary_probe_read(const char* buffer, int64_t bytes, int streams, int threads) {
    const int64_t share = bytes / threads;
    on_threads(threads, [&](int i) { sink = sum(buffer + i * share, share, streams); });
}

// VPDPBUSD on 512 bits: does so many operations in all (a product and its sum are two) and returns them; 0 without the
// instruction.
[[gnu::visibility("default")]] double clary_probe_vnni(int threads) {
    if (!__builtin_cpu_supports("avx512vnni")) return 0;
    constexpr int64_t kRounds = 2'000'000;
    on_threads(threads, [](int) { dot_products(kRounds); });
    return static_cast<double>(kRounds * threads) * 16 * 64 * 2;
}

// TDPBSSD likewise.
[[gnu::visibility("default")]] double clary_probe_amx(int threads) {
    static const bool has = has_amx();
    if (!has) return 0;
    constexpr int64_t kRounds = 100'000;
    on_threads(threads, [](int) { tile_products(kRounds); });
    return static_cast<double>(kRounds * threads) * 4 * 16 * 16 * 64 * 2;
}
}
