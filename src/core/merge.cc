// SPDX-License-Identifier: Apache-2.0
#include "core/merge.h"

#include <cmath>
#include <limits>

#include "core/element.h"
#include "numerics/log_add_exp.h"

namespace clary {
namespace {

struct Weights {
    float a, b, lse;
};

// Shares of the two sides. An empty side (-inf) has share 0, also beside another one.
Weights weights(float lse_a, float lse_b) {
    const double lse = numerics::log_add_exp(lse_a, lse_b);
    if (lse == -std::numeric_limits<double>::infinity()) return {0, 0, lse_a};
    return {static_cast<float>(std::exp(lse_a - lse)), static_cast<float>(std::exp(lse_b - lse)),
            static_cast<float>(lse)};
}

// Dense or packed views with the axes of dense ones: packed [T, H, D] and [H, T] as [1, H, T, D] and [1, H, T].
TensorView dense_axes(const TensorView& packed) {
    if (packed.ndim == 4) return packed;
    TensorView view = packed;
    const int order[] = {1, 0, 2};
    view.ndim = 4;
    view.shape[0] = 1;
    view.stride[0] = 0;
    for (int axis = 0; axis < 3; ++axis) {
        view.shape[axis + 1] = packed.shape[order[axis]];
        view.stride[axis + 1] = packed.stride[order[axis]];
    }
    return view;
}
TensorView dense_lse_axes(const TensorView& packed) {
    if (packed.ndim == 3) return packed;
    TensorView view = packed;
    view.ndim = 3;
    for (int axis = 2; axis > 0; --axis) {
        view.shape[axis] = packed.shape[axis - 1];
        view.stride[axis] = packed.stride[axis - 1];
    }
    view.shape[0] = 1;
    view.stride[0] = 0;
    return view;
}

int64_t offset(const TensorView& t, const int64_t (&index)[4], int axes) {
    int64_t sum = 0;
    for (int i = 0; i < axes; ++i) sum += index[i] * t.stride[i];
    return sum;
}

}  // namespace

void merge(const TensorView& given_out_a, const TensorView& given_lse_a, const TensorView& given_out_b,
           const TensorView& given_lse_b) {
    const TensorView out_a = dense_axes(given_out_a), out_b = dense_axes(given_out_b);
    const TensorView lse_a = dense_lse_axes(given_lse_a), lse_b = dense_lse_axes(given_lse_b);
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
