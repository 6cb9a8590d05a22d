// SPDX-License-Identifier: Apache-2.0
// Tokens = bias + channel scale * (AR(1) noise + topic), with a few loud channels; then Q is scaled to the wanted
// sharpness, and a sink and the rotary embedding are added.
#include "synthetic/model_like.h"

#include <algorithm>
#include <cmath>

#include "synthetic/random.h"

namespace clary::synthetic {
namespace {

constexpr int64_t kBlock = 128;  // tokens over which Q's bias stays put
constexpr int64_t kTopics = 16;
constexpr int64_t kTopicRun = 48;  // tokens in a row that share a topic
constexpr int64_t kSinkKeys = 4;
constexpr double kSinkDamping = 0.1;
constexpr double kBiasSigma = 0.8;

// Random streams of one (batch item, kv head): one per kind of number, so that lengths do not shift the others.
enum Stream : uint64_t { kChannels, kKeys, kValues, kTopicCentres, kTopicOrder, kQueries };

class Head {
  public:
    Head(const Preset& preset, uint64_t seed, Tensors* tensors, int64_t b, int64_t kv_head)
        : p_(preset),
          t_(*tensors),
          dim_(tensors->dims.dim),
          seed_(seed),
          b_(b),
          kv_head_(kv_head),
          group_(tensors->dims.q_heads / tensors->dims.kv_heads) {}

    void fill() {
        make_channels();
        make_topics();
        fill_keys();
        fill_values();
        for (int64_t g = 0; g < group_; ++g) fill_queries(g);
        if (p_.rope) rotate_positions();
        for (int64_t g = 0; g < group_; ++g) sharpen(kv_head_ * group_ + g);
        if (p_.sink > 0) add_sink();
    }

  private:
    Random random(Stream kind, int64_t index = 0) const {
        const auto head = static_cast<uint64_t>(b_ * t_.dims.kv_heads + kv_head_);
        return Random(seed_, (head * 1024 + static_cast<uint64_t>(index)) * 8 + kind);
    }

    static double lognormal(Random& r, double mean) {
        return mean * std::exp(kBiasSigma * r.normal() - kBiasSigma * kBiasSigma / 2);
    }

    void make_channels() {
        Random r = random(kChannels);
        loud_.assign(static_cast<size_t>(dim_), 0);
        const int64_t half = dim_ / 2;
        for (int64_t i = 0; i < p_.loud / 2 && half > 0; ++i) {
            // With a rotary embedding only slow pairs keep a bias; elsewhere any pair may be loud.
            const int64_t pair = p_.rope ? std::max<int64_t>(half - 1 - i, 0)
                                         : static_cast<int64_t>(r.uniform() * static_cast<double>(half));
            loud_[static_cast<size_t>(pair)] = loud_[static_cast<size_t>(pair + half)] = 1;
        }
        for (int64_t c = 0; c < dim_; ++c) {
            const bool is_loud = loud_[static_cast<size_t>(c)] != 0;
            k_scale_.push_back(std::exp(p_.spread * r.normal()) * (is_loud ? p_.k_gain : 1));
            q_scale_.push_back(std::exp(p_.spread * r.normal()) * (is_loud ? p_.q_gain : 1));
            v_scale_.push_back(std::exp(p_.spread * r.normal()));
            const double k_bias = lognormal(r, p_.k_bias), q_bias = lognormal(r, p_.q_bias);
            k_bias_.push_back(r.sign() * k_scale_.back() * (is_loud ? p_.loud_bias : k_bias));
            q_bias_.push_back(r.sign() * q_scale_.back() * (is_loud ? p_.loud_bias : q_bias));
            const double v_bias = r.uniform() < p_.v_bias_share ? p_.v_bias : 0;
            v_bias_.push_back(r.sign() * v_scale_.back() * v_bias);
        }
    }

    void make_topics() {
        Random r = random(kTopicCentres);
        for (int64_t i = 0; i < kTopics * dim_; ++i) topics_.push_back(r.normal());
        Random order = random(kTopicOrder);
        const int64_t longest = std::max(t_.dims.q_len, t_.dims.kv_len);
        for (int64_t i = 0; i <= longest / kTopicRun; ++i)
            topic_of_run_.push_back(static_cast<int64_t>(order.uniform() * kTopics));
    }

    double topic(int64_t token, int64_t c) const {
        return topics_[static_cast<size_t>(topic_of_run_[static_cast<size_t>(token / kTopicRun)] * dim_ + c)];
    }

    // One step of unit-variance AR(1) noise in every channel.
    static void step(Random& r, double rho, bool first, std::vector<double>* z) {
        const double fresh = first ? 1 : std::sqrt(1 - rho * rho);
        for (double& x : *z) x = (first ? 0 : rho * x) + fresh * r.normal();
    }

    void fill_keys() {
        Random r = random(kKeys);
        std::vector<double> z(static_cast<size_t>(dim_));
        for (int64_t j = 0; j < t_.dims.kv_len; ++j) {
            step(r, p_.rho, j == 0, &z);
            float* row = t_.k_row(b_, kv_head_, j);
            for (size_t c = 0; c < z.size(); ++c)
                row[c] = static_cast<float>(k_bias_[c] +
                                            k_scale_[c] * (z[c] + p_.topic * topic(j, static_cast<int64_t>(c))));
        }
    }

    void fill_values() {
        Random r = random(kValues);
        std::vector<double> z(static_cast<size_t>(dim_));
        for (int64_t j = 0; j < t_.dims.kv_len; ++j) {
            step(r, p_.v_rho, j == 0, &z);
            float* row = t_.v_row(b_, kv_head_, j);
            for (size_t c = 0; c < z.size(); ++c) row[c] = static_cast<float>(v_bias_[c] + v_scale_[c] * z[c]);
        }
    }

    void fill_queries(int64_t g) {
        Random r = random(kQueries, g);
        std::vector<double> z(static_cast<size_t>(dim_)), drift(static_cast<size_t>(dim_));
        for (int64_t i = 0; i < t_.dims.q_len; ++i) {
            if (i % kBlock == 0)
                for (double& d : drift) d = r.normal();
            step(r, p_.rho, i == 0, &z);
            float* row = t_.q_row(b_, kv_head_ * group_ + g, i);
            for (size_t c = 0; c < z.size(); ++c)
                row[c] = static_cast<float>(q_bias_[c] * (1 + p_.q_drift * drift[c]) +
                                            q_scale_[c] * (z[c] + p_.topic * topic(i, static_cast<int64_t>(c))));
        }
    }

    void rotate_positions() {
        const int64_t half = dim_ / 2;
        const auto rotate = [&](float* row, int64_t position) {
            for (int64_t c = 0; c < half; ++c) {
                const double frequency = std::pow(10000.0, -2.0 * static_cast<double>(c) / static_cast<double>(dim_));
                const double angle = static_cast<double>(position) * frequency;
                const double x = row[c], y = row[c + half];
                row[c] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
                row[c + half] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
            }
        };
        for (int64_t j = 0; j < t_.dims.kv_len; ++j) rotate(t_.k_row(b_, kv_head_, j), j);
        for (int64_t h = kv_head_ * group_; h < (kv_head_ + 1) * group_; ++h)
            for (int64_t i = 0; i < t_.dims.q_len; ++i) rotate(t_.q_row(b_, h, i), i);
    }

    // Scales Q so that the median row sees as many keys as the preset wants.
    void sharpen(int64_t head) {
        if (p_.ess <= 0 || t_.dims.kv_len == 0 || t_.dims.q_len == 0) return;
        const auto keys = static_cast<double>(t_.dims.kv_len);
        const double wanted = std::min(p_.ess < 1 ? p_.ess * keys : p_.ess, 0.9 * keys);
        std::vector<std::vector<double>> scores;
        for (const int64_t i : sample_rows(t_.dims.q_len, 24)) scores.push_back(row_scores(t_, b_, head, i));
        double low = -12, high = 12;  // of log2 of the factor; sharper is higher
        for (int round = 0; round < 30; ++round) {
            const double middle = (low + high) / 2;
            std::vector<double> ess;
            ess.reserve(scores.size());
            for (const std::vector<double>& row : scores) ess.push_back(effective_keys(row, std::exp2(middle)));
            (median(ess) > wanted ? low : high) = middle;
        }
        const auto factor = static_cast<float>(std::exp2(low));
        float* q = t_.q_row(b_, head, 0);
        for (int64_t i = 0; i < t_.dims.q_len * dim_; ++i) q[i] *= factor;
    }

    // The first keys gain a multiple of the mean query, so that a query equal to it sees their logit raised by `sink`.
    void add_sink() {
        std::vector<double> mean(static_cast<size_t>(dim_));
        for (int64_t h = kv_head_ * group_; h < (kv_head_ + 1) * group_; ++h)
            for (int64_t i = 0; i < t_.dims.q_len; ++i)
                for (size_t c = 0; c < mean.size(); ++c) mean[c] += t_.q_row(b_, h, i)[c];
        double norm = 0;
        for (double& m : mean) {
            m /= static_cast<double>(group_ * t_.dims.q_len);
            norm += m * m;
        }
        for (int64_t j = 0; j < std::min(kSinkKeys, t_.dims.kv_len) && norm > 0; ++j)
            for (size_t c = 0; c < mean.size(); ++c) {
                t_.k_row(b_, kv_head_, j)[c] +=
                    static_cast<float>(mean[c] / norm * std::sqrt(static_cast<double>(dim_)) * p_.sink);
                t_.v_row(b_, kv_head_, j)[c] *= static_cast<float>(kSinkDamping);
            }
    }

    const Preset& p_;
    Tensors& t_;
    const int64_t dim_;
    const uint64_t seed_;
    const int64_t b_, kv_head_, group_;
    std::vector<char> loud_;
    std::vector<double> k_scale_, q_scale_, v_scale_, k_bias_, q_bias_, v_bias_;  // (dim)
    std::vector<double> topics_;                                                  // (topics, dim)
    std::vector<int64_t> topic_of_run_;
};

}  // namespace

void fill_model_like(const Preset& preset, uint64_t seed, Tensors* tensors) {
    for (int64_t b = 0; b < tensors->dims.batch; ++b)
        for (int64_t h = 0; h < tensors->dims.kv_heads; ++h) Head(preset, seed, tensors, b, h).fill();
}

double effective_keys(const std::vector<double>& scores, double factor) {
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0, squares = 0;
    for (const double s : scores) {
        const double p = std::exp((s - largest) * factor);
        sum += p;
        squares += p * p;
    }
    return sum * sum / squares;
}

std::vector<int64_t> sample_rows(int64_t length, int64_t count) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < std::min(length, count); ++i)
        rows.push_back((2 * i + 1) * length / (2 * std::min(length, count)));
    return rows;
}

std::vector<double> row_scores(Tensors& t, int64_t b, int64_t head, int64_t row) {
    const float* q = t.q_row(b, head, row);
    std::vector<double> scores;
    for (int64_t j = 0; j < t.dims.kv_len; ++j) {
        const float* k = t.k_row(b, head / (t.dims.q_heads / t.dims.kv_heads), j);
        double sum = 0;
        for (int64_t d = 0; d < t.dims.dim; ++d) sum += static_cast<double>(q[d]) * k[d];
        scores.push_back(sum / std::sqrt(static_cast<double>(t.dims.dim)));
    }
    return scores;
}

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace clary::synthetic
