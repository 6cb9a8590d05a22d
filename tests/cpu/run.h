// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of backends: what this machine can run, calls through the C ABI, packed buffers with guards. Tests
// hold everything in host memory; a backend on a GPU works on copies, which are copied back after each call.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cases/problem.h"
#include "clary/clary.h"
#include "core/packed.h"

namespace clary::cases {

// What GoogleTest prints of a parameter.
inline void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

// The memory that the backend under test works in.
class Device {
  public:
    virtual ~Device() = default;
    virtual const char* backend() const = 0;  // of kernels, e.g. "cpu"
    virtual const Arrangement& arrangement() const = 0;
    // Every preset and every option that changes a path: quantized_recipes() and the backend's own.
    virtual const std::vector<const char*>& recipes() const = 0;
    virtual clary_device type() const = 0;
    // Bytes of the device with the contents of host memory; host memory itself where the device shares it. Aligned to 64.
    virtual void* upload(const void* host, size_t bytes) = 0;
    // Waits, copies back and frees what upload() gave.
    virtual void download(void* device, void* host, size_t bytes) = 0;
};
std::vector<const char*> quantized_recipes(std::initializer_list<const char*> more);
// Each test program defines it.
Device& device_under_test();
// Host memory: the CPU's kernels.
Device& host_device();

// Copies of host memory on the device under test for one call: pointers into it become pointers into the copy. Whatever
// the call wrote is in host memory after finish().
class OnDevice {
  public:
    explicit OnDevice(std::vector<Guarded*> memory);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    void* at(const void* host) const;
    clary_attention_params at(clary_attention_params params) const;  // its tensors and workspace
    clary_packed at(clary_packed packed) const;
    void finish();

  private:
    std::vector<std::pair<Guarded*, char*>> copies_;
};

// "cpu:avx512", ... of the backend under test, those that run on this machine, best first.
const std::vector<const char*>& tiers();
inline const std::vector<const char*>& recipes() { return device_under_test().recipes(); }

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
Packed pack(Problem* problem, const clary_attention_params& params, int64_t kv_capacity = 0);
// On the host, where the memory of a problem need not be named.
inline Packed pack(const clary_attention_params& params, int64_t kv_capacity = 0) {
    return pack(nullptr, params, kv_capacity);
}
void attend(Problem* problem, const clary_attention_params& params, const Packed& packed);

// Runs the problem in one shot and in two phases, and compares: these with each other, with exact attention (`expected`),
// and with the oracle on the same packed operands.
void check(Problem* problem, const Output& expected, const char* recipe, const char* tier, Output* result);

// Bytes of all sections (paddings between them left out), for bit comparison.
std::vector<unsigned char> section_bytes(const clary_packed_layout& layout, const Guarded& buffer);

}  // namespace clary::cases
