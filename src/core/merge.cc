// SPDX-License-Identifier: Apache-2.0
#include "core/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.h"

namespace clary {
namespace {

struct Weights {
    float a, b, lse;
};

// Shares of the two sides: exp(lse - max) over their sum. An empty side (-inf) has share 0, also beside another one.
Weights weights(float lse_a, float lse_b) {
    if (std::isnan(lse_a) || std::isnan(lse_b)) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        return {nan, nan, nan};
    }
    const float top = std::max(lse_a, lse_b);
    if (top == -std::numeric_limits<float>::infinity()) return {0, 0, top};
    const float a = std::exp(lse_a - top), b = std::exp(lse_b - top);
    return {a / (a + b), b / (a + b), top + std::log(a + b)};
}

int64_t offset(const TensorView& t, const int64_t (&index)[4], int axes) {
    int64_t sum = 0;
    for (int i = 0; i < axes; ++i) sum += index[i] * t.stride[i];
    return sum;
}

}  // namespace

void merge(const TensorView& out_a, const TensorView& lse_a, const TensorView& out_b, const TensorView& lse_b) {
    int64_t i[4] = {};
    for (i[0] = 0; i[0] < out_a.shape[0]; ++i[0])
        for (i[1] = 0; i[1] < out_a.shape[1]; ++i[1])
            for (i[2] = 0; i[2] < out_a.shape[2]; ++i[2]) {
                float* const la = static_cast<float*>(lse_a.data) + offset(lse_a, i, 3);
                const Weights w = weights(*la, static_cast<const float*>(lse_b.data)[offset(lse_b, i, 3)]);
                char* const a = static_cast<char*>(out_a.data) + offset(out_a, i, 3) * dtype_size(out_a.dtype);
                const char* const b =
                    static_cast<const char*>(out_b.data) + offset(out_b, i, 3) * dtype_size(out_b.dtype);
                for (int64_t d = 0; d < out_a.shape[3]; ++d) {
                    char* const to = a + d * out_a.stride[3] * dtype_size(out_a.dtype);
                    const char* const from = b + d * out_b.stride[3] * dtype_size(out_b.dtype);
                    // A side of weight 0 counts nothing, even where its row is not finite.
                    const float part_a = w.a == 0 ? 0 : w.a * load_element(to, out_a.dtype);
                    const float part_b = w.b == 0 ? 0 : w.b * load_element(from, out_b.dtype);
                    store_element(to, out_a.dtype, part_a + part_b);
                }
                *la = w.lse;
            }
}

}  // namespace clary
