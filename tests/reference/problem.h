// SPDX-License-Identifier: Apache-2.0
// Problem: an AttentionDesc together with the arrays it points to, and a softmax written a second time, as plainly as
// possible, to test the reference against.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/desc.h"

namespace clary::test {

struct Shape {
    int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, dim = 16, dim_v = 16;
};

// Owns fp32 tensors [batch, heads, tokens, dim] and describes them. `desc()` is rebuilt from the members at each call.
class Problem {
  public:
    explicit Problem(const Shape& shape);

    // Fills q, k and v with N(0, 1).
    void fill(uint64_t seed);
    // Rounds q, k and v to bf16 values (they stay fp32 arrays).
    void round_to_bf16();

    float* q_row(int64_t b, int64_t h, int64_t i) {
        return q.data() + ((b * shape.q_heads + h) * shape.q_len + i) * shape.dim;
    }
    float* k_row(int64_t b, int64_t h, int64_t j) {
        return k.data() + ((b * shape.kv_heads + h) * shape.kv_len + j) * shape.dim;
    }
    float* v_row(int64_t b, int64_t h, int64_t j) {
        return v.data() + ((b * shape.kv_heads + h) * shape.kv_len + j) * shape.dim_v;
    }
    float* out_row(int64_t b, int64_t h, int64_t i) {
        return out.data() + ((b * shape.q_heads + h) * shape.q_len + i) * shape.dim_v;
    }
    float& lse_at(int64_t b, int64_t h, int64_t i) {
        return lse[static_cast<size_t>((b * shape.q_heads + h) * shape.q_len + i)];
    }

    Shape shape;
    std::vector<float> q, k, v, out, lse;
    AttentionDesc desc;  // points into the arrays above; scale is 1 / sqrt(dim)
};

// A dense view of `data` whose strides are those of a C-contiguous array of this shape.
TensorView view(void* data, DType dtype, std::initializer_list<int64_t> shape);

// What one (query, key) pair sees beyond q.k: whether it is visible, and the bias in natural units.
using Sees = std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j, double* bias)>;

// Attention from its definition, one pair at a time in long double, without any of the library's code. `sink` per query
// head or empty. Out and lse as Problem lays them out.
struct NaiveResult {
    std::vector<double> out, lse;
};
NaiveResult naive_attention(const Problem& problem, const Sees& sees, const std::vector<float>& sinks = {});

// Relative L1 = sum |o - ref| / sum |ref|, and 1 - cosine, over all values.
double relative_l1(const std::vector<float>& o, const std::vector<float>& reference);
double cosine_distance(const std::vector<float>& o, const std::vector<float>& reference);

}  // namespace clary::test
