// SPDX-License-Identifier: Apache-2.0
// A dense problem on the GPU, made from value_at(), and single rows of its exact answer.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/gpu.h"
#include "numerics/formats.h"

namespace clary::cases {

// q, k, v bf16 and out fp32, all [batch, heads, tokens, dim] C-contiguous. Q and out may have fewer tokens, and `group` times
// the heads.
struct GpuProblem {
    int64_t batch, heads, tokens, dim, queries, group;
    GpuMemory q, k, v, out;
    std::unique_ptr<GpuMemory> workspace;
    clary_attention_params params{};

    GpuProblem(int64_t batch_, int64_t heads_, int64_t tokens_, int64_t dim_, const char* recipe, uint64_t seed = 1,
               int64_t queries_ = 0, int64_t group_ = 1)
        : batch(batch_),
          heads(heads_),
          tokens(tokens_),
          dim(dim_),
          queries(queries_ > 0 ? queries_ : tokens_),
          group(group_),
          q(results() * 2),
          k(elements() * 2),
          v(elements() * 2),
          out(results() * 4) {
        for (const auto& [memory, which] : {std::pair{&q, 0u}, {&k, 1u}, {&v, 2u}}) {
            std::vector<numerics::Bf16> values(memory->size() / 2);
            for (size_t i = 0; i < values.size(); ++i)
                values[i] = numerics::Bf16::from_float(value_at(i, seed * 3 + which));
            memory->write(values);
        }
        params.struct_size = sizeof(params);
        const std::vector<int64_t> shape = {batch, heads, tokens, dim},
                                   stride = {heads * tokens * dim, tokens * dim, dim, 1};
        const int64_t q_heads = heads * group;
        const std::vector<int64_t> q_shape = {batch, q_heads, queries, dim},
                                   q_stride = {q_heads * queries * dim, queries * dim, dim, 1};
        params.q = gpu_view(q.data(), CLARY_BF16, q_shape, q_stride);
        params.k = gpu_view(k.data(), CLARY_BF16, shape, stride);
        params.v = gpu_view(v.data(), CLARY_BF16, shape, stride);
        params.out = gpu_view(out.data(), CLARY_FP32, q_shape, q_stride);
        params.recipe = recipe;
        params.backend = "cuda";
        size_t bytes = 0;
        EXPECT_EQ(clary_workspace_size(&params, 1, &bytes), CLARY_OK) << clary_last_error();
        workspace = std::make_unique<GpuMemory>(bytes);
        params.workspace = workspace->data();
        params.workspace_size = bytes;
    }
    size_t elements() const { return static_cast<size_t>(batch * heads * tokens * dim); }          // of K
    size_t results() const { return static_cast<size_t>(batch * heads * group * queries * dim); }  // of Q and out
    std::vector<float> result() const { return out.read<float>(results()); }
    // What is there before the next call must not matter.
    void poison() const {
        CLARY_CUDA_OK(cudaMemset(out.data(), 0xff, out.size()));
        CLARY_CUDA_OK(cudaMemset(workspace->data(), 0xff, workspace->size()));
        CLARY_CUDA_OK(cudaDeviceSynchronize());
    }
};

// Calls of two threads, each on a stream of its own, give what single calls give.
inline void expect_independent(GpuProblem& a, GpuProblem& b, int calls) {
    ASSERT_EQ(clary_attention(&a.params), CLARY_OK) << clary_last_error();
    ASSERT_EQ(clary_attention(&b.params), CLARY_OK) << clary_last_error();
    const std::vector<float> expected_a = a.result(), expected_b = b.result();
    const Stream streams[2];
    a.params.stream = streams[0].get();
    b.params.stream = streams[1].get();
    a.poison();
    b.poison();
    const auto work = [calls](const clary_attention_params& params) {
        for (int i = 0; i < calls; ++i) ASSERT_EQ(clary_attention(&params), CLARY_OK) << clary_last_error();
    };
    std::thread other(work, std::cref(a.params));
    work(b.params);
    other.join();
    CLARY_CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(a.result(), expected_a);
    EXPECT_EQ(b.result(), expected_b);
}

// Attention of one query to keys (tokens, dim) and values (tokens, dim), in float64.
inline std::vector<double> exact_row(const float* query, const float* keys, const float* values, int64_t tokens,
                                     int64_t dim) {
    std::vector<double> scores(static_cast<size_t>(tokens)), out(static_cast<size_t>(dim));
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < tokens; ++j) {
        double s = 0;
        for (int64_t d = 0; d < dim; ++d) s += static_cast<double>(query[d]) * static_cast<double>(keys[j * dim + d]);
        scores[static_cast<size_t>(j)] = s / std::sqrt(static_cast<double>(dim));
        max = std::max(max, scores[static_cast<size_t>(j)]);
    }
    for (int64_t j = 0; j < tokens; ++j) {
        const double p = std::exp(scores[static_cast<size_t>(j)] - max);
        sum += p;
        for (int64_t d = 0; d < dim; ++d) out[static_cast<size_t>(d)] += p * static_cast<double>(values[j * dim + d]);
    }
    for (double& x : out) x /= sum;
    return out;
}

}  // namespace clary::cases
