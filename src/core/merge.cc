// SPDX-License-Identifier: Apache-2.0
#include "core/merge.h"

namespace clary {
namespace {

TensorView dense_out(const TensorView& packed) {
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
TensorView dense_lse(const TensorView& packed) {
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

}  // namespace

MergeViews dense_views(const MergeViews& given) {
    return {dense_out(given.out_a), dense_lse(given.lse_a), dense_out(given.out_b), dense_lse(given.lse_b)};
}

void merge(const MergeViews& views) {
    const TensorView& out = views.out_a;
    int64_t i[3];
    for (i[0] = 0; i[0] < out.shape[0]; ++i[0])
        for (i[1] = 0; i[1] < out.shape[1]; ++i[1])
            for (i[2] = 0; i[2] < out.shape[2]; ++i[2]) {
                auto* const lse = reinterpret_cast<float*>(row_of(views.lse_a, i));
                const MergeWeights w = merge_weights(*lse, *reinterpret_cast<float*>(row_of(views.lse_b, i)));
                merge_channels(views, i, w, 0, 1);
                *lse = w.lse;
            }
}

}  // namespace clary
