// SPDX-License-Identifier: Apache-2.0
// Quantization on the CPU, in the transposed form that attention uses: lanes are tokens, so that maxima, sums, rotation
// and scales per token are vertical. One tile of keys (or a block of queries) at a time, in groups of one vector:
//
//   rows [tokens, dim] -> lanes [group][dim, kLanes] -> smooth, rotate, amax -> scales -> codes -> rows
//
// Every scale is decided from fp32 values by the functions of numerics/digits.h; codes are round(x * (1 / scale)).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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
    static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

    struct Lanes {
        float* x;  // [groups][dim, kLanes]
        int64_t dim;
        float* group(int token) const { return x + token / V::kLanes * dim * V::kLanes; }
    };

  public:
    static int64_t scratch_bytes(const AttentionDesc& desc) {
        Packer counter(desc, nullptr);
        return counter.bytes_;
    }

    Packer(const AttentionDesc& desc, void* base) : desc_(desc) {
        Scratch scratch(base);
        const int64_t dim = round_up(desc.head_dim, kDimMultiple), dim_v = round_up(desc.head_dim_v, kDimMultiple);
        k_ = {scratch.take<float>(kMaxTile * dim), dim};
        v_ = {scratch.take<float>(kMaxTile * dim_v), dim_v};
        words_ = scratch.take<int32_t>(std::max<int64_t>(std::max(dim, dim_v) / 4, V::kLanes) * V::kLanes);
        bytes_ = scratch.bytes();
    }

    // -- K and V --
    void pack(const PackTile& t) {
        const Recipe& recipe = desc_.recipe;
        const int tile = recipe.tile;
        bool finite = true;
        alignas(64) float bias[kMaxTile] = {};  // base-2 bias of each key
        alignas(64) float need[kMaxTile];

        for (int token = 0; token < tile; token += V::kLanes) {
            float* const x = k_.group(token);
            rows_to_lanes<V>(t.k_rows + token * t.dim, t.dim, t.dim, x, V::kLanes);
            finite &= make_finite(x, t.dim, token, t.keys);
            subtract(x, t.c_k, t.dim, token, t.keys);
        }
        // The sign of the scale lies in Q's codes, a is positive.
        if (recipe.smooth_q) dots(t.c_q, desc_.scale < 0 ? -t.a : t.a, tile, bias);
        for (int token = 0; token < tile; token += V::kLanes) {
            float* const x = k_.group(token);
            if (recipe.rotate_qk) rotate_lanes<V>(x, desc_.head_dim, V::kLanes);
            V::store(need + token, V::div(largest(x, t.dim), V::set1(127.0f)));
        }
        if (recipe.pv == Format::kInt8)
            finite &= pack_v_codes(t, bias);
        else
            finite &= pack_v_floats(t);
        pack_k_codes(t, bias, need, finite);
    }

    // -- Q --
    void pack(const PackQueries& q) {
        const Recipe& recipe = desc_.recipe;
        alignas(64) float need[kQueryBlock], shift[kQueryBlock], scale[kQueryBlock] = {}, inverse[kQueryBlock] = {};
        bool row_finite[kQueryBlock], finite = true;
        for (int row = 0; row < q.rows; row += V::kLanes)
            finite &= load_queries(q, row, k_.group(row), row_finite + row);
        if (q.q_shift) {
            dots(q.c_k, static_cast<float>(desc_.scale), q.rows, shift);
            for (int row = 0; row < q.rows; ++row) q.q_shift[row] = row_finite[row] ? shift[row] : kNan;
        }
        for (int row = 0; row < q.rows; row += V::kLanes) {
            float* const x = k_.group(row);
            finish_queries(q, x);
            if (!finite) clear_lanes(x, q.dim, row_finite + row, q.rows - row);
            V::store(need + row, V::div(largest(x, q.dim), V::set1(127.0f)));
        }
        spread_largest(need, q.rows, [&](int row) {
            return numerics::q_group(recipe.granularity, tile_family(recipe.family), q.first_row + row);
        });
        for (int row = 0; row < q.rows; ++row) {
            int repeat = 0;
            scale[row] = std::max(need[row], numerics::kScaleFloor);
            // Louder than a frozen q_base allows: its own scale, and the key bias is added in fp32 (repeat 0).
            if (recipe.key_bias() && need[row] <= q.q_base) {
                repeat = numerics::q_repeat(q.q_base, need[row]);
                scale[row] = q.q_base / static_cast<float>(repeat);
            }
            inverse[row] = 1.0f / scale[row];
            if (q.q_repeat) q.q_repeat[row] = static_cast<uint8_t>(repeat);
            q.q_scale[row] = row_finite[row] ? scale[row] : kNan;
        }
        for (int row = 0; row < q.rows; row += V::kLanes)
            store_codes(k_.group(row), q.dim, inverse + row, std::min(V::kLanes, q.rows - row), q.q_codes + row * q.dim,
                        nullptr);
    }

    void needs(const PackQueries& q, QueryNeeds* total) {
        alignas(64) float need[kQueryBlock];
        bool row_finite[kQueryBlock];
        for (int row = 0; row < q.rows; row += V::kLanes) {
            float* const x = k_.group(row);
            load_queries(q, row, x, row_finite + row);
            finish_queries(q, x);
            V::store(need + row, V::div(largest(x, q.dim), V::set1(127.0f)));
        }
        for (int row = 0; row < q.rows; ++row) {
            if (!row_finite[row]) continue;
            total->largest = std::max(total->largest, need[row]);
            total->sum += static_cast<double>(need[row]);
            total->rows += 1;
        }
    }

    // Smallest and largest value of each rotated V channel over `count` rows [count, dim_v]; non-finite rows are left
    // out. Widens low and high.
    void channel_range(float* rows, int count, float* low, float* high) {
        const int64_t dim = v_.dim;
        for (int row = 0; row < count; row += V::kLanes) {
            rows_to_lanes<V>(rows + row * dim, dim, dim, v_.x, V::kLanes);
            make_finite(v_.x, dim, row, count);
            if (desc_.recipe.rotate_v) rotate_lanes<V>(v_.x, desc_.head_dim_v, V::kLanes);
            lanes_to_rows<V>(v_.x, V::kLanes, dim, rows + row * dim, dim);
        }
        for (int row = 0; row < count; ++row)
            for (int64_t d = 0; d < dim; ++d) {
                low[d] = std::min(low[d], rows[row * dim + d]);
                high[d] = std::max(high[d], rows[row * dim + d]);
            }
    }

    // Adds each column of rows [count, dim] to sums; values that are not finite are left out and counted.
    static void add_columns(const float* rows, int count, int64_t dim, double* sums, double* left_out) {
        constexpr int kAtOnce = 8;  // vectors of columns, so that rows are read as they lie
        int64_t d = 0;
        for (; d + kAtOnce * V::kLanes <= dim; d += kAtOnce * V::kLanes)
            add_columns_of<kAtOnce>(rows + d, count, dim, sums + d, left_out + d);
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

    // Replaces lanes that hold a non-finite value by zeros, and says whether there were none. `first`, `count`: the
    // lanes' first token and the valid tokens of the whole.
    static bool make_finite(float* x, int64_t dim, int first, int count, bool* lane_finite = nullptr) {
        // x * 0 is NaN for NaN and infinity.
        const F probe = in_fours(
            x, dim, [](F value, F sum) { return V::fma(value, V::set1(0.0f), sum); },
            [](F a, F b) { return V::add(a, b); });
        if (!V::any(V::is_nan(probe))) {
            for (int i = 0; lane_finite && i < V::kLanes && first + i < count; ++i) lane_finite[i] = true;
            return true;
        }
        alignas(64) float values[V::kLanes];
        V::store(values, probe);
        for (int i = 0; i < V::kLanes; ++i) {
            const bool bad = std::isnan(values[i]);
            if (lane_finite && first + i < count) lane_finite[i] = !bad;
            for (int64_t d = 0; bad && d < dim; ++d) x[d * V::kLanes + i] = 0;
        }
        return false;
    }

    // x -= vector, and zeros in the lanes past the last token.
    static void subtract(float* x, const float* vector, int64_t dim, int first, int count) {
        if (vector)
            for (int64_t d = 0; d < dim; ++d) {
                float* const at = x + d * V::kLanes;
                V::store(at, V::sub(V::load(at), V::set1(vector[d])));
            }
        for (int i = std::max(count - first, 0); i < V::kLanes; ++i)
            for (int64_t d = 0; d < dim; ++d) x[d * V::kLanes + i] = 0;
    }

    static F largest(const float* x, int64_t dim) {
        return in_fours(
            x, dim, [](F value, F top) { return V::max(V::abs(value), top); }, [](F a, F b) { return V::max(a, b); });
    }

    // Folds the channels of a group into zeros in four chains, so that none waits for the one before.
    template <typename Fold, typename Join>
    static F in_fours(const float* x, int64_t dim, Fold&& fold, Join&& join) {
        F part[4];
        CLARY_UNROLL for (int i = 0; i < 4; ++i) part[i] = V::set1(0.0f);
        for (int64_t d = 0; d < dim; d += 4) CLARY_UNROLL for (int i = 0; i < 4; ++i) {
                part[i] = fold(V::load(x + (d + i) * V::kLanes), part[i]);
            }
        return join(join(part[0], part[1]), join(part[2], part[3]));
    }

    // factor times the dot product of each token's channels, first to last, with a vector; four groups side by side.
    void dots(const float* vector, float factor, int tokens, float* to) const {
        int token = 0;
        for (; token + 4 * V::kLanes <= tokens; token += 4 * V::kLanes) dots_of<4>(vector, factor, token, to);
        for (; token < tokens; token += V::kLanes) dots_of<1>(vector, factor, token, to);
    }
    template <int kGroups>
    void dots_of(const float* vector, float factor, int token, float* to) const {
        F dot[kGroups];
        CLARY_UNROLL for (int g = 0; g < kGroups; ++g) dot[g] = V::set1(0.0f);
        for (int64_t d = 0; d < k_.dim; ++d) {
            const F v = V::set1(vector[d]);
            CLARY_UNROLL for (int g = 0; g < kGroups; ++g) {
                dot[g] = V::fma(V::load(k_.group(token + g * V::kLanes) + d * V::kLanes), v, dot[g]);
            }
        }
        CLARY_UNROLL for (int g = 0; g < kGroups; ++g) {
            V::store(to + token + g * V::kLanes, V::mul(dot[g], V::set1(factor)));
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

    // False where a row is not finite; such a row is zeros then.
    bool load_queries(const PackQueries& q, int row, float* x, bool* row_finite) {
        rows_to_lanes<V>(q.q_rows + row * q.dim, q.dim, q.dim, x, V::kLanes);
        return make_finite(x, q.dim, row, q.rows, row_finite);
    }
    static void clear_lanes(float* x, int64_t dim, const bool* lane_finite, int count) {
        for (int i = 0; i < V::kLanes && i < count; ++i)
            for (int64_t d = 0; !lane_finite[i] && d < dim; ++d) x[d * V::kLanes + i] = 0;
    }

    // q - c_q with the sign of scale, rotated. Scale 0: no query counts.
    void finish_queries(const PackQueries& q, float* x) {
        const float sign = desc_.scale > 0 ? 1.0f : desc_.scale < 0 ? -1.0f : 0.0f;
        for (int64_t d = 0; d < q.dim; ++d) {
            float* const at = x + d * V::kLanes;
            const F value = q.c_q ? V::sub(V::load(at), V::set1(q.c_q[d])) : V::load(at);
            V::store(at, V::mul(value, V::set1(sign)));
        }
        if (desc_.recipe.rotate_qk) rotate_lanes<V>(x, desc_.head_dim, V::kLanes);
    }

    // Codes of up to kLanes tokens to rows of `dim` bytes; sums: of each token's codes, or null.
    void store_codes(const float* x, int64_t dim, const float* inverse_scale, int tokens, int8_t* rows, int32_t* sums) {
        const F inverse = V::load(inverse_scale);
        I sum = V::zero();
        for (int64_t d = 0; d < dim; d += 4) {
            I code[4];
            CLARY_UNROLL for (int i = 0; i < 4; ++i) {
                code[i] = V::round(V::mul(V::load(x + (d + i) * V::kLanes), inverse));
                sum = V::add(sum, code[i]);
            }
            V::store(words_ + d / 4 * V::kLanes, V::pack_codes(code[0], code[1], code[2], code[3]));
        }
        if (sums) V::store(sums, sum);
        const int64_t words = dim / 4;  // per token
        int64_t w = 0;
        if (tokens == V::kLanes)
            for (; w + V::kLanes <= words; w += V::kLanes)
                V::transpose(reinterpret_cast<const float*>(words_ + w * V::kLanes), V::kLanes,
                             reinterpret_cast<float*>(rows) + w, words);
        for (int token = 0; token < tokens; ++token)
            for (int64_t i = w; i < words; ++i)
                std::memcpy(rows + token * dim + 4 * i, words_ + i * V::kLanes + token, 4);
    }

    void pack_k_codes(const PackTile& t, float* bias, float* need, bool finite) {
        const Recipe& recipe = desc_.recipe;
        const auto group = [&](int key) {
            return numerics::k_group(recipe.granularity, tile_family(recipe.family), key);
        };
        alignas(64) float inverse[kMaxTile] = {};
        alignas(64) int32_t sums[kMaxTile] = {};
        float base = 0;
        if (recipe.key_bias() && t.keys > 0) {
            const auto [low, high] = std::minmax_element(bias, bias + t.keys);
            base = numerics::tile_base(*low, *high, recipe.p_of_16_bits());
        }
        float local[kMaxTile] = {}, largest_local[kMaxTile] = {};
        for (int key = 0; key < t.keys; ++key) {
            local[key] = recipe.key_bias() ? bias[key] - base : 0.0f;
            largest_local[key] = std::abs(local[key]);
        }
        spread_largest(need, t.keys, group);
        spread_largest(largest_local, t.keys, group);
        for (int key = 0; key < recipe.tile; ++key) {
            float scale = numerics::kScaleFloor;
            int16_t units = 0;
            if (key < t.keys && recipe.key_bias()) {
                scale = numerics::k_scale_for_bias(need[key], largest_local[key], t.q_base, t.a);
                units = numerics::bias_units(local[key], numerics::bias_unit(t.q_base, scale, t.a));
            } else if (key < t.keys) {
                scale = std::max(need[key], numerics::kScaleFloor);
            }
            t.k_scale[key] = scale;
            t.k_pair[2 * key] = units;
            inverse[key] = 1.0f / scale;
        }
        for (int key = 0; key < recipe.tile; key += V::kLanes)
            store_codes(k_.group(key), t.dim, inverse + key, V::kLanes, t.k_codes + key * t.dim, sums + key);
        for (int key = 0; key < recipe.tile; ++key) t.k_pair[2 * key + 1] = static_cast<int16_t>(sums[key]);
        *t.tile_base = finite ? base : kNan;
    }

    // V in lanes, mean removed and rotated.
    bool load_v(const PackTile& t, bool transform) {
        bool finite = true;
        for (int token = 0; token < desc_.recipe.tile; token += V::kLanes) {
            float* const x = v_.group(token);
            rows_to_lanes<V>(t.v_rows + token * t.dim_v, t.dim_v, t.dim_v, x, V::kLanes);
            finite &= make_finite(x, t.dim_v, token, t.keys);
            subtract(x, t.v_mean, t.dim_v, token, t.keys);
            if (transform && desc_.recipe.rotate_v) rotate_lanes<V>(x, desc_.head_dim_v, V::kLanes);
        }
        return finite;
    }

    // Adds log2(t / t_tile) to the bias where V is scaled per token.
    bool pack_v_codes(const PackTile& t, float* bias) {
        const bool finite = load_v(t, true);
        const int tile = desc_.recipe.tile;
        alignas(64) float inverse[kMaxTile];
        const float* row_scale = t.v_channel_scale;
        switch (desc_.recipe.v_scale) {
            case VScale::kToken:
                token_scales(t, bias, inverse);
                break;
            case VScale::kChannelTile:
                for (int64_t d = 0; d < t.dim_v; ++d) {
                    F top = V::set1(0.0f);
                    for (int token = 0; token < tile; token += V::kLanes)
                        top = V::max(V::abs(V::load(v_.group(token) + d * V::kLanes)), top);
                    t.v_scale[d] = std::max(horizontal_max(top) / 127.0f, numerics::kScaleFloor);
                }
                row_scale = t.v_scale;
                break;
            default:
                break;
        }
        alignas(16) int8_t codes[kMaxTile];
        auto* const out = static_cast<int8_t*>(t.v_codes);
        for (int64_t d = 0; d < t.dim_v; ++d) {
            const F row_inverse = V::set1(row_scale ? 1.0f / row_scale[d] : 1.0f);
            for (int token = 0; token < tile; token += V::kLanes) {
                const F scale = row_scale ? row_inverse : V::load(inverse + token);
                V::narrow(V::round(V::mul(V::load(v_.group(token) + d * V::kLanes), scale)), codes + token);
            }
            V::permute_runs(codes, tile, out + d * tile);
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

    void token_scales(const PackTile& t, float* bias, float* inverse) {
        const float* const table = weight_bias();
        const int tile = desc_.recipe.tile;
        alignas(64) float need[kMaxTile];
        F top = V::set1(0.0f);
        for (int token = 0; token < tile; token += V::kLanes) {
            const F amount = V::div(largest(v_.group(token), t.dim_v), V::set1(127.0f));
            V::store(need + token, amount);
            top = V::max(amount, top);
        }
        const float tile_scale = numerics::v_tile_scale(horizontal_max(top));
        *t.v_scale = tile_scale;
        for (int token = 0; token < tile; ++token) {
            const int weight = token < t.keys ? numerics::v_weight(tile_scale, need[token]) : 0;
            t.v_weight[numerics::v_position(token)] = static_cast<uint8_t>(weight);
            inverse[token] = weight ? 1.0f / numerics::v_token_scale(tile_scale, weight) : 0.0f;
            if (weight) bias[token] += table[weight];
        }
    }

    // fp16 V beyond fp16's range is scaled down by a power of two for the tile.
    bool pack_v_floats(const PackTile& t) {
        const bool finite = load_v(t, true);
        const int tile = desc_.recipe.tile;
        float scale = 1;
        if (desc_.recipe.pv == Format::kFp16) {
            F top = V::set1(0.0f);
            for (int token = 0; token < tile; token += V::kLanes) top = V::max(largest(v_.group(token), t.dim_v), top);
            for (const float amount = horizontal_max(top); amount > 32768.0f * scale;) scale *= 2;
            *t.v_scale = scale;
        }
        const F inverse = V::set1(1.0f / scale);
        const DType dtype = desc_.recipe.pv == Format::kFp16 ? DType::kF16 : DType::kBF16;
        for (int token = 0; token < tile; token += V::kLanes) {
            float* const x = v_.group(token);
            for (int64_t d = 0; scale != 1 && d < t.dim_v; ++d)
                V::store(x + d * V::kLanes, V::mul(V::load(x + d * V::kLanes), inverse));
            // `words` is not in use: it holds one group of rows on its way to 16 bits.
            auto* const rows = reinterpret_cast<float*>(words_);
            for (int64_t d = 0; d < t.dim_v; d += V::kLanes) {
                V::transpose(x + d * V::kLanes, V::kLanes, rows, V::kLanes);
                for (int i = 0; i < V::kLanes; ++i)
                    V::store16(static_cast<uint16_t*>(t.v_codes) + (token + i) * t.dim_v + d, dtype,
                               V::load(rows + i * V::kLanes));
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
    Lanes k_, v_;
    int32_t* words_;
    int64_t bytes_;
};

}  // namespace clary::cpu
