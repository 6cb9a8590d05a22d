// SPDX-License-Identifier: Apache-2.0
// What a call takes from the heap: as much as explain says, and linear in the length. Every allocation of this program
// and of the library in it passes through the counters below (linked with --wrap).
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>

#include "cases/problem.h"
#include "clary/clary.h"
#include "cpu/run.h"

namespace {

std::atomic<int64_t> live{0}, peak{0};

void* counted(void* memory) {
    if (memory == nullptr) return nullptr;
    const int64_t now = live += static_cast<int64_t>(malloc_usable_size(memory));
    for (int64_t top = peak; now > top && !peak.compare_exchange_weak(top, now);) {
    }
    return memory;
}

void uncount(void* memory) {
    if (memory != nullptr) live -= static_cast<int64_t>(malloc_usable_size(memory));
}

}  // namespace

extern "C" {
void* __real_malloc(size_t bytes);
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void* memory);
void* __wrap_malloc(size_t bytes) { return counted(__real_malloc(bytes)); }
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) { return counted(__real_aligned_alloc(alignment, bytes)); }
void __wrap_free(void* memory) {
    uncount(memory);
    __real_free(memory);
}
}

[[gnu::noinline]] void* operator new(size_t bytes) {
    if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace clary::cases {
namespace {

int64_t peak_of_a_call(const clary_attention_params& params) {
    EXPECT_EQ(clary_attention(&params), CLARY_OK) << clary_last_error();  // threads have started, tables are made
    const int64_t before = live;
    peak = before;
    EXPECT_EQ(clary_attention(&params), CLARY_OK) << clary_last_error();
    return peak - before;
}

int64_t explained(const clary_attention_params& params) {
    const char* json = nullptr;
    EXPECT_EQ(clary_explain(&params, &json), CLARY_OK) << clary_last_error();
    return nlohmann::json::parse(json).at("workspace_bytes").get<int64_t>();
}

TEST(Memory, PeakIsWhatExplainSays) {
    Case c{.name = "memory", .batch = 2, .q_heads = 6, .kv_heads = 3, .q_len = 700, .kv_len = 900, .dim = 80};
    Problem problem(c);
    for (const char* recipe : recipes())
        for (const int threads : {1, 4}) {
            SCOPED_TRACE(std::string(recipe) + ", " + std::to_string(threads) + " threads");
            const ContextOf context(threads);
            const clary_attention_params params = with(problem, recipe, "cpu", context.context);
            const int64_t said = explained(params), taken = peak_of_a_call(params);
            EXPECT_LE(taken, said + said / 10);
            EXPECT_GE(taken, said - said / 10);
            size_t reported = 0;
            ASSERT_EQ(clary_workspace_size(&params, 1, &reported), CLARY_OK);
            EXPECT_EQ(static_cast<int64_t>(reported), said);
        }
}

// The lengths of packed sequences are read where they are given: sized for one sequence of all tokens, the statistics
// alone would grow with sequences times tokens.
TEST(Memory, PackedSequencesAreSizedByTheLongest) {
    Case c{.name = "memory", .q_heads = 2, .kv_heads = 2, .dim = 64};
    c.batch = 60;
    c.seqlens_q = c.seqlens_k = std::vector<int64_t>(60, 130);
    Problem problem(c);
    for (const char* recipe : {"int8_int8", "int8_int8:fast", "int8_fp16"}) {
        const clary_attention_params params = with(problem, recipe, "cpu");
        const int64_t said = explained(params), taken = peak_of_a_call(params);
        EXPECT_LE(taken, said + said / 10) << recipe;
        EXPECT_GE(taken, said - said / 10) << recipe;
    }
}

TEST(Memory, GivenWorkspaceLeavesTheHeapAlone) {
    Case c{.name = "memory", .q_heads = 4, .kv_heads = 2, .q_len = 300, .kv_len = 500, .dim = 64};
    Problem problem(c);
    clary_attention_params params = with(problem, "int8_int8", "cpu");
    size_t bytes = 0;
    ASSERT_EQ(clary_workspace_size(&params, 1, &bytes), CLARY_OK);
    Guarded workspace(bytes);
    params.workspace = workspace.data();
    params.workspace_size = bytes;
    EXPECT_LE(peak_of_a_call(params), 16384);  // names and lists of the dispatch
}

// Pages of 2 MiB are asked for where packed K and V are first written; whether the system has some is its own matter.
TEST(Memory, HugePagesArePackedInto) {
    if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GTEST_SKIP() << "no huge pages";
    Case c{.name = "memory", .q_heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = 64, .dim = 64};
    Problem problem(c);
    const clary_attention_params params = with(problem, "int8_int8", "cpu");
    constexpr int64_t kCapacity = 65536;
    clary_packed_layout q_layout{}, kv_layout{};
    q_layout.struct_size = kv_layout.struct_size = sizeof(clary_packed_layout);
    ASSERT_EQ(clary_packed_layouts(&params, kCapacity, &q_layout, &kv_layout), CLARY_OK) << clary_last_error();
    void* const memory =
        mmap(nullptr, kv_layout.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    clary_packed kv{};
    kv.struct_size = sizeof(kv);
    kv.data = memory;
    kv.bytes = kv_layout.bytes;
    kv.kv_capacity = kCapacity;
    EXPECT_EQ(clary_quantize(&params, nullptr, &kv, nullptr), CLARY_OK) << clary_last_error();
    const uintptr_t inside = reinterpret_cast<uintptr_t>(memory) + kv_layout.bytes / 2;
    bool asked = false;
    std::ifstream maps("/proc/self/smaps");
    bool here = false;  // the mapping that holds the buffer
    for (std::string line; std::getline(maps, line);) {
        uintptr_t begin = 0, end = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= inside && inside < end;
        if (here && line.starts_with("VmFlags:")) asked = line.find(" hg") != line.npos;
    }
    EXPECT_TRUE(asked);
    munmap(memory, kv_layout.bytes);
}

TEST(Memory, LinearInLength) {
    for (const char* recipe : {"int8_int8", "int8_int8:fast", "int8_fp16", "fp32_fp32"}) {
        std::vector<int64_t> sizes;
        for (const int64_t length : {4096, 8192, 16384}) {
            clary_attention_params params{};
            params.struct_size = sizeof(params);
            for (clary_tensor* t : {&params.q, &params.k, &params.v}) {
                t->dtype = CLARY_BF16;
                t->ndim = 4;
                const int64_t shape[] = {1, 4, length, 64};
                std::copy_n(shape, 4, t->shape);
            }
            params.recipe = recipe;
            params.backend = "cpu";
            params.context = two_threads();
            sizes.push_back(explained(params));
        }
        EXPECT_LE(sizes[2] - sizes[1], (sizes[1] - sizes[0]) * 21 / 10) << recipe;
        EXPECT_GE(sizes[2] - sizes[1], (sizes[1] - sizes[0]) * 19 / 10) << recipe;
    }
}

}  // namespace
}  // namespace clary::cases
