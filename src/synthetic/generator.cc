// SPDX-License-Identifier: Apache-2.0
// Plain distributions and the hostile cases; the model-like presets are in model_like.cc.
#include "synthetic/generator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "synthetic/model_like.h"
#include "synthetic/random.h"

namespace clary::synthetic {
namespace {

void fill_normal(uint64_t seed, double sigma, Tensors* t) {
    uint64_t stream = 0;
    for (std::vector<float>* array : {&t->q, &t->k, &t->v}) {
        Random random(seed, stream++);
        const double scale = array == &t->v ? 1 : sigma;
        for (float& x : *array) x = static_cast<float>(scale * random.normal());
    }
}

// One value in a thousand gains N(0, 100): FlashAttention-3's test for outliers.
void add_spikes(uint64_t seed, Tensors* t) {
    uint64_t stream = 3;
    for (std::vector<float>* array : {&t->q, &t->k, &t->v}) {
        Random random(seed, stream++);
        for (float& x : *array)
            if (random.uniform() < 1e-3) x += static_cast<float>(10 * random.normal());
    }
}

// Visits every (batch, head) row of Q, or of K and V.
template <typename Function>
void each_query(Tensors* t, const Function& function) {
    for (int64_t b = 0; b < t->dims.batch; ++b)
        for (int64_t h = 0; h < t->dims.q_heads; ++h)
            for (int64_t i = 0; i < t->dims.q_len; ++i) function(b, h, i, t->q_row(b, h, i));
}
template <typename Function>
void each_key(Tensors* t, const Function& function) {
    for (int64_t b = 0; b < t->dims.batch; ++b)
        for (int64_t h = 0; h < t->dims.kv_heads; ++h)
            for (int64_t j = 0; j < t->dims.kv_len; ++j) function(b, h, j, t->k_row(b, h, j), t->v_row(b, h, j));
}
void scale_row(float* row, int64_t dim, double factor) {
    for (int64_t d = 0; d < dim; ++d) row[d] *= static_cast<float>(factor);
}

using Change = void (*)(uint64_t seed, Tensors* tensors);

void zero_every_second_v(uint64_t, Tensors* t) {
    each_key(t, [&](auto, auto, int64_t j, float*, float* v) { scale_row(v, t->dims.dim, j % 2 == 0 ? 0 : 1); });
}
void damp_every_eighth_v(uint64_t, Tensors* t) {
    each_key(t, [&](auto, auto, int64_t j, float*, float* v) { scale_row(v, t->dims.dim, j % 8 == 0 ? 1e-3 : 1); });
}
void spread_v(uint64_t seed, Tensors* t) {
    Random random(seed, 6);
    each_key(t,
             [&](auto, auto, auto, float*, float* v) { scale_row(v, t->dims.dim, std::exp(1.5 * random.normal())); });
}
void loud_v(uint64_t, Tensors* t) {
    each_key(t, [&](auto, auto, int64_t j, float*, float* v) { scale_row(v, t->dims.dim, j == 77 ? 300 : 1); });
}
void loud_query(Tensors* t, double factor) {
    each_query(t, [&](auto, auto, int64_t i, float* q) { scale_row(q, t->dims.dim, i == 99 ? factor : 1); });
}
void loud_query_30(uint64_t, Tensors* t) { loud_query(t, 30); }
void loud_query_100(uint64_t, Tensors* t) { loud_query(t, 100); }
void zero_q(uint64_t, Tensors* t) { std::fill(t->q.begin(), t->q.end(), 0.0f); }
void constant_q(uint64_t, Tensors* t) {
    each_query(t, [&](int64_t b, int64_t h, auto, float* q) { std::copy_n(t->q_row(b, h, 0), t->dims.dim, q); });
}
void equal_k(uint64_t, Tensors* t) {
    each_key(t, [&](int64_t b, int64_t h, auto, float* k, float*) { std::copy_n(t->k_row(b, h, 0), t->dims.dim, k); });
}
void half_zero_k(uint64_t, Tensors* t) {
    each_key(t, [&](auto, auto, int64_t j, float* k, float*) {
        scale_row(k, t->dims.dim, j >= t->dims.kv_len / 2 ? 0 : 1);
    });
}
// A bias per head on Q; the first four keys answer to it with logit + 10, their V is small.
void sink(uint64_t seed, Tensors* t) {
    Random random(seed, 6);
    const Dims& dims = t->dims;
    const int64_t group = dims.q_heads / dims.kv_heads;
    for (int64_t b = 0; b < dims.batch; ++b) {
        for (int64_t kv = 0; kv < dims.kv_heads; ++kv) {
            std::vector<double> bias(static_cast<size_t>(dims.dim)), mean(bias.size());
            for (double& x : bias) x = 1.5 * random.normal();
            double norm = 0;
            for (size_t d = 0; d < bias.size(); ++d) {
                for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
                    for (int64_t i = 0; i < dims.q_len; ++i) {
                        t->q_row(b, h, i)[d] += static_cast<float>(bias[d]);
                        mean[d] += t->q_row(b, h, i)[d] / static_cast<double>(group * dims.q_len);
                    }
                norm += mean[d] * mean[d];
            }
            const double lift = norm > 0 ? std::sqrt(static_cast<double>(dims.dim)) * 10 / norm : 0;
            for (int64_t j = 0; j < std::min<int64_t>(4, dims.kv_len); ++j) {
                for (size_t d = 0; d < mean.size(); ++d) t->k_row(b, kv, j)[d] += static_cast<float>(mean[d] * lift);
                scale_row(t->v_row(b, kv, j), dims.dim, 0.05);
            }
        }
    }
}
// A large vector common to all keys, a small one to all queries.
void channel_bias(uint64_t seed, Tensors* t) {
    Random random(seed, 6);
    std::vector<float> bias;
    each_key(t, [&](auto, auto, int64_t j, float* k, float*) {
        if (j == 0) {
            bias.clear();
            for (int64_t d = 0; d < t->dims.dim; ++d)
                bias.push_back(static_cast<float>(random.sign() * 3 * std::exp(0.8 * random.normal())));
        }
        for (size_t d = 0; d < bias.size(); ++d) k[d] += bias[d];
    });
    each_query(t, [&](auto, auto, int64_t i, float* q) {
        if (i == 0)
            for (float& x : bias) x = static_cast<float>(random.normal());
        for (size_t d = 0; d < bias.size(); ++d) q[d] = 0.6f * q[d] + bias[d];
    });
}

struct Hostile {
    const char* name;
    const char* text;
    Change change;  // made to normal tensors
};
constexpr Hostile kHostile[] = {
    {"v_half_zero", "every 2nd V row zero", zero_every_second_v},
    {"v_eighth_tiny", "every 8th V row times 1e-3", damp_every_eighth_v},
    {"v_lognormal", "V row norms lognormal with sigma 1.5", spread_v},
    {"v_one_loud", "V row 77 times 300", loud_v},
    {"q_one_loud30", "Q row 99 times 30", loud_query_30},
    {"q_one_loud100", "Q row 99 times 100", loud_query_100},
    {"q_zero", "Q zero", zero_q},
    {"q_constant", "all Q rows equal", constant_q},
    {"k_equal", "all K rows equal", equal_k},
    {"k_half_zero", "the second half of K zero", half_zero_k},
    {"sink", "the first 4 keys 10 above all others, with small V", sink},
    {"k_bias", "a vector common to all keys, larger than their differences", channel_bias},
};

}  // namespace

std::vector<PresetInfo> presets() {
    std::vector<PresetInfo> list = {{"gauss", "N(0, 1)"},
                                    {"sigma:<s>", "Q and K N(0, s^2): norms that grow in training"},
                                    {"spikes", "N(0, 1), one value in 1000 plus N(0, 100)"}};
    for (const Preset& preset : kPresets) list.push_back({preset.name, preset.imitates});
    for (const Hostile& hostile : kHostile) list.push_back({hostile.name, hostile.text});
    return list;
}

Status generate(std::string_view preset, const Dims& dims, uint64_t seed, Tensors* tensors) {
    Tensors t;
    t.dims = dims;
    t.q.resize(static_cast<size_t>(dims.batch * dims.q_heads * dims.q_len * dims.dim));
    t.k.resize(static_cast<size_t>(dims.batch * dims.kv_heads * dims.kv_len * dims.dim));
    t.v.resize(t.k.size());
    const auto done = [&] {
        *tensors = std::move(t);
        return Status::ok();
    };
    if (preset.starts_with("sigma:")) {
        const std::string number(preset.substr(6));
        char* end = nullptr;
        const double sigma = std::strtod(number.c_str(), &end);
        if (number.empty() || *end != '\0' || !(sigma > 0) || !std::isfinite(sigma))
            return invalid_argument(fmt::format("preset: sigma '{}' is not allowed; allowed: a number > 0", number));
        fill_normal(seed, sigma, &t);
        return done();
    }
    for (const Preset& known : kPresets) {
        if (preset != known.name) continue;
        fill_model_like(known, seed, &t);
        return done();
    }
    fill_normal(seed, 1, &t);
    if (preset == "gauss") return done();
    if (preset == "spikes") {
        add_spikes(seed, &t);
        return done();
    }
    for (const Hostile& known : kHostile) {
        if (preset != known.name) continue;
        known.change(seed, &t);
        return done();
    }
    std::vector<std::string> names;
    for (const PresetInfo& info : presets()) names.push_back(info.name);
    return invalid_argument(
        fmt::format("preset: unknown '{}'; allowed: {}", preset, fmt::join(names.begin(), names.end(), ", ")));
}

}  // namespace clary::synthetic
