// SPDX-License-Identifier: Apache-2.0
// Synthetic Q, K and V that behave like those of real models: random normals alone hide what smoothing, rotation and
// V scales do. For tests, the CLI and benchmarks; not part of libclary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace clary::synthetic {

struct Dims {
    int64_t batch = 1, q_heads = 1, kv_heads = 1;  // kv_heads divides q_heads
    int64_t q_len = 1, kv_len = 1;
    int64_t dim = 64;  // of Q, K and V
};

// C-contiguous fp32: q [batch, q_heads, q_len, dim], k and v [batch, kv_heads, kv_len, dim].
struct Tensors {
    Dims dims;
    std::vector<float> q, k, v;

    float* q_row(int64_t b, int64_t h, int64_t i) {
        return q.data() + ((b * dims.q_heads + h) * dims.q_len + i) * dims.dim;
    }
    float* k_row(int64_t b, int64_t h, int64_t j) {
        return k.data() + ((b * dims.kv_heads + h) * dims.kv_len + j) * dims.dim;
    }
    float* v_row(int64_t b, int64_t h, int64_t j) {
        return v.data() + ((b * dims.kv_heads + h) * dims.kv_len + j) * dims.dim;
    }
};

struct PresetInfo {
    std::string name, imitates;
};

// Models first, then the hostile cases. "sigma:<s>" takes a number.
std::vector<PresetInfo> presets();

// Fills `tensors` for a preset of presets(). The same dims and seed give the same values. An unknown name is an error
// that names the allowed set.
Status generate(std::string_view preset, const Dims& dims, uint64_t seed, Tensors* tensors);

// What makes a preset comparable with captured tensors. Softmax figures (scale 1 / sqrt(dim), no mask) come from a
// sample of rows.
struct Statistics {
    double k_bias_mean = 0, k_bias_max = 0;  // channel |mean| / std of K: average and largest over channels and heads
    double v_bias_max = 0;                   // the same of V
    double k_top4_energy = 0, q_top4_energy = 0;  // share of the four loudest channels, mean over heads
    double q_similarity = 0, k_similarity = 0;    // mean cosine of two tokens within a block of 128
    double ess_median = 0, ess_min = 0;           // effective number of keys of a row, 1 / sum p^2
    double logit_range = 0;                       // largest minus smallest scaled score of a row, median
};
Statistics statistics(Tensors& tensors);
std::string describe(const Statistics& statistics);  // one line

}  // namespace clary::synthetic
