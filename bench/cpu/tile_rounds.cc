// SPDX-License-Identifier: Apache-2.0
// What AMX's tiles and AVX-512's vectors take from each other: rounds like those of cpu/amx/int8_kernel.h, 16 keys at head dim 64
// for 32 queries, of products (a tile loaded, two cleared, two products), stores of two tiles and vectors (16 times six
// operations of scores), each alone and beside the others. All operands lie in the first cache, and nothing waits for a result.
//
// ns: of a round. GHz: the clock right after, which takes some microseconds to recover from tiles.
#include "tile_rounds.h"

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <string>

#include "cpu/amx/tiles.h"

namespace clary::cpu {
namespace {

enum Part { kProducts = 1, kStores = 2, kVectors = 4 };

alignas(4096) char memory[20480];

// Four maxima in turn: one would be a chain that takes four cycles each.
void vectors(const char* from, char* to) {
    for (int i = 0; i < 4; ++i, from += 512, to += 256)
        asm volatile(
            ".irp i, 0, 1, 2, 3\n vpmultishiftqb \\i*128(%0), %%zmm31, %%zmm1%{%%k1%}%{z%}\n"
            "vpmultishiftqb \\i*128+64(%0), %%zmm31, %%zmm1%{%%k1%}\n vpmulhrsw %%zmm31, %%zmm1, %%zmm1\n"
            "vpmulhrsw %%zmm31, %%zmm1, %%zmm1\n vpmaxsw %%zmm1, %%zmm1\\i, %%zmm1\\i\n vmovdqa64 %%zmm1, \\i*64(%1)\n "
            ".endr" ::"r"(from),
            "r"(to)
            : "memory", "xmm1", "xmm10", "xmm11", "xmm12", "xmm13");
}

// c: the sums that are made; the others are stored.
template <int parts, int c>
void one_round() {
    const auto words = [](int byte) { return reinterpret_cast<int32_t*>(memory + byte); };
    if constexpr ((parts & kProducts) != 0) amx::Tiles::multiply_s8_s8(c, memory, amx::Tiles::kStepBytes, words(0), 1);
    if constexpr ((parts & kStores) != 0) amx::Tiles::store(1 - c, words(4096));
    if constexpr ((parts & kVectors) != 0) vectors(memory + 8192, memory + 16384);
}

// GHz: 3 cycles a multiplication, one after the other.
double clock() {
    constexpr int kRounds = 300, kEach = 8;
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0, x = 1; i < kRounds; ++i) asm volatile(".rept 8\n imulq $3, %0, %0\n .endr" : "+r"(x));
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    return kRounds * kEach * 3 / time.count();
}

template <int parts>
void rounds(benchmark::State& state) {
    constexpr int kRounds = 200000;
    std::memset(memory, 1, sizeof(memory));
    const amx::Tiles tiles;
    asm volatile("kmovq %0, %%k1\n vmovdqa64 (%1), %%zmm31" ::"r"(0x3333333333333333), "r"(memory) : "xmm31");
    double ghz = 0;
    for (auto _ : state) {
        for (int i = 0; i < kRounds / 2; ++i) one_round<parts, 0>(), one_round<parts, 1>();
        ghz += clock();
    }
    state.counters["ns"] = benchmark::Counter(static_cast<double>(state.iterations()) * kRounds * 1e-9,
                                              benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    state.counters["GHz"] = ghz / static_cast<double>(state.iterations());
}

}  // namespace

void add_tile_rounds() {
    const auto add = [](const char* name, void (*run)(benchmark::State&)) {
        benchmark::RegisterBenchmark((std::string("amx/round/") + name).c_str(), run)->Unit(benchmark::kMillisecond);
    };
    add("products", rounds<kProducts>);
    add("stores", rounds<kStores>);
    add("products+stores", rounds<kProducts | kStores>);
    add("vectors", rounds<kVectors>);
    add("vectors+products", rounds<kVectors | kProducts>);
    add("vectors+stores", rounds<kVectors | kStores>);
    add("vectors+products+stores", rounds<kVectors | kProducts | kStores>);
}

}  // namespace clary::cpu
