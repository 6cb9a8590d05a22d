// SPDX-License-Identifier: Apache-2.0
// Joins partial attention results over disjoint sets of keys by their log-sum-exp.
#pragma once

#include <cmath>

#include "core/element.h"
#include "core/types.h"
#include "numerics/log_add_exp.h"

namespace clary {

// out_a and lse_a become the result; see clary_merge.
struct MergeViews {
    TensorView out_a, lse_a, out_b, lse_b;
};
// Of validated views (validate_merge): packed ones, [T, H, D] and [H, T], with the axes of dense ones, [1, H, T, D] and
// [1, H, T].
MergeViews dense_views(const MergeViews& given);
// Dense views in CPU memory.
void merge(const MergeViews& views);

// -- one row, for kernels too --
// Shares of the two sides. An empty side (-inf) has share 0, also beside another one.
struct MergeWeights {
    float a, b, lse;
};
CLARY_HD inline MergeWeights merge_weights(float lse_a, float lse_b) {
    const double a = static_cast<double>(lse_a), b = static_cast<double>(lse_b), lse = numerics::log_add_exp(a, b);
    if (lse == -double{INFINITY}) return {0, 0, lse_a};
    return {static_cast<float>(std::exp(a - lse)), static_cast<float>(std::exp(b - lse)), static_cast<float>(lse)};
}

CLARY_HD inline char* row_of(const TensorView& t, const int64_t (&row)[3]) {
    const int64_t element = row[0] * t.stride[0] + row[1] * t.stride[1] + row[2] * t.stride[2];
    return static_cast<char*>(t.data) + element * dtype_size(t.dtype);
}
// Channels first, first + step, ... of row (batch, head, token) of out.
CLARY_HD inline void merge_channels(const MergeViews& views, const int64_t (&row)[3], const MergeWeights& w,
                                    int64_t first, int64_t step) {
    const TensorView &a = views.out_a, &b = views.out_b;
    char* const row_a = row_of(a, row);
    const char* const row_b = row_of(b, row);
    for (int64_t d = first; d < a.shape[3]; d += step) {
        char* const to = row_a + d * a.stride[3] * dtype_size(a.dtype);
        const char* const from = row_b + d * b.stride[3] * dtype_size(b.dtype);
        // A side of weight 0 counts nothing, even where its row is not finite.
        const float part_a = w.a == 0 ? 0 : w.a * load_element(to, a.dtype);
        const float part_b = w.b == 0 ? 0 : w.b * load_element(from, b.dtype);
        store_element(to, a.dtype, part_a + part_b);
    }
}

}  // namespace clary
