// SPDX-License-Identifier: Apache-2.0
#include "reference/exact.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/parallel.h"
#include "reference/rows.h"

namespace clary::reference {
namespace {

// K and V of one (sequence, kv head) in float64. K is transposed, so that the loop over keys is the inner one.
struct KeysAndValues {
    std::vector<double> k;          // (dim, kv_len)
    std::vector<double> v;          // (kv_len, dim_v)
    std::vector<char> v_is_finite;  // (kv_len)
};

KeysAndValues load_kv(const AttentionDesc& desc, const Sequence& sequence, int64_t b, int64_t kv_head) {
    const int64_t length = sequence.kv_len, dim = desc.head_dim, dim_v = desc.head_dim_v;
    KeysAndValues kv{std::vector<double>(static_cast<size_t>(dim * length)),
                     std::vector<double>(static_cast<size_t>(length * dim_v)),
                     std::vector<char>(static_cast<size_t>(length), 1)};
    const TokenAddress k_token = token_address(desc, desc.k, b, kv_head, sequence, false);
    const TokenAddress v_token = token_address(desc, desc.v, b, kv_head, sequence, false);
    std::vector<float> row(static_cast<size_t>(std::max(dim, dim_v)));
    for (int64_t j = 0; j < length; ++j) {
        load_token(desc.k, k_token(j), dim, row.data());
        for (int64_t d = 0; d < dim; ++d) kv.k[static_cast<size_t>(d * length + j)] = row[static_cast<size_t>(d)];
        load_token(desc.v, v_token(j), dim_v, row.data());
        for (int64_t d = 0; d < dim_v; ++d) {
            kv.v[static_cast<size_t>(j * dim_v + d)] = row[static_cast<size_t>(d)];
            if (!std::isfinite(row[static_cast<size_t>(d)])) kv.v_is_finite[static_cast<size_t>(j)] = 0;
        }
    }
    return kv;
}

// One query row. `scores` (kv_len) is scratch; writes output (dim_v) and returns the lse.
double attend_row(const AttentionDesc& desc, const KeysAndValues& kv, int64_t length, const RowView& view, double sink,
                  const float* q, std::vector<double>& scores, std::vector<double>& output) {
    const int64_t first = view.first(), last = view.last(), dim_v = desc.head_dim_v;
    std::fill(scores.begin() + first, scores.begin() + last, 0.0);
    for (int64_t d = 0; d < desc.head_dim; ++d) {
        const double q_d = q[d];
        const double* k_d = kv.k.data() + d * length;
        for (int64_t j = first; j < last; ++j) scores[static_cast<size_t>(j)] += q_d * k_d[j];
    }

    double largest = sink;
    bool finite = !std::isnan(sink) && sink < kInfinity, v_is_finite = true;
    for (int64_t j = first; j < last; ++j) {
        double bias = 0;
        double& score = scores[static_cast<size_t>(j)];
        if (!view.sees(j, &bias)) {
            score = -kInfinity;
            continue;
        }
        score = score * desc.scale + bias;
        if (!std::isfinite(score)) finite = false;
        if (kv.v_is_finite[static_cast<size_t>(j)] == 0) v_is_finite = false;
        largest = std::max(largest, score);
    }
    if (!finite) {
        std::fill(output.begin(), output.end(), kNan);
        return kNan;
    }
    std::fill(output.begin(), output.end(), 0.0);
    if (largest == -kInfinity) return -kInfinity;

    double sum = std::exp(sink - largest);
    for (int64_t j = first; j < last; ++j) {
        if (scores[static_cast<size_t>(j)] == -kInfinity) continue;
        const double p = std::exp(scores[static_cast<size_t>(j)] - largest);
        sum += p;
        const double* v_j = kv.v.data() + j * dim_v;
        for (int64_t d = 0; d < dim_v; ++d) output[static_cast<size_t>(d)] += p * v_j[d];
    }
    for (double& o : output) o = v_is_finite ? o / sum : kNan;
    return largest + std::log(sum);
}

void attend_group(const AttentionDesc& desc, int64_t b, int64_t kv_head) {
    const Sequence sequence = sequence_of(desc, b);
    const KeysAndValues kv = load_kv(desc, sequence, b, kv_head);
    std::vector<float> q(static_cast<size_t>(desc.head_dim));
    std::vector<double> scores(static_cast<size_t>(sequence.kv_len)), output(static_cast<size_t>(desc.head_dim_v));
    for (int64_t g = 0; g < desc.q_heads_per_kv(); ++g) {
        const int64_t head = kv_head * desc.q_heads_per_kv() + g;
        const TokenAddress q_token = token_address(desc, desc.q, b, head, sequence, true);
        for (int64_t i = 0; i < sequence.q_len; ++i) {
            load_token(desc.q, q_token(i), desc.head_dim, q.data());
            const RowView view(desc, sequence, b, head, i);
            const double lse =
                attend_row(desc, kv, sequence.kv_len, view, sink_logit(desc, head), q.data(), scores, output);
            store_row(desc, sequence, b, head, i, output.data(), lse);
        }
    }
}

}  // namespace

Status attend_exact(const AttentionDesc& desc, int threads) {
    parallel_for(desc.batch * desc.kv_heads, threads,
                 [&](int64_t item) { attend_group(desc, item / desc.kv_heads, item % desc.kv_heads); });
    return Status::ok();
}

}  // namespace clary::reference
