// SPDX-License-Identifier: Apache-2.0
// The two inner products of attention in the transposed formulation, as register blocks: R rows (keys of K, channels
// of V) are broadcast against C vectors whose lanes are queries. Included by each tier with its own Vec.
//
//   S^T = K Q^T    rows: keys      steps: head dim      O^T = V^T P^T    rows: channels    steps: keys
//
// No horizontal sums, and P^T comes out in the layout that the second product reads.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "numerics/hadamard.h"

namespace clary::cpu {

// Before loops over accumulators: they stay in registers only where every index is a constant.
#if defined(__clang__)
#define CLARY_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CLARY_UNROLL _Pragma("GCC unroll 16")
#endif

// sum[r][c] += rows . lanes over `steps` of one word of kDot elements each. rows: packed operands, row_stride in words;
// lanes: [steps][C vectors].
template <class V, int R, int C>
[[gnu::always_inline]] inline void dot_block(typename V::I (&sum)[R][C], const int32_t* rows, int64_t row_stride,
                                             const int32_t* lanes, int64_t steps) {
    for (int64_t s = 0; s < steps; ++s) {
        typename V::I q[C];
        CLARY_UNROLL for (int c = 0; c < C; ++c) q[c] = V::load(lanes + (s * C + c) * V::kLanes);
        CLARY_UNROLL for (int r = 0; r < R; ++r) {
            const typename V::I row = V::set1(rows[r * row_stride + s]);
            CLARY_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = V::dot(sum[r][c], q[c], row);
        }
    }
}

inline constexpr int64_t kAhead = 4096;  // words between what part_block reads and what it asks of memory

// The same with steps of four words, one for each lane of a part. Rows are read one after the other, with kHeld steps of the
// lanes in registers: they come from memory, and side by side they would come at half its speed.
template <class V, int R, int C, int kHeld = V::kRows / C>
[[gnu::always_inline]] inline void part_block(typename V::I (&sum)[R][C], const int32_t* rows, int64_t row_stride,
                                              const int32_t* lanes, int64_t steps) {
    int64_t s = 0;
    for (; s + kHeld <= steps; s += kHeld) {
        typename V::I q[kHeld][C];
        CLARY_UNROLL for (int i = 0; i < kHeld; ++i) {
            CLARY_UNROLL for (int c = 0; c < C; ++c) q[i][c] = V::load(lanes + ((s + i) * C + c) * V::kLanes);
        }
        CLARY_UNROLL for (int r = 0; r < R; ++r) {
            CLARY_UNROLL for (int i = 0; i < kHeld; ++i) {
                const int32_t* const at = rows + r * row_stride + 4 * (s + i);
                if (V::kRowScratch == 0 && i % 4 == 0) __builtin_prefetch(at + kAhead);
                const typename V::I row = V::spread4(at);
                CLARY_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = V::dot(sum[r][c], q[i][c], row);
            }
        }
    }
    if constexpr (kHeld > 1)
        if (s < steps)
            part_block<V, R, C, kHeld / 2>(sum, rows + 4 * s, row_stride, lanes + s * C * V::kLanes, steps - s);
}

// The same in fp32; row r's elements of step s lie at rows[r * row_stride + s * step_stride].
template <class V, int R, int C, int L>
[[gnu::always_inline]] inline void fma_block(typename V::F (&sum)[R][C], const float* rows, int64_t row_stride,
                                             int64_t step_stride, const float* lanes, int64_t steps) {
    for (int64_t s = 0; s < steps; ++s) {
        typename V::F q[C];
        CLARY_UNROLL for (int c = 0; c < C; ++c) q[c] = V::load(lanes + (s * C + c) * V::kLanes);
        CLARY_UNROLL for (int r = 0; r < R; ++r) {
            const float* const at = rows + r * row_stride + s * step_stride;
            const typename V::F row = L == 1 ? V::set1(*at) : V::spread4(at);
            CLARY_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = V::fma(row, q[c], sum[r][c]);
        }
    }
}

// kStages stages of a Hadamard transform of `count` columns, from `stride` on, in registers: load(column, k) gives a column,
// store(column, value, k) takes it; k < 2^kStages is a constant to the compiler.
template <class V, int kStages, typename Load, typename Store>
[[gnu::always_inline]] inline void hadamard_stages(int64_t count, int64_t stride, Load&& load, Store&& store) {
    using F = typename V::F;
    constexpr int kColumns = 1 << kStages;
    for (int64_t i = 0; i < count; i += kColumns * stride)
        for (int64_t j = i; j < i + stride; ++j) {
            F v[kColumns];
            CLARY_UNROLL for (int k = 0; k < kColumns; ++k) v[k] = load(j + k * stride, k);
            CLARY_UNROLL for (int stage = 0; stage < kStages; ++stage) {
                CLARY_UNROLL for (int k = 0; k < kColumns; ++k) {
                    const int other = k | (1 << stage);
                    if (k == other) continue;
                    const F a = v[k], b = v[other];
                    v[k] = V::add(a, b);
                    v[other] = V::sub(a, b);
                }
            }
            CLARY_UNROLL for (int k = 0; k < kColumns; ++k) store(j + k * stride, v[k], k);
        }
}

// The stages of a block of columns x [block][width] from `stride` < block on; out(column, value, k) takes the results.
template <class V, typename Out>
[[gnu::always_inline]] inline void hadamard_rest(float* x, int64_t width, int64_t block, int64_t stride, Out&& out) {
    const auto get = [&](int64_t d, int) { return V::load(x + d * width); };
    const auto put = [&](int64_t d, typename V::F value, int) { V::store(x + d * width, value); };
    for (; stride * 16 < block; stride *= 8) hadamard_stages<V, 3>(block, stride, get, put);
    if (stride * 2 == block) hadamard_stages<V, 1>(block, stride, get, out);
    if (stride * 4 == block) hadamard_stages<V, 2>(block, stride, get, out);
    if (stride * 8 == block) hadamard_stages<V, 3>(block, stride, get, out);
    if (stride * 16 == block) hadamard_stages<V, 4>(block, stride, get, out);
}

// Rotates columns by the orthonormal Hadamard matrix of `dim` (numerics/hadamard.h): each lane holds one vector. They come from
// first(column, k) and go to last(column, value, k), one call for each column (hadamard_stages); between they lie in x,
// [dim][width]. Stride 1, 2, 4, ... and then the norm: the order that numerics::rotate defines.
template <class V, typename First, typename Last>
[[gnu::always_inline]] inline void rotate_columns(float* x, int64_t width, int64_t dim, First&& first, Last&& last) {
    using F = typename V::F;
    for (int64_t start = 0; start < dim;) {
        const int block = numerics::hadamard_block(static_cast<int>(dim - start));
        const F norm = V::set1(numerics::hadamard_norm<float>(block));
        float* const at = x + start * width;
        const auto in = [&](int64_t d, int k) { return first(start + d, k); };
        const auto put = [&](int64_t d, F value, int) { V::store(at + d * width, value); };
        const auto out = [&](int64_t d, F value, int k) { last(start + d, V::mul(value, norm), k); };
        if (block == 1) hadamard_stages<V, 0>(block, 1, in, out);
        if (block == 2) hadamard_stages<V, 1>(block, 1, in, out);
        if (block == 4) hadamard_stages<V, 2>(block, 1, in, out);
        if (block == 8) hadamard_stages<V, 3>(block, 1, in, out);
        if (block > 8) {
            hadamard_stages<V, 3>(block, 1, in, put);
            hadamard_rest<V>(at, width, block, 8, out);
        }
        start += block;
    }
}

// The same in place, for all of the `width` lanes.
template <class V>
inline void rotate_lanes(float* x, int64_t dim, int64_t width) {
    for (int64_t lane = 0; lane < width; lane += V::kLanes)
        rotate_columns<V>(
            x + lane, width, dim, [&](int64_t d, int) { return V::load(x + lane + d * width); },
            [&](int64_t d, typename V::F value, int) { V::store(x + lane + d * width, value); });
}

inline constexpr int64_t kLine = 16;         // fp32 values
inline constexpr int64_t kRowsAhead = 8192;  // bytes between the rows that are read and those that are asked of memory

// Columns d .. d + kLanes - 1 of rows [kLanes][dim]; asks memory for as many that come later.
template <class V>
[[gnu::always_inline]] inline void read_columns(const float* rows, int64_t dim, int64_t d,
                                                typename V::F (&to)[V::kLanes]) {
    const char* const ahead = reinterpret_cast<const char*>(rows) + kRowsAhead;
    for (int64_t i = 0; i < V::kLanes * V::kLanes; i += kLine)
        __builtin_prefetch(ahead + (d * V::kLanes + i) * static_cast<int64_t>(sizeof(float)));
    V::columns(rows + d, dim, to);
}

// rows [kLanes][dim] to columns [dim][width], and back; dim a multiple of kDimMultiple, which kLanes divides.
template <class V>
[[gnu::always_inline]] inline void rows_to_lanes(const float* rows, int64_t row_stride, int64_t dim, float* to,
                                                 int64_t width) {
    for (int64_t d = 0; d < dim; d += V::kLanes) V::transpose(rows + d, row_stride, to + d * width, width);
}
template <class V>
[[gnu::always_inline]] inline void lanes_to_rows(const float* from, int64_t width, int64_t dim, float* rows,
                                                 int64_t row_stride) {
    for (int64_t d = 0; d < dim; d += V::kLanes) V::transpose(from + d * width, width, rows + d, row_stride);
}

// `count` contiguous elements of fp32, fp16 or bf16 to fp32, and back.
template <class V>
inline void load_span(float* to, const void* from, DType dtype, int64_t count) {
    int64_t i = 0;
    if (dtype == DType::kF32) {
        __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
        return;
    }
    const auto* half = static_cast<const uint16_t*>(from);
    for (; i + V::kLanes <= count; i += V::kLanes) V::storeu(to + i, V::load16(half + i, dtype));
    if (i == count) return;
    uint16_t rest[V::kLanes] = {};
    float values[V::kLanes];
    __builtin_memcpy(rest, half + i, static_cast<size_t>(count - i) * sizeof(uint16_t));
    V::storeu(values, V::load16(rest, dtype));
    __builtin_memcpy(to + i, values, static_cast<size_t>(count - i) * sizeof(float));
}
template <class V>
inline void store_span(void* to, DType dtype, const float* from, int64_t count) {
    int64_t i = 0;
    if (dtype == DType::kF32) {
        __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
        return;
    }
    auto* half = static_cast<uint16_t*>(to);
    for (; i + V::kLanes <= count; i += V::kLanes) V::store16(half + i, dtype, V::loadu(from + i));
    if (i == count) return;
    uint16_t rest[V::kLanes];
    float values[V::kLanes] = {};
    __builtin_memcpy(values, from + i, static_cast<size_t>(count - i) * sizeof(float));
    V::store16(rest, dtype, V::loadu(values));
    __builtin_memcpy(half + i, rest, static_cast<size_t>(count - i) * sizeof(uint16_t));
}

}  // namespace clary::cpu
