// SPDX-License-Identifier: Apache-2.0
// A Case made real: tensors in guarded memory and the clary_attention_params that describe them. Every byte that no
// element owns (gaps of strides, padding past key lengths, unused pages, both ends of each buffer) holds 0xff, which is
// NaN in every float type, so that reading one shows up in the result and writing one in damage().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cases/case.h"
#include "clary/clary.h"

namespace clary::cases {

// Memory of `bytes` bytes, aligned to 64 and `offset` bytes, between two runs of canaries; all of it 0xff.
class Guarded {
  public:
    explicit Guarded(size_t bytes, size_t offset = 0);
    void* data() { return begin_; }
    const void* data() const { return begin_; }
    size_t size() const { return bytes_; }
    void poison();                 // 0xff everywhere
    bool canaries_intact() const;  // the bytes before and behind are still 0xff
    // Canaries and all.
    void* whole() { return memory_.get(); }
    size_t whole_size() const { return whole_; }

  private:
    static constexpr size_t kCanary = 256;  // bytes on each side
    struct Free {
        void operator()(unsigned char* p) const;
    };
    std::unique_ptr<unsigned char[], Free> memory_;
    size_t bytes_, whole_;
    unsigned char* begin_;
};

// Results as fp32 in the C order of the tensors' logical shapes: out [B, H, Lq, Dv] or [Tq, H, Dv], lse [B, H, Lq] or
// [H, Tq].
struct Output {
    std::vector<float> out, lse;
};

class Problem {
  public:
    explicit Problem(const Case& wanted, uint64_t seed = 1);
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    // Recipe, backend, context and workspace are the caller's to set.
    clary_attention_params params{};

    const Case& spec() const { return case_; }
    Output output() const;
    // The bytes of out and lse, gaps included.
    std::vector<unsigned char> output_bytes() const;
    void poison_outputs();
    // All memory of the problem, inputs and outputs, for copying to a GPU and back.
    std::vector<Guarded*> memory();
    // "" where inputs are unchanged and nothing but the elements of out and lse was written; else what was.
    std::string damage() const;

    // One element by its logical index.
    float get(const clary_tensor& tensor, std::initializer_list<int64_t> index) const;
    void set(const clary_tensor& tensor, std::initializer_list<int64_t> index, float value);
    // Takes the inputs as they are now for what damage() compares with.
    void freeze_inputs();

  private:
    struct Input {
        Guarded memory;
        std::vector<unsigned char> copy;
        explicit Input(size_t bytes, size_t offset = 0) : memory(bytes, offset) {}
    };

    void make_tensor(DType dtype, Layout layout, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                     bool is_output, clary_tensor* tensor);
    template <typename T>
    void make_vector(DType dtype, const std::vector<T>& values, clary_tensor* tensor);
    void fill_inputs(uint64_t seed);
    void fill(int which, uint64_t seed, const clary_tensor& tensor);
    void make_mask(uint64_t seed);
    void make_lse();
    void make_sequences();

    Case case_;
    std::deque<Input> inputs_;
    std::deque<Guarded> outputs_;  // out, then lse
};

// Attention in float64 (reference/exact.h), rounded once to fp32.
Output exact(const Problem& problem);

// `desc` with out and lse turned to dense fp32 arrays in `output`, shaped as params says.
AttentionDesc redirect(const AttentionDesc& desc, const clary_attention_params& params, Output* output);
// params checked and as a desc, with the recipe given.
AttentionDesc desc_of(const clary_attention_params& params, const char* recipe);

// sum |a - b| / sum |b|, over places where b is finite; infinity where a is not finite there. 0 of nothing.
double relative_l1(const std::vector<float>& a, const std::vector<float>& b);
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);
double largest_magnitude(const std::vector<float>& a);
double cosine(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace clary::cases
