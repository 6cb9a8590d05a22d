// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "synthetic/model_like.h"

namespace clary::synthetic {
namespace {

constexpr int64_t kBlock = 128;  // tokens, for similarity

struct HeadFigures {
    double bias_mean = 0, bias_max = 0, top4 = 0, similarity = 0;
};

// `rows`: (count, dim) of one head.
HeadFigures head_figures(const float* rows, int64_t count, int64_t dim) {
    HeadFigures f;
    std::vector<double> energy;
    const auto n = static_cast<double>(count);
    for (int64_t c = 0; c < dim; ++c) {
        double sum = 0, squares = 0;
        for (int64_t t = 0; t < count; ++t) {
            const double x = rows[t * dim + c];
            sum += x;
            squares += x * x;
        }
        const double mean = sum / n, deviation = std::sqrt(std::max(squares / n - mean * mean, 1e-30));
        f.bias_mean += std::abs(mean) / deviation / static_cast<double>(dim);
        f.bias_max = std::max(f.bias_max, std::abs(mean) / deviation);
        energy.push_back(squares);
    }
    std::sort(energy.begin(), energy.end(), std::greater<>());
    double all = 0, top = 0;
    for (size_t c = 0; c < energy.size(); ++c) {
        all += energy[c];
        if (c < 4) top += energy[c];
    }
    f.top4 = all > 0 ? top / all : 0;

    // Mean cosine of all pairs in a block = |sum of unit vectors|^2, without the pairs of a token with itself.
    double similarity = 0;
    int64_t blocks = 0;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        const int64_t size = std::min(kBlock, count - begin);
        if (size < 2) continue;
        std::vector<double> sum(static_cast<size_t>(dim));
        double own = 0;
        for (int64_t t = begin; t < begin + size; ++t) {
            double norm = 0;
            for (int64_t c = 0; c < dim; ++c) norm += static_cast<double>(rows[t * dim + c]) * rows[t * dim + c];
            if (norm == 0) continue;
            own += 1;
            for (int64_t c = 0; c < dim; ++c) sum[static_cast<size_t>(c)] += rows[t * dim + c] / std::sqrt(norm);
        }
        double square = 0;
        for (const double s : sum) square += s * s;
        similarity += (square - own) / static_cast<double>(size * (size - 1));
        ++blocks;
    }
    f.similarity = blocks > 0 ? similarity / static_cast<double>(blocks) : 0;
    return f;
}

}  // namespace

Statistics statistics(Tensors& t) {
    Statistics s;
    const Dims& d = t.dims;
    if (d.q_len == 0 || d.kv_len == 0) return s;
    const auto kv_heads = static_cast<double>(d.batch * d.kv_heads), q_heads = static_cast<double>(d.batch * d.q_heads);
    std::vector<double> ess, ranges;
    for (int64_t b = 0; b < d.batch; ++b) {
        for (int64_t h = 0; h < d.kv_heads; ++h) {
            const HeadFigures k = head_figures(t.k_row(b, h, 0), d.kv_len, d.dim);
            s.k_bias_mean += k.bias_mean / kv_heads;
            s.k_bias_max = std::max(s.k_bias_max, k.bias_max);
            s.k_top4_energy += k.top4 / kv_heads;
            s.k_similarity += k.similarity / kv_heads;
            s.v_bias_max = std::max(s.v_bias_max, head_figures(t.v_row(b, h, 0), d.kv_len, d.dim).bias_max);
        }
        for (int64_t h = 0; h < d.q_heads; ++h) {
            const HeadFigures q = head_figures(t.q_row(b, h, 0), d.q_len, d.dim);
            s.q_top4_energy += q.top4 / q_heads;
            s.q_similarity += q.similarity / q_heads;
            for (const int64_t i : sample_rows(d.q_len, 32)) {
                const std::vector<double> scores = row_scores(t, b, h, i);
                const auto [low, high] = std::minmax_element(scores.begin(), scores.end());
                ess.push_back(effective_keys(scores, 1));
                ranges.push_back(*high - *low);
            }
        }
    }
    s.ess_median = median(ess);
    s.ess_min = *std::min_element(ess.begin(), ess.end());
    s.logit_range = median(ranges);
    return s;
}

std::string describe(const Statistics& s) {
    return fmt::format(
        "K bias/std {:.2f} (max {:.1f}), V bias/std max {:.1f}, top-4 energy K {:.0f} % Q {:.0f} %, "
        "similarity Q {:.2f} K {:.2f}, ESS {:.0f} (min {:.1f}), logit range {:.1f}",
        s.k_bias_mean, s.k_bias_max, s.v_bias_max, 100 * s.k_top4_energy, 100 * s.q_top4_energy, s.q_similarity,
        s.k_similarity, s.ess_median, s.ess_min, s.logit_range);
}

}  // namespace clary::synthetic
