// SPDX-License-Identifier: Apache-2.0
// Quantization on the CPU, in the transposed form that attention uses: lanes are tokens, so that maxima, sums, rotation
// and scales per token are vertical. One tile of keys (or a block of queries) at a time, in groups of one vector:
//
//   rows [tokens, dim] -> lanes [group][dim, kLanes], smoothed, rotated, amax -> scales -> codes -> rows
//
// A group stays in L1 from its rows to its maxima: each pass over it does all that can be done with a value in a
// register. Every scale is decided from fp32 values by the functions of numerics/digits.h, or by the same operations on
// vectors; codes are round(x * (1 / scale)).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/byte_dot.h"
#include "cpu/inner_blocks.h"
#include "cpu/scratch.h"
#include "cpu/tier.h"
#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/permutation.h"

namespace clary::cpu {

inline constexpr int kQueryBlock = 128;  // rows of Q packed together: a whole number of scale groups

template <class V>
class Packer {
    using F = typename V::F;
    using I = typename V::I;
    using M = typename V::M;
    using Granularity = numerics::Granularity;
    static constexpr int kColumnStages = V::kLanes == 16 ? 4 : V::kLanes == 8 ? 3 : 2;  // log2
    static constexpr bool kByteDot = std::is_base_of_v<ByteDot, V>;
    static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

    // Of the channels of a token with a vector: none, or before or after `minus` is subtracted.
    enum class Dot { kNone, kBefore, kAfter };
    // What is done to the tokens of a group, and what it gives.
    struct Transform {
        int64_t dim, head_dim;
        const float* minus;  // [dim] or null
        const float* with;   // [dim], of Dot
        bool rotate;
    };
    struct Result {
        F largest, dot, probe;  // probe: NaN where a token is not finite, or goes beyond what is
    };

  public:
    static int64_t scratch_bytes(const AttentionDesc& desc) {
        Packer counter(desc, nullptr);
        return counter.bytes_;
    }

    Packer(const AttentionDesc& desc, void* base) : desc_(desc) {
        Scratch scratch(base);
        const int64_t dim = round_up(desc.head_dim, kDimMultiple), dim_v = round_up(desc.head_dim_v, kDimMultiple);
        const int64_t widest = std::max(dim, dim_v);
        lanes_ = scratch.take<float>(kMaxTile / V::kLanes * group_floats(widest));
        rows_ = scratch.take<float>(widest * V::kLanes);
        range_ = scratch.take<float>(2 * widest);
        zeros_ = scratch.take<float>(widest);
        if (base) std::fill_n(zeros_, widest, 0.0f);
        bytes_ = scratch.bytes();
    }

    // -- K and V --
    void pack(const PackTile& t) {
        const Recipe& recipe = desc_.recipe;
        const int tile = recipe.tile;
        alignas(64) float bias[kMaxTile] = {};  // base-2 bias of each key
        alignas(64) float need[kMaxTile];
        // V first: it leaves its share of the bias, and its lanes to K.
        bool finite = recipe.pv == Format::kInt8 ? pack_v_codes(t, bias) : pack_v_floats(t);
        const Transform transform{t.dim, desc_.head_dim, t.c_k, t.c_q, recipe.rotate_qk};
        // The sign of the scale lies in Q's codes, a is positive.
        const F factor = V::set1(desc_.scale < 0 ? -t.a : t.a);
        for (int token = 0; token < tile; token += V::kLanes) {
            const float* const rows = t.k_rows + token * t.dim;
            float* const x = group(token, t.dim);
            F top;
            if (recipe.smooth_q) {
                const Result r = load_keys<Dot::kAfter>(transform, rows, x, t.keys - token, &finite);
                const F own = V::mul(r.dot, factor);
                V::store(bias + token, recipe.v_scale == VScale::kToken ? V::add(own, V::load(bias + token)) : own);
                top = r.largest;
            } else {
                top = load_keys<Dot::kNone>(transform, rows, x, t.keys - token, &finite).largest;
            }
            V::store(need + token, V::div(top, V::set1(127.0f)));
        }
        pack_k_codes(t, bias, need, finite);
    }

    // -- Q --
    void pack(const PackQueries& q) {
        const Recipe& recipe = desc_.recipe;
        alignas(64) float need[kQueryBlock], shift[kQueryBlock], scale[kQueryBlock], inverse[kQueryBlock];
        alignas(64) int32_t repeat[kQueryBlock];
        bool row_finite[kQueryBlock], finite = true;
        const Transform transform = query_transform(q);
        const F factor = V::set1(static_cast<float>(desc_.scale));
        for (int row = 0; row < q.rows; row += V::kLanes) {
            const float* const rows = q.q_rows + row * q.dim;
            float* const x = group(row, q.dim);
            F top;
            if (q.q_shift) {
                const Result r = load_queries<Dot::kBefore>(transform, rows, x, row_finite + row, &finite);
                V::store(shift + row, V::mul(r.dot, factor));
                top = r.largest;
            } else {
                top = load_queries<Dot::kNone>(transform, rows, x, row_finite + row, &finite).largest;
            }
            V::store(need + row, V::div(top, V::set1(127.0f)));
        }
        if (recipe.granularity != Granularity::kFine && recipe.granularity != Granularity::kPerToken)
            spread_largest(need, q.rows, [&](int row) {
                return numerics::q_group(recipe.granularity, tile_family(recipe.family), q.first_row + row);
            });
        for (int row = 0; row < q.rows; row += V::kLanes)
            query_scales(q.q_base, need + row, scale + row, repeat + row, inverse + row);
        for (int row = 0; row < q.rows; row += V::kLanes)
            store_codes<false>(group(row, q.dim), q.dim, V::load(inverse + row), std::min(V::kLanes, q.rows - row),
                               q.q_codes + row * q.dim);
        for (int row = 0; row < q.rows && !finite; ++row)
            if (!row_finite[row]) scale[row] = shift[row] = kNan;
        std::copy_n(scale, q.rows, q.q_scale);
        if (q.q_shift) std::copy_n(shift, q.rows, q.q_shift);
        if (uint8_t* const to = q.q_repeat)
            for (int row = 0; row < q.rows; ++row) to[row] = static_cast<uint8_t>(repeat[row]);
    }

    void needs(const PackQueries& q, QueryNeeds* total) {
        alignas(64) float need[kQueryBlock];
        bool row_finite[kQueryBlock], finite = true;
        const Transform transform = query_transform(q);
        for (int row = 0; row < q.rows; row += V::kLanes) {
            const F top =
                load_queries<Dot::kNone>(transform, q.q_rows + row * q.dim, group(0, q.dim), row_finite + row, &finite)
                    .largest;
            V::store(need + row, V::div(top, V::set1(127.0f)));
        }
        QueryNeeds sum = *total;
        for (int row = 0; row < q.rows; ++row) {
            if (!row_finite[row]) continue;
            sum.largest = std::max(sum.largest, need[row]);
            sum.sum += static_cast<double>(need[row]);
            sum.rows += 1;
        }
        *total = sum;
    }

    // Smallest and largest value of each rotated V channel over `count` of the rows [kMaxTile, dim_v]; those of rows that
    // are not finite count as zeros. Widens low and high.
    void channel_range(const float* rows, int count, float* low, float* high) {
        const int64_t dim = round_up(desc_.head_dim_v, kDimMultiple);
        const Transform transform{dim, desc_.head_dim_v, nullptr, nullptr, desc_.recipe.rotate_v};
        if (!transform.rotate && range_of(rows, count, dim)) {
            widen(dim, low, high);
            return;
        }
        bool finite;
        for (int row = 0; row < count; row += V::kLanes) {
            float* const x = group(0, dim);
            load_keys<Dot::kNone>(transform, rows + row * dim, x, V::kLanes, &finite);
            lanes_to_rows<V>(x, V::kLanes, dim, rows_, dim);
            range_of(rows_, std::min(V::kLanes, count - row), dim);
            widen(dim, low, high);
        }
    }

    // Adds each column of rows [count, dim] to sums; values that are not finite are left out and counted.
    static void add_columns(const float* rows, int count, int64_t dim, double* sums, double* left_out) {
        // Vectors of columns side by side, so that rows are read as they lie and no sum waits for the one before.
        int64_t d = 0;
        for (; d + 8 * V::kLanes <= dim; d += 8 * V::kLanes)
            add_columns_of<8>(rows + d, count, dim, sums + d, left_out + d);
        for (; d + 4 * V::kLanes <= dim; d += 4 * V::kLanes)
            add_columns_of<4>(rows + d, count, dim, sums + d, left_out + d);
        for (; d < dim; d += V::kLanes) add_columns_of<1>(rows + d, count, dim, sums + d, left_out + d);
    }

  private:
    template <int kVectors>
    static void add_columns_of(const float* rows, int count, int64_t dim, double* sums, double* left_out) {
        F sum[kVectors];
        CLARY_UNROLL for (int i = 0; i < kVectors; ++i) sum[i] = V::set1(0.0f);
        for (int row = 0; row < count; ++row) CLARY_UNROLL for (int i = 0; i < kVectors; ++i) {
                sum[i] = V::add(sum[i], V::loadu(rows + row * dim + i * V::kLanes));
            }
        alignas(64) float column[kVectors * V::kLanes];
        CLARY_UNROLL for (int i = 0; i < kVectors; ++i) V::store(column + i * V::kLanes, sum[i]);
        for (int i = 0; i < kVectors * V::kLanes; ++i) {
            double total = static_cast<double>(column[i]);
            if (!std::isfinite(column[i])) {
                total = 0;
                for (int row = 0; row < count; ++row) {
                    const float value = rows[row * dim + i];
                    if (std::isfinite(value))
                        total += static_cast<double>(value);
                    else
                        left_out[i] += 1;
                }
            }
            sums[i] += total;
        }
    }

    // Groups lie a line more than their size apart: else the same channel of all would fall into one set of the cache.
    static int64_t group_floats(int64_t dim) { return (dim + 1) * V::kLanes; }
    float* group(int token, int64_t dim) const { return lanes_ + token / V::kLanes * group_floats(dim); }

    // The larger of |x| and top >= 0; top where x is NaN.
    static F largest(F x, F top) {
        if constexpr (requires { V::max_magnitude(x, top); })
            return V::max_magnitude(x, top);
        else
            return V::max(V::abs(x), top);
    }

    // Rows of a group to x [dim, kLanes]: minus `minus`, rotated.
    template <Dot kDot, bool kMinus>
    Result transform_rows(const Transform& t, const float* rows, float* x) const {
        const float* const minus = t.minus ? t.minus : zeros_;
        const float* const with = t.with;
        const F zero = V::set1(0.0f);
        F top[4] = {zero, zero, zero, zero}, probe[4] = {zero, zero, zero, zero}, dot = zero;
        const auto first = [&](int64_t d, F value) {
            if constexpr (kDot == Dot::kBefore) dot = V::fma(value, V::set1(with[d]), dot);
            if constexpr (kMinus) value = V::sub(value, V::set1(minus[d]));
            if constexpr (kDot == Dot::kAfter) dot = V::fma(value, V::set1(with[d]), dot);
            return value;
        };
        const auto last = [&](int64_t d, F value, int k) {
            V::store(x + d * V::kLanes, value);
            top[k % 4] = largest(value, top[k % 4]);
        };
        int64_t start = 0;
        while (t.rotate && t.head_dim - start >= V::kLanes) {
            const int block = numerics::hadamard_block(static_cast<int>(t.head_dim - start));
            const F norm = V::set1(numerics::hadamard_norm<float>(block));
            // Each rotated value is the sum of its block: one value that is not finite leaves none that is.
            const auto out = [&](int64_t d, F value, int k) {
                value = V::mul(value, norm);
                last(start + d, value, k);
                if (k == 0) probe[0] = V::fma(value, zero, probe[0]);
            };
            for (int64_t c = 0; c < block; c += V::kLanes) {
                F v[V::kLanes];
                read_columns<V>(rows, t.dim, start + c, v);
                CLARY_UNROLL for (int k = 0; k < V::kLanes; ++k) v[k] = first(start + c + k, v[k]);
                const auto get = [&](int64_t, int k) { return v[k]; };
                const auto put = [&](int64_t, F value, int k) { V::store(x + (start + c + k) * V::kLanes, value); };
                if (block == V::kLanes)
                    hadamard_stages<V, kColumnStages>(V::kLanes, 1, get, out);
                else
                    hadamard_stages<V, kColumnStages>(V::kLanes, 1, get, put);
            }
            if (block > V::kLanes) hadamard_rest<V>(x + start * V::kLanes, V::kLanes, block, V::kLanes, out);
            start += block;
        }
        // What is not rotated, or in blocks of less than a vector.
        for (int64_t c = start; c < t.dim; c += V::kLanes) {
            F v[V::kLanes];
            read_columns<V>(rows, t.dim, c, v);
            CLARY_UNROLL for (int k = 0; k < V::kLanes; ++k) {
                v[k] = first(c + k, v[k]);
                probe[k % 4] = V::fma(v[k], zero, probe[k % 4]);
                if (t.rotate)
                    V::store(x + (c + k) * V::kLanes, v[k]);
                else
                    last(c + k, v[k], k);
            }
        }
        if (t.rotate && start < t.head_dim) {
            float* const rest = x + start * V::kLanes;
            rotate_lanes<V>(rest, t.head_dim - start, V::kLanes);
            for (int64_t d = 0; d < t.head_dim - start; ++d) top[0] = largest(V::load(rest + d * V::kLanes), top[0]);
        }
        return {V::max(V::max(top[0], top[1]), V::max(top[2], top[3])), dot,
                V::add(V::add(probe[0], probe[1]), V::add(probe[2], probe[3]))};
    }
    template <Dot kDot>
    Result transform_rows(const Transform& t, const float* rows, float* x) const {
        if constexpr (kDot == Dot::kNone)
            if (!t.minus) return transform_rows<kDot, false>(t, rows, x);
        return transform_rows<kDot, true>(t, rows, x);
    }

    static bool all_finite(const float* row, int64_t dim) {
        for (int64_t d = 0; d < dim; ++d)
            if (!std::isfinite(row[d])) return false;
        return true;
    }

    // Rows of a group to lanes x. Rows that are not finite, and those from `valid` on, become zeros: the former before
    // the subtraction, the latter after it.
    template <Dot kDot>
    Result load_keys(const Transform& t, const float* rows, float* x, int valid, bool* finite) {
        if (valid >= V::kLanes) {
            const Result r = transform_rows<kDot>(t, rows, x);
            if (!V::any(V::is_nan(r.probe))) return r;
        }
        for (int i = 0; i < V::kLanes; ++i) {
            const float* const row = rows + i * t.dim;
            const bool bad = i < valid && !all_finite(row, t.dim);
            if (bad) *finite = false;
            for (int64_t d = 0; d < t.dim; ++d)
                rows_[i * t.dim + d] = i < valid ? (bad ? 0.0f : row[d]) - (t.minus ? t.minus[d] : 0.0f) : 0.0f;
        }
        Transform rest = t;
        rest.minus = nullptr;
        return transform_rows<kDot>(rest, rows_, x);
    }

    // Rows that are not finite become zeros.
    template <Dot kDot>
    Result load_queries(const Transform& t, const float* rows, float* x, bool* row_finite, bool* finite) {
        Result r = transform_rows<kDot>(t, rows, x);
        std::fill_n(row_finite, V::kLanes, true);
        if (!V::any(V::is_nan(r.probe)) && desc_.scale != 0) return r;
        alignas(64) float top[V::kLanes];
        V::store(top, r.largest);
        for (int i = 0; i < V::kLanes; ++i) {
            row_finite[i] = all_finite(rows + i * t.dim, t.dim);
            if (!row_finite[i]) *finite = false;
            if (row_finite[i] && desc_.scale != 0) continue;  // scale 0: no query counts
            for (int64_t d = 0; d < t.dim; ++d) x[d * V::kLanes + i] = 0;
            top[i] = 0;
        }
        r.largest = V::load(top);
        return r;
    }
    Transform query_transform(const PackQueries& q) const {
        return {q.dim, desc_.head_dim, q.c_q, q.c_k, desc_.recipe.rotate_qk};
    }

    // As numerics/digits.h has it (q_repeat), for a vector of rows. The inverse has the sign of the softmax scale.
    void query_scales(float q_base, const float* needs, float* scales, int32_t* repeats, float* inverses) const {
        const F need = V::load(needs), base = V::set1(q_base);
        F scale = V::max(V::set1(numerics::kScaleFloor), need);
        I repeat = V::zero();
        if (desc_.recipe.key_bias()) {
            // Louder than a frozen q_base allows: its own scale, and the key bias is added in fp32 (repeat 0).
            const M fits = V::either(V::greater(base, need), V::equal(base, need));
            const F times = floor_between(V::div(base, scale), 1, numerics::kRepeatMax);
            scale = V::select(fits, V::div(base, times), scale);
            repeat = V::round(V::select(fits, times, V::set1(0.0f)));
        }
        V::store(scales, scale);
        V::store(repeats, repeat);
        V::store(inverses, V::div(V::set1(desc_.scale < 0 ? -1.0f : 1.0f), scale));
    }

    // floor(x) within low..high; NaN gives low.
    static F floor_between(F x, int low, int high) {
        x = V::min(V::max(x, V::set1(static_cast<float>(low))), V::set1(static_cast<float>(high)));
        const F nearest = V::to_float(V::round(x));
        return V::sub(nearest, V::select(V::greater(nearest, x), V::set1(1.0f), V::set1(0.0f)));
    }

    // Smallest and largest value of each column of rows [count, dim] to range_; false where one is not finite.
    bool range_of(const float* rows, int count, int64_t dim) {
        F probe = V::set1(0.0f);
        int64_t d = 0;
        for (; d + 4 * V::kLanes <= dim; d += 4 * V::kLanes)
            probe = V::add(probe, range_of<4>(rows + d, count, dim, d));
        for (; d < dim; d += V::kLanes) probe = V::add(probe, range_of<1>(rows + d, count, dim, d));
        return !V::any(V::is_nan(probe));
    }
    template <int kVectors>
    F range_of(const float* rows, int count, int64_t dim, int64_t d) {
        const F zero = V::set1(0.0f);
        F low[kVectors], high[kVectors], probe[kVectors];
        CLARY_UNROLL for (int i = 0; i < kVectors; ++i) {
            low[i] = V::set1(std::numeric_limits<float>::infinity());
            high[i] = V::sub(zero, low[i]);
            probe[i] = zero;
        }
        for (int row = 0; row < count; ++row) CLARY_UNROLL for (int i = 0; i < kVectors; ++i) {
                const F value = V::loadu(rows + row * dim + i * V::kLanes);
                probe[i] = V::fma(value, zero, probe[i]);
                low[i] = V::min(value, low[i]);
                high[i] = V::max(value, high[i]);
            }
        F sum = zero;
        CLARY_UNROLL for (int i = 0; i < kVectors; ++i) {
            V::store(range_ + d + i * V::kLanes, low[i]);
            V::store(range_ + dim + d + i * V::kLanes, high[i]);
            sum = V::add(sum, probe[i]);
        }
        return sum;
    }
    void widen(int64_t dim, float* low, float* high) const {
        for (int64_t d = 0; d < dim; ++d) {
            low[d] = std::min(low[d], range_[d]);
            high[d] = std::max(high[d], range_[dim + d]);
        }
    }

    // Each value becomes the largest of its group; groups are runs or combs within `count` values.
    template <typename Group>
    static void spread_largest(float* values, int count, Group&& group) {
        if (count == 0) return;
        const int64_t base = group(0);
        float top[kMaxTile] = {};
        for (int i = 0; i < count; ++i) top[group(i) - base] = std::max(top[group(i) - base], values[i]);
        for (int i = 0; i < count; ++i) values[i] = top[group(i) - base];
    }

    // The same for groups of keys. Values behind the last key are zeros, and may become others.
    void spread_keys(float* values, int keys) const {
        const Recipe& recipe = desc_.recipe;
        const numerics::TileFamily& family = tile_family(recipe.family);
        if (recipe.granularity == Granularity::kPerToken) return;
        if (recipe.granularity != Granularity::kFine && recipe.granularity != Granularity::kPerThread) {
            spread_largest(values, keys, [&](int key) { return numerics::k_group(recipe.granularity, family, key); });
            return;
        }
        // Of each 8 keys two neighbours, of all 8 of a block (numerics/scale_groups.h).
        const int block =
            std::min(recipe.tile, recipe.granularity == Granularity::kFine ? family.block_k : family.warp_k);
        for (float* at = values; at < values + keys; at += block) {
            float top[8] = {};
            for (int key = 0; key < block; key += 8)
                for (int i = 0; i < 8; ++i) top[i] = std::max(top[i], at[key + i]);
            for (int i = 0; i < 8; i += 2) top[i] = top[i + 1] = std::max(top[i], top[i + 1]);
            for (int key = 0; key < block; key += 8)
                for (int i = 0; i < 8; ++i) at[key + i] = top[i];
        }
    }

    // Codes of up to kLanes tokens to rows of `dim` bytes. Returns the sum of each token's codes if kSum.
    template <bool kSum>
    I store_codes(const float* x, int64_t dim, F inverse, int tokens, int8_t* rows) const {
        auto* const words = reinterpret_cast<int32_t*>(rows_);
        I sum = V::zero();
        for (int64_t d = 0; d < dim; d += 4) {
            I code[4];
            CLARY_UNROLL for (int i = 0; i < 4; ++i) {
                code[i] = V::round(V::mul(V::load(x + (d + i) * V::kLanes), inverse));
                if constexpr (kSum && !kByteDot) sum = V::add(sum, code[i]);
            }
            const I four = V::pack_codes(code[0], code[1], code[2], code[3]);
            if constexpr (kSum && kByteDot) sum = V::dot(sum, V::set1(0x01010101), four);
            V::store(words + d / 4 * V::kLanes, four);
        }
        const int64_t count = dim / 4;  // words per token
        int64_t w = 0;
        if (tokens == V::kLanes)
            for (; w + V::kLanes <= count; w += V::kLanes)
                V::transpose(reinterpret_cast<const float*>(words + w * V::kLanes), V::kLanes,
                             reinterpret_cast<float*>(rows) + w, count);
        for (int token = 0; token < tokens; ++token)
            for (int64_t i = w; i < count; ++i)
                std::memcpy(rows + token * dim + 4 * i, words + i * V::kLanes + token, 4);
        return sum;
    }

    void pack_k_codes(const PackTile& t, float* bias, float* need, bool finite) {
        const Recipe& recipe = desc_.recipe;
        const bool key_bias = recipe.key_bias();
        alignas(64) float local[kMaxTile], largest_local[kMaxTile], scale[kMaxTile], inverse[kMaxTile];
        alignas(64) int32_t units[kMaxTile], sums[kMaxTile];
        const float base = key_bias && t.keys > 0 ? middle(bias, t.keys) : 0.0f;
        for (int key = 0; key < recipe.tile; ++key) {
            local[key] = key_bias && key < t.keys ? bias[key] - base : 0.0f;
            largest_local[key] = std::abs(local[key]);
        }
        spread_keys(need, t.keys);
        if (key_bias) spread_keys(largest_local, t.keys);
        for (int key = 0; key < recipe.tile; key += V::kLanes) {
            key_scales(t, need + key, local + key, largest_local + key, scale + key, units + key);
            // Behind the last key.
            for (int i = std::max(t.keys - key, 0); i < V::kLanes; ++i) scale[key + i] = numerics::kScaleFloor;
            V::store(inverse + key, V::div(V::set1(1.0f), V::load(scale + key)));
        }
        for (int key = 0; key < recipe.tile; key += V::kLanes)
            V::store(sums + key, store_codes<true>(group(key, t.dim), t.dim, V::load(inverse + key), V::kLanes,
                                                   t.k_codes + key * t.dim));
        std::copy_n(scale, recipe.tile, t.k_scale);
        int16_t* const pair = t.k_pair;
        for (int key = 0; key < recipe.tile; ++key) {
            pair[2 * key] = static_cast<int16_t>(units[key]);
            pair[2 * key + 1] = static_cast<int16_t>(sums[key]);
        }
        *t.tile_base = finite ? base : kNan;
    }

    // tile_base of the biases of `keys` keys. Overwrites what lies behind them.
    float middle(float* bias, int keys) const {
        for (int key = keys; key % V::kLanes != 0; ++key) bias[key] = bias[0];
        F low = V::load(bias), high = low;
        for (int key = V::kLanes; key < keys; key += V::kLanes) {
            low = V::min(low, V::load(bias + key));
            high = V::max(high, V::load(bias + key));
        }
        return numerics::tile_base(-horizontal_max(V::sub(V::set1(0.0f), low)), horizontal_max(high),
                                   desc_.recipe.p_of_16_bits());
    }

    // As numerics/digits.h has it (k_scale_for_bias, bias_unit, bias_units), for a vector of keys.
    void key_scales(const PackTile& t, const float* needs, const float* locals, const float* largest_locals,
                    float* scales, int32_t* units) const {
        const F floor = V::set1(numerics::kScaleFloor), need = V::load(needs), zero = V::set1(0.0f);
        if (!desc_.recipe.key_bias()) {
            V::store(scales, V::max(floor, need));
            V::store(units, V::zero());
            return;
        }
        const auto limit = static_cast<float>(numerics::kBiasMax);
        const F fit = V::div(V::load(largest_locals), V::set1(limit * t.q_base * std::abs(t.a)));
        const F scale = V::max(floor, V::max(fit, need));
        const F unit = V::mul(V::mul(V::set1(t.q_base), scale), V::set1(t.a)), local = V::load(locals);
        F count = V::div(local, unit);
        count = V::select(V::either(V::equal(local, zero), V::equal(unit, zero)), zero, count);
        count = V::select(V::is_nan(count), zero, V::min(V::max(count, V::set1(-limit)), V::set1(limit)));
        V::store(scales, scale);
        V::store(units, V::round(count));
    }

    // V in lanes, mean removed and rotated; the needs of its tokens times 127.
    bool load_v(const PackTile& t, float* tops) {
        const Transform transform{t.dim_v, desc_.head_dim_v, t.v_mean, nullptr, desc_.recipe.rotate_v};
        bool finite = true;
        for (int token = 0; token < desc_.recipe.tile; token += V::kLanes)
            V::store(tops + token, load_keys<Dot::kNone>(transform, t.v_rows + token * t.dim_v, group(token, t.dim_v),
                                                         t.keys - token, &finite)
                                       .largest);
        return finite;
    }

    // The bias becomes log2(t / t_tile) where V is scaled per token.
    bool pack_v_codes(const PackTile& t, float* bias) {
        const int tile = desc_.recipe.tile;
        alignas(64) float tops[kMaxTile], inverse[kMaxTile];
        const bool finite = load_v(t, tops);
        const float* row_scale = t.v_channel_scale;
        switch (desc_.recipe.v_scale) {
            case VScale::kToken:
                token_scales(t, tops, bias, inverse);
                break;
            case VScale::kChannelTile:
                for (int64_t d = 0; d < t.dim_v; ++d) {
                    F top = V::set1(0.0f);
                    for (int token = 0; token < tile; token += V::kLanes)
                        top = largest(V::load(group(token, t.dim_v) + d * V::kLanes), top);
                    t.v_scale[d] = std::max(horizontal_max(top) / 127.0f, numerics::kScaleFloor);
                }
                row_scale = t.v_scale;
                break;
            default:
                break;
        }
        const float* const lanes = lanes_;
        const int64_t dim = t.dim_v, step = group_floats(dim);
        auto* const out = static_cast<int8_t*>(t.v_codes);
        for (int64_t d = 0; d < dim; ++d) {
            const F row_inverse = V::set1(row_scale ? 1.0f / row_scale[d] : 1.0f);
            for (int token = 0; token < tile; token += 4 * V::kLanes) {
                I code[4];
                CLARY_UNROLL for (int i = 0; i < 4; ++i) {
                    const F scale = row_scale ? row_inverse : V::load(inverse + token + i * V::kLanes);
                    const float* const from = lanes + (token / V::kLanes + i) * step + d * V::kLanes;
                    code[i] = V::round(V::mul(V::load(from), scale));
                }
                V::store_v_codes(out + d * tile + token, code[0], code[1], code[2], code[3]);
            }
        }
        return finite;
    }

    // Base-2 bias of a token with V weight w: log2(t / t_tile) = log2(15 / w).
    static const float* weight_bias() {
        struct Table {
            float bias[numerics::kWeightMax + 1] = {};
            Table() {
                for (int w = numerics::kWeightUnit; w <= numerics::kWeightMax; ++w)
                    bias[w] = static_cast<float>(std::log2(numerics::kWeightUnit / static_cast<double>(w)));
            }
        };
        static const Table table;
        return table.bias;
    }

    // As numerics/digits.h has it (v_weight, v_token_scale).
    void token_scales(const PackTile& t, const float* tops, float* bias, float* inverse) {
        const float* const table = weight_bias();
        const int tile = desc_.recipe.tile;
        alignas(64) int32_t weight[kMaxTile];
        F top = V::set1(0.0f);
        for (int token = 0; token < tile; token += V::kLanes)
            top = V::max(V::div(V::load(tops + token), V::set1(127.0f)), top);
        const float tile_scale = numerics::v_tile_scale(horizontal_max(top));
        *t.v_scale = tile_scale;
        const F scaled = V::set1(numerics::kWeightUnit * tile_scale), floor = V::set1(numerics::kScaleFloor);
        for (int token = 0; token < tile; token += V::kLanes) {
            const F need = V::div(V::load(tops + token), V::set1(127.0f));
            const F w = floor_between(V::div(scaled, V::max(floor, need)), numerics::kWeightUnit, numerics::kWeightMax);
            V::store(weight + token, V::round(w));
            V::store(inverse + token, V::div(V::set1(1.0f), V::div(scaled, w)));
        }
        for (int token = t.keys; token < tile; ++token) {
            weight[token] = 0;
            inverse[token] = 0.0f;
        }
        for (int token = 0; token < tile; ++token) bias[token] = table[weight[token]];
        uint8_t* const to = t.v_weight;
        for (int run = 0; run < tile; run += numerics::kVRun)
            for (int i = 0; i < numerics::kVRun; ++i)
                to[run + i] = static_cast<uint8_t>(weight[run + numerics::kVTokenPermutation[i]]);
    }

    // fp16 V beyond fp16's range is scaled down by a power of two for the tile.
    bool pack_v_floats(const PackTile& t) {
        const int tile = desc_.recipe.tile;
        alignas(64) float tops[kMaxTile];
        const bool finite = load_v(t, tops);
        float scale = 1;
        if (desc_.recipe.pv == Format::kFp16) {
            F top = V::set1(0.0f);
            for (int token = 0; token < tile; token += V::kLanes) top = V::max(V::load(tops + token), top);
            for (const float amount = horizontal_max(top); amount > 32768.0f * scale;) scale *= 2;
            *t.v_scale = scale;
        }
        const F inverse = V::set1(1.0f / scale);
        const DType dtype = desc_.recipe.pv == Format::kFp16 ? DType::kF16 : DType::kBF16;
        float* const rows = rows_;
        for (int token = 0; token < tile; token += V::kLanes) {
            const float* const x = group(token, t.dim_v);
            for (int64_t d = 0; d < t.dim_v; d += V::kLanes) {
                V::transpose(x + d * V::kLanes, V::kLanes, rows, V::kLanes);
                for (int i = 0; i < V::kLanes; ++i)
                    V::store16(static_cast<uint16_t*>(t.v_codes) + (token + i) * t.dim_v + d, dtype,
                               V::mul(V::load(rows + i * V::kLanes), inverse));
            }
        }
        return finite;
    }

    static float horizontal_max(F x) {
        alignas(64) float values[V::kLanes];
        V::store(values, x);
        return *std::max_element(values, values + V::kLanes);
    }

    const AttentionDesc& desc_;
    float* lanes_;  // [groups][dim, kLanes], see group(): K, V or Q
    float* rows_;   // [kLanes, dim], or the words of a group's codes
    float* range_;  // [2, dim]
    float* zeros_;  // [dim]
    int64_t bytes_;
};

}  // namespace clary::cpu
