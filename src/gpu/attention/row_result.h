// SPDX-License-Identifier: Apache-2.0
// The end of a row's softmax: what its O is multiplied by, its LSE, and the sink's part of both.
#pragma once

#include <cmath>

#include "core/desc.h"
#include "gpu/attention/lane_rows.h"
#include "numerics/constants.h"

namespace clary::gpu {

struct RowResult {
    float inverse;  // of the row's sum: O times this is the result
    float share;    // of the softmax that is not the sink's
    float lse;      // natural logarithm; 0 where neither it nor a sink is given
};

// l: sum of P as quantized, in P's units, times 2^-R; sum: the same of P in 0..1, for the LSE as exact as there is;
// reference: R, -inf where no key was seen; shift: q . c_k in natural units. All NaN where !valid.
template <class T>
CLARY_DEVICE RowResult row_result(float l, float sum, float reference, float shift, bool want_lse,
                                  const TensorView& sinks, int head, bool valid) {
    constexpr float kInfinity = __builtin_huge_valf();
    const bool empty = reference == -kInfinity;
    float lse = 0, share = empty ? 0.0f : 1.0f;
    if (want_lse || sinks.given()) lse = empty ? -kInfinity : numerics::kLn2 * (reference + ::log2f(sum)) + shift;
    if (sinks.given()) {
        const float sink = static_cast<const float*>(sinks.data)[head * sinks.stride[0]];
        // log(e^lse + e^sink); without keys the sink alone is left.
        const float high = T::max(lse, sink);
        const float both = high == -kInfinity ? high : high + ::logf(::expf(lse - high) + ::expf(sink - high));
        if (!empty || both != both) share = ::expf(lse - both);
        lse = both;
    }
    const float inverse = empty ? share : share / l;  // O is 0 there
    constexpr float kNan = __builtin_nanf("");
    return valid ? RowResult{inverse, share, lse} : RowResult{kNan, kNan, kNan};
}

// `q_begin`: of the row's sequence.
CLARY_DEVICE void store_lse(const AttentionDesc& desc, int b, const Row& row, int64_t q_begin, float lse) {
    desc.lse[b * desc.lse_batch_stride + row.head * desc.lse_head_stride +
             (q_begin + row.query) * desc.lse_token_stride] = lse;
}
// Where the row's O begins, in elements.
CLARY_DEVICE int64_t output_offset(const AttentionDesc& desc, int b, const Row& row, int64_t q_begin) {
    return b * desc.out.batch_stride + row.head * desc.out.head_stride + (q_begin + row.query) * desc.out.token_stride;
}

}  // namespace clary::gpu
