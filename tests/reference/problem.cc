// SPDX-License-Identifier: Apache-2.0
#include "reference/problem.h"

#include <cmath>
#include <limits>

#include "numerics/formats.h"
#include "synthetic/random.h"

namespace clary::test {
namespace {

void describe(std::vector<float>& data, int64_t heads, int64_t tokens, int64_t dim, Operand* operand) {
    *operand = {data.data(), DType::kF32, heads * tokens * dim, tokens * dim, dim, 1};
}

}  // namespace

Problem::Problem(const Shape& wanted) : shape(wanted) {
    const Shape& s = shape;
    q.resize(static_cast<size_t>(s.batch * s.q_heads * s.q_len * s.dim));
    k.resize(static_cast<size_t>(s.batch * s.kv_heads * s.kv_len * s.dim));
    v.resize(static_cast<size_t>(s.batch * s.kv_heads * s.kv_len * s.dim_v));
    out.assign(static_cast<size_t>(s.batch * s.q_heads * s.q_len * s.dim_v), -7.0f);
    lse.assign(static_cast<size_t>(s.batch * s.q_heads * s.q_len), -7.0f);
    desc.batch = s.batch;
    desc.q_heads = s.q_heads;
    desc.kv_heads = s.kv_heads;
    desc.q_len = desc.q_tokens = s.q_len;
    desc.kv_len = desc.kv_tokens = s.kv_len;
    desc.head_dim = s.dim;
    desc.head_dim_v = s.dim_v;
    describe(q, s.q_heads, s.q_len, s.dim, &desc.q);
    describe(k, s.kv_heads, s.kv_len, s.dim, &desc.k);
    describe(v, s.kv_heads, s.kv_len, s.dim_v, &desc.v);
    describe(out, s.q_heads, s.q_len, s.dim_v, &desc.out);
    desc.lse = lse.data();
    desc.lse_batch_stride = s.q_heads * s.q_len;
    desc.lse_head_stride = s.q_len;
    desc.lse_token_stride = 1;
    desc.want_lse = true;
    desc.scale = 1 / std::sqrt(static_cast<double>(s.dim));
}

void Problem::fill(uint64_t seed) {
    synthetic::Random random(seed);
    for (std::vector<float>* array : {&q, &k, &v})
        for (float& x : *array) x = static_cast<float>(random.normal());
}

void Problem::round_to_bf16() {
    for (std::vector<float>* array : {&q, &k, &v})
        for (float& x : *array) x = numerics::Bf16::from_float(x).to_float();
}

TensorView view(void* data, DType dtype, std::initializer_list<int64_t> shape) {
    TensorView tensor{.data = data, .dtype = dtype, .ndim = static_cast<int32_t>(shape.size())};
    int64_t stride = 1;
    for (int32_t i = tensor.ndim; i-- > 0;) {
        tensor.shape[i] = shape.begin()[i];
        tensor.stride[i] = stride;
        stride *= tensor.shape[i];
    }
    return tensor;
}

NaiveResult naive_attention(const Problem& problem, const Sees& sees, const std::vector<float>& sinks) {
    const Shape& s = problem.shape;
    NaiveResult result;
    for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t h = 0; h < s.q_heads; ++h)
            for (int64_t i = 0; i < s.q_len; ++i) {
                const int64_t kv = b * s.kv_heads + h / (s.q_heads / s.kv_heads);
                const float* q = problem.q.data() + ((b * s.q_heads + h) * s.q_len + i) * s.dim;
                long double denominator =
                    sinks.empty() ? 0.0L : std::exp(static_cast<long double>(sinks[static_cast<size_t>(h)]));
                std::vector<long double> sum(static_cast<size_t>(s.dim_v));
                for (int64_t j = 0; j < s.kv_len; ++j) {
                    double bias = 0;
                    if (!sees(b, h, i, j, &bias)) continue;
                    long double score = 0;
                    for (int64_t d = 0; d < s.dim; ++d)
                        score += static_cast<long double>(q[d]) *
                                 problem.k[static_cast<size_t>((kv * s.kv_len + j) * s.dim + d)];
                    const long double p = std::exp(score * problem.desc.scale + bias);
                    denominator += p;
                    for (int64_t d = 0; d < s.dim_v; ++d)
                        sum[static_cast<size_t>(d)] +=
                            p * problem.v[static_cast<size_t>((kv * s.kv_len + j) * s.dim_v + d)];
                }
                for (const long double o : sum)
                    result.out.push_back(denominator > 0 ? static_cast<double>(o / denominator) : 0.0);
                result.lse.push_back(static_cast<double>(std::log(denominator)));
            }
    return result;
}

double relative_l1(const std::vector<float>& o, const std::vector<float>& reference) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < o.size(); ++i) {
        difference += std::abs(static_cast<double>(o[i]) - reference[i]);
        size += std::abs(static_cast<double>(reference[i]));
    }
    return difference / size;
}

double cosine_distance(const std::vector<float>& o, const std::vector<float>& reference) {
    double dot = 0, oo = 0, rr = 0;
    for (size_t i = 0; i < o.size(); ++i) {
        dot += static_cast<double>(o[i]) * reference[i];
        oo += static_cast<double>(o[i]) * o[i];
        rr += static_cast<double>(reference[i]) * reference[i];
    }
    return 1 - dot / std::sqrt(oo * rr);
}

}  // namespace clary::test
