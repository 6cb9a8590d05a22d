// SPDX-License-Identifier: Apache-2.0
// A problem for the skeleton kernel: random operands, the answer from three plain loops, and a comparison. Templates over
// the kernel, because the tests also run damaged copies of it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sim/launch.h"

namespace clary::examples {

// Vectors of bytes that copy16() may read: aligned to 16 bytes.
struct alignas(16) Bytes {
    int8_t byte[16];
};

struct Problem {
    int q_len, k_len, head_dim;
    std::vector<Bytes> q, k;  // (q_len, head_dim), (k_len, head_dim)
    std::vector<float> q_scale, k_scale;
    std::vector<float> expected_s, expected_max;  // (q_len, k_len), (q_len)

    Problem(int q_len_, int k_len_, int head_dim_, uint32_t seed = 1)
        : q_len(q_len_), k_len(k_len_), head_dim(head_dim_) {
        std::mt19937 random(seed);
        const auto fill = [&](std::vector<Bytes>& to, std::vector<float>& scales, int rows) {
            to.resize(static_cast<size_t>(rows * head_dim / 16));
            for (Bytes& bytes : to)
                for (int8_t& byte : bytes.byte) byte = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
            scales.resize(static_cast<size_t>(rows));
            for (float& scale : scales) scale = 0.001f + static_cast<float>(random() % 1000) * 1e-5f;
        };
        fill(q, q_scale, q_len);
        fill(k, k_scale, k_len);
        const int8_t* q_row = q[0].byte;
        for (int i = 0; i < q_len; ++i, q_row += head_dim) {
            float max = -std::numeric_limits<float>::infinity();
            const int8_t* k_row = k[0].byte;
            for (int j = 0; j < k_len; ++j, k_row += head_dim) {
                int32_t sum = 0;
                for (int d = 0; d < head_dim; ++d) sum += q_row[d] * k_row[d];
                const float score =
                    static_cast<float>(sum) * (q_scale[static_cast<size_t>(i)] * k_scale[static_cast<size_t>(j)]);
                const bool visible = j <= i + k_len - q_len;
                expected_s.push_back(visible ? score : -std::numeric_limits<float>::infinity());
                if (visible) max = std::max(max, score);
            }
            expected_max.push_back(max);
        }
    }
};

struct Outcome {
    sim::Report report;
    std::string difference;  // first wrong element; empty if the results are right, bit for bit
};

// Runs Kernel (SkeletonKernel<T, config>, with Params) on the simulated T.
template <class T, class Kernel, class Params>
Outcome run_simulated(const Problem& problem, int tile_q, sim::Options options) {
    constexpr float kUntouched = -12345.0f;
    std::vector<float> s(problem.expected_s.size(), kUntouched), row_max(problem.expected_max.size(), kUntouched);
    options.global = {{problem.q.data(), problem.q.size() * 16}, {problem.k.data(), problem.k.size() * 16}};
    const Params params{problem.q[0].byte, problem.k[0].byte, problem.q_scale.data(), problem.k_scale.data(),
                        s.data(),          row_max.data(),    problem.q_len,          problem.k_len};
    const sim::Grid grid{(problem.q_len + tile_q - 1) / tile_q};
    Outcome outcome;
    outcome.report =
        sim::launch<T>(grid, Kernel::kThreads, Kernel::kSharedBytes, options, [&] { Kernel::run(params); });
    if (!outcome.report.ok()) return outcome;
    for (size_t i = 0; i < s.size() && outcome.difference.empty(); ++i)
        if (s[i] != problem.expected_s[i])
            outcome.difference = fmt::format("s[{}][{}] is {}, expected {}", i / static_cast<size_t>(problem.k_len),
                                             i % static_cast<size_t>(problem.k_len), s[i], problem.expected_s[i]);
    for (size_t i = 0; i < row_max.size() && outcome.difference.empty(); ++i)
        if (row_max[i] != problem.expected_max[i])
            outcome.difference = fmt::format("row_max[{}] is {}, expected {}", i, row_max[i], problem.expected_max[i]);
    return outcome;
}

}  // namespace clary::examples
