// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU tests: the tiers of this machine, calls through the C ABI, packed buffers with guards.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cases/problem.h"
#include "clary/clary.h"

namespace clary::cases {

// What GoogleTest prints of a parameter.
inline void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

// "cpu:avx512", ... those that run on this machine, best first.
const std::vector<const char*>& tiers();

// The recipes that the CPU backend is tested with: every preset and every option that changes a path.
const std::vector<const char*>& cpu_recipes();

struct ContextOf {
    explicit ContextOf(int threads) { EXPECT_EQ(clary_context_create(threads, &context), CLARY_OK); }
    ~ContextOf() { clary_context_destroy(context); }
    ContextOf(const ContextOf&) = delete;
    ContextOf& operator=(const ContextOf&) = delete;
    clary_context* context = nullptr;
};

// A context of two threads shared by tests that do not look at threads.
clary_context* two_threads();

clary_attention_params with(const Problem& problem, const char* recipe, const char* tier,
                            clary_context* context = two_threads());

// Whether the kernel takes the problem at all; a refusal must be CLARY_UNSUPPORTED with a text.
bool takes(const clary_attention_params& params);

// One shot with a guarded, poisoned workspace of exactly the reported size; outputs poisoned first.
void run_one_shot(Problem* problem, clary_attention_params params);

clary_packed buffer_of(const Guarded& memory, int64_t kv_capacity);

// Quantizes and attends in two calls; the packed buffers stay for a look inside.
struct Packed {
    clary_packed_layout q_layout{}, kv_layout{};
    std::unique_ptr<Guarded> q, kv;
    int64_t kv_capacity = 0;

    clary_packed q_buffer() const { return buffer_of(*q, kv_capacity); }
    clary_packed kv_buffer() const { return buffer_of(*kv, kv_capacity); }
};
Packed pack(const clary_attention_params& params, int64_t kv_capacity = 0);
void attend(Problem* problem, const clary_attention_params& params, const Packed& packed);

// Bytes of all sections (paddings between them left out), for bit comparison.
std::vector<unsigned char> section_bytes(const clary_packed_layout& layout, const Guarded& buffer);

}  // namespace clary::cases
