// SPDX-License-Identifier: Apache-2.0
// A problem for the skeleton kernel: random operands, the answer from three plain loops, and a comparison.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

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

    // The first wrong element of the results; empty if they are right, bit for bit.
    std::string difference(const std::vector<float>& s, const std::vector<float>& row_max) const {
        std::string text = first_wrong("s", s, expected_s, k_len);
        return text.empty() ? first_wrong("row_max", row_max, expected_max, 1) : text;
    }

  private:
    static std::string first_wrong(const char* name, const std::vector<float>& given,
                                   const std::vector<float>& expected, int columns) {
        for (size_t i = 0; i < given.size(); ++i) {
            if (given[i] == expected[i]) continue;
            const size_t row = i / static_cast<size_t>(columns), column = i % static_cast<size_t>(columns);
            return std::string(name) + "[" + std::to_string(row) + "][" + std::to_string(column) + "] is " +
                   std::to_string(given[i]) + ", expected " + std::to_string(expected[i]);
        }
        return "";
    }
};

}  // namespace clary::examples
