// SPDX-License-Identifier: Apache-2.0
// The CPU attention kernel: one block of queries against all its key tiles, fused, never materializing S.
//
//   O = softmax(scale Q K^T + biases) V          lanes = queries (S^T = K Q^T, O^T = V^T P^T)
//
//   for each tile of keys (64 or 128):
//     scores     x[key][query] = float(K . Q) * k_scale[key]          int8: exact int32, key bias and u8 offset by one
//                                                                     16-bit dot product per accumulator
//     mask       x = -inf where masked; biases join here              only tiles that need it
//     softmax    m = max over the tile; P = 2^(x f - m)               int8: P = round(255 ..), a byte
//     PV         T = V^T P, exact in int32 (or fp32)
//                O += float(T) 2^(m + base - R),  l likewise          R: the row's reference, moves rarely
//   finish       O / l, rotate back, add V's mean, convert, store; LSE
//
// f = q_scale * a is a lane's factor, base the tile's bias base. P of a tile depends on no other tile (tile-local maxima,
// docs/decisions/0002-int8-pv-default.md), so results do not depend on how tiles are cut into tasks.
//
// Working set of one task at head dim 64, tile 128, 32 queries: x 16 KiB, P 4 KiB, O 8 KiB, Q 2 KiB, K and V tile 8 KiB
// each. The same template serves all tiers (V: cpu/<tier>/vec.h) and recipes (kQk, kPv).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/element.h"
#include "cpu/inner_blocks.h"
#include "cpu/scratch.h"
#include "cpu/tier.h"
#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/log_add_exp.h"
#include "numerics/permutation.h"

namespace clary::cpu {

// C vectors of queries per task.
template <class V, Format kQk, Format kPv, int C>
class AttentionKernel {
    using F = typename V::F;
    using I = typename V::I;
    using M = typename V::M;
    static constexpr int kWidth = C * V::kLanes;  // queries of the block
    static constexpr bool kIntQk = kQk == Format::kInt8;
    static constexpr bool kIntPv = kPv == Format::kInt8;
    static constexpr float kInfinity = std::numeric_limits<float>::infinity();
    // P is a byte 255 2^.., or a float 2^..
    static constexpr float kPLog2Top = kIntPv ? numerics::kPUint8Log2Max : 0.0f;
    static constexpr float kPTop = kIntPv ? numerics::kPUint8Max : 1.0f;

  public:
    AttentionKernel(const AttendProblem& problem, const AttendTask& task, void* scratch)
        : p_(problem),
          t_(task),
          desc_(problem.desc),
          tile_(problem.desc.recipe.tile),
          buffers_(problem.desc, scratch) {}

    static int64_t scratch_bytes(const AttentionDesc& desc) { return Buffers(desc, nullptr).bytes; }

    void run() {
        load_queries();
        set_ranges();
        const int64_t tiles = (t_.sequence.kv_len + tile_ - 1) / tile_;
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t first_key = tile * tile_;
            if (first_key >= keep_max_ && (first_key + tile_ <= begin_min_ || first_key >= end_max_)) continue;
            const int keys = keys_to_compute(first_key);
            scores(tile, keys);
            if (needs_mask(first_key, keys)) mask(first_key, keys);
            const bool moved = softmax(tile, keys);
            if (moved) rescale_output();
            accumulate(tile, keys);
        }
        finish();
    }

  private:
    // -- memory --
    struct Buffers {
        Buffers(const AttentionDesc& desc, void* base) {
            Scratch scratch(base);
            const int64_t dim = round_up(desc.head_dim, kDimMultiple), dim_v = round_up(desc.head_dim_v, kDimMultiple);
            const int64_t tile = desc.recipe.tile;
            q = scratch.take<float>(dim * kWidth);  // (dim, kWidth) fp32, or (dim / kDot, kWidth) code operands
            x = scratch.take<float>(std::max<int64_t>(tile * kWidth, V::kLanes * dim_v));  // (tile, kWidth)
            p = scratch.take<int32_t>(kIntPv ? tile / V::kDot * kWidth : 0);               // (tile / kDot, kWidth)
            o = scratch.take<float>(dim_v * kWidth);                                       // (dim_v, kWidth)
            bias = scratch.take<float>(desc.biased() || desc.recipe.key_bias() ? tile * kWidth : 0);
            v_tile = scratch.take<float>(kPv == Format::kFp16 || kPv == Format::kBf16 ? tile * dim_v : 0);
            k_operand = scratch.take<char>(kIntQk ? tile * dim * V::kRowScratch : 0);
            v_operand = scratch.take<char>(kIntPv ? tile * dim_v * V::kRowScratch : 0);
            bytes = scratch.bytes();
        }
        float *q, *x, *o, *bias, *v_tile;
        int32_t* p;
        char *k_operand, *v_operand;
        int64_t bytes;
    };

    // -- queries --
    int64_t q_head(int lane) const {
        const int64_t group = desc_.q_heads_per_kv();
        return t_.kv_head * group + (t_.first_row + lane) % group;
    }
    int64_t query(int lane) const { return (t_.first_row + lane) / desc_.q_heads_per_kv(); }

    void load_queries() {
        std::memset(buffers_.q, 0, static_cast<size_t>(p_.dim * kWidth) * sizeof(float));
        std::memset(buffers_.o, 0, static_cast<size_t>(p_.dim_v * kWidth) * sizeof(float));
        for (int lane = 0; lane < kWidth; ++lane) {
            factor_[lane] = p_.a;
            pair_[lane] = 0;
            float_bias_[lane] = 0;
            shift_[lane] = 0;
            reference_[lane] = -kInfinity;
            sum_[lane] = exact_sum_[lane] = 0;
            if (lane >= t_.rows) continue;
            const int64_t row = p_.q_rows.begin(t_.b, q_head(lane), desc_.q_heads, t_.sequence.q_begin) + query(lane);
            if constexpr (kIntQk) {
                V::spread_codes(static_cast<const int8_t*>(p_.q_codes) + row * p_.dim, p_.dim,
                                reinterpret_cast<int32_t*>(buffers_.q) + lane, kWidth);
                factor_[lane] = p_.q_scale[row] * p_.a;
                const int32_t repeat = p_.q_repeat ? p_.q_repeat[row] : 0;
                pair_[lane] = (repeat & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(-V::kCodeBias) << 16);
                if (p_.q_repeat && repeat == 0) {
                    float_bias_[lane] = p_.q_base[t_.b * desc_.kv_heads + t_.kv_head] * p_.a;
                    any_float_bias_ = true;
                }
                if (p_.q_shift) shift_[lane] = p_.q_shift[row];
            } else {
                const float* from = static_cast<const float*>(p_.q_codes) + row * p_.dim;
                for (int64_t d = 0; d < p_.dim; ++d) buffers_.q[d * kWidth + lane] = from[d];
            }
        }
    }

    // Visible keys of each lane; lanes past the last row see what row 0 sees (their results are dropped).
    void set_ranges() {
        for (int lane = 0; lane < kWidth; ++lane) {
            const int64_t position = query(lane < t_.rows ? lane : 0) + t_.sequence.offset;
            ranges_[lane] = key_range(desc_, t_.sequence, position);
            const KeyRange& range = ranges_[lane];
            begin_min_ = lane ? std::min(begin_min_, range.begin) : range.begin;
            begin_max_ = lane ? std::max(begin_max_, range.begin) : range.begin;
            end_min_ = lane ? std::min(end_min_, range.end) : range.end;
            end_max_ = lane ? std::max(end_max_, range.end) : range.end;
            keep_max_ = lane ? std::max(keep_max_, range.keep_end) : range.keep_end;
        }
    }

    // Keys of the tile that any lane sees, rounded up to a run of V's permutation; the rest is not computed.
    int keys_to_compute(int64_t first_key) const {
        const int64_t visible = std::min<int64_t>(std::max(end_max_, keep_max_) - first_key, tile_);
        return static_cast<int>(round_up(visible, numerics::kVRun));
    }

    bool needs_mask(int64_t first_key, int keys) const {
        const bool all_visible = begin_max_ <= first_key && end_min_ >= first_key + keys;
        return !all_visible || desc_.biased() || any_float_bias_;
    }

    int64_t kv_row() const { return p_.kv_rows.begin(t_.b, t_.kv_head, desc_.kv_heads, t_.sequence.kv_begin); }

    // -- S^T = K Q^T --
    void scores(int64_t tile, int keys) {
        const int64_t row = kv_row() + tile * tile_;
        F top[C];
        CLARY_UNROLL for (int c = 0; c < C; ++c) { top[c] = V::set1(-kInfinity); }
        if constexpr (kIntQk) {
            const int32_t* k = V::row_operand(static_cast<const int8_t*>(p_.k_codes) + row * p_.dim, keys * p_.dim,
                                              buffers_.k_operand);
            const int64_t steps = p_.dim / V::kDot;
            I pair[C];
            CLARY_UNROLL for (int c = 0; c < C; ++c) { pair[c] = V::load(pair_ + c * V::kLanes); }
            for (int key = 0; key < keys; key += V::kRows) {
                I sum[V::kRows][C];
                CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                    int32_t k_pair;  // bias units | sum of codes
                    std::memcpy(&k_pair, p_.k_pair + 2 * (row + key + r), sizeof(k_pair));
                    CLARY_UNROLL for (int c = 0; c < C; ++c) {
                        sum[r][c] = V::dot16(V::zero(), pair[c], V::set1(k_pair));
                    }
                }
                dot_block<V, V::kRows, C>(sum, k + key * steps, steps, reinterpret_cast<const int32_t*>(buffers_.q),
                                          steps);
                CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                    const F k_scale = V::set1(p_.k_scale[row + key + r]);
                    CLARY_UNROLL for (int c = 0; c < C; ++c) {
                        const F x = V::mul(V::to_float(sum[r][c]), k_scale);
                        top[c] = V::max(x, top[c]);
                        V::store(buffers_.x + (key + r) * kWidth + c * V::kLanes, x);
                    }
                }
            }
        } else {
            const float* k = static_cast<const float*>(p_.k_codes) + row * p_.dim;
            for (int key = 0; key < keys; key += V::kRows) {
                F sum[V::kRows][C];
                CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                    CLARY_UNROLL for (int c = 0; c < C; ++c) { sum[r][c] = V::set1(0.0f); }
                }
                fma_block<V, V::kRows, C>(sum, k + key * p_.dim, p_.dim, 1, buffers_.q, p_.dim);
                CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                    CLARY_UNROLL for (int c = 0; c < C; ++c) {
                        top[c] = V::max(sum[r][c], top[c]);
                        V::store(buffers_.x + (key + r) * kWidth + c * V::kLanes, sum[r][c]);
                    }
                }
            }
        }
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            const F factor = V::load(factor_ + c * V::kLanes);
            V::store(tile_factor_ + c * V::kLanes, factor);
            // -inf * NaN aside, a NaN factor (a poisoned row) makes the maximum NaN, and with it the whole row.
            V::store(tile_max_ + c * V::kLanes, V::mul(factor, top[c]));
        }
    }

    // -- masks and biases --
    void mask(int64_t first_key, int keys) {
        const bool biased = desc_.biased() || any_float_bias_;
        if (biased) fill_bias(first_key, keys);
        alignas(64) int32_t begin[kWidth], end[kWidth], keep[kWidth];
        const auto within = [&](int64_t key) {
            return static_cast<int32_t>(std::clamp<int64_t>(key - first_key, 0, keys));
        };
        for (int lane = 0; lane < kWidth; ++lane) {
            begin[lane] = within(ranges_[lane].begin);
            end[lane] = within(ranges_[lane].end);
            keep[lane] = within(ranges_[lane].keep_end);
        }
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            const int at = c * V::kLanes;
            const I from = V::load(begin + at), to = V::load(end + at), kept = V::load(keep + at);
            const F factor = V::load(factor_ + at), masked = V::set1(-kInfinity);
            F top = masked;
            M seen = V::none(), nan = V::none();
            for (int key = 0; key < keys; ++key) {
                float* const x = buffers_.x + key * kWidth + at;
                F value = V::mul(V::load(x), factor);
                if (biased) {
                    // A bias of -inf hides the key even where its score is NaN.
                    const F bias = V::load(buffers_.bias + key * kWidth + at);
                    value = V::select(V::equal(bias, masked), masked, V::add(value, bias));
                }
                value = V::select(V::in_range(key, from, to, kept), value, masked);
                V::store(x, value);
                top = V::max(value, top);
                seen = V::either(seen, V::not_equal(value, masked));
                nan = V::either(nan, V::is_nan(value));
            }
            top = V::select(nan, V::set1(std::numeric_limits<float>::quiet_NaN()), top);
            V::store(tile_max_ + at, V::select(seen, top, masked));
            V::store(tile_factor_ + at, V::set1(1.0f));
        }
    }

    // Boolean and additive masks, ALiBi, and the key bias of rows that it could not ride the MMA for. Base 2.
    void fill_bias(int64_t first_key, int keys) {
        std::memset(buffers_.bias, 0, static_cast<size_t>(keys * kWidth) * sizeof(float));
        const TensorView& m = desc_.mask;
        const int valid = static_cast<int>(std::min<int64_t>(keys, t_.sequence.kv_len - first_key));
        for (int lane = 0; lane < t_.rows; ++lane) {
            const int64_t head = q_head(lane), i = query(lane);
            float* const bias = buffers_.bias + lane;
            if (desc_.mask_kind != MaskKind::kNone) {
                const char* at = static_cast<const char*>(m.data) +
                                 (t_.b * m.stride[0] + head * m.stride[1] + i * m.stride[2] + first_key * m.stride[3]) *
                                     dtype_size(m.dtype);
                const int64_t step = m.stride[3] * dtype_size(m.dtype);
                for (int key = 0; key < valid; ++key, at += step)
                    bias[key * kWidth] = desc_.mask_kind == MaskKind::kBoolean
                                             ? (*at ? 0.0f : -kInfinity)
                                             : load_element(at, m.dtype) * numerics::kLog2E;
            }
            if (desc_.alibi_slopes.given()) {
                const float slope =
                    numerics::kLog2E *
                    static_cast<const float*>(desc_.alibi_slopes.data)[head * desc_.alibi_slopes.stride[0]];
                const int64_t distance = i + t_.sequence.offset - first_key;
                for (int key = 0; key < valid; ++key)
                    bias[key * kWidth] -= slope * static_cast<float>(std::abs(distance - key));
            }
            if (float_bias_[lane] != 0) {
                const int64_t row = kv_row() + first_key;
                for (int key = 0; key < valid; ++key)
                    bias[key * kWidth] +=
                        static_cast<float>(p_.k_pair[2 * (row + key)]) * p_.k_scale[row + key] * float_bias_[lane];
            }
        }
    }

    // -- online softmax over tile-local maxima --
    // Makes P of the tile and its weight c = 2^(m + base - R); true where a lane's reference R moved.
    bool softmax(int64_t tile, int keys) {
        const F base = V::set1(p_.tile_base ? p_.tile_base[kv_row() / tile_ + tile] : 0.0f);
        const F masked = V::set1(-kInfinity), zero = V::set1(0.0f);
        bool moved = false;
        // P of 16 bits is taken against a whole power of two, so that its rounding does not depend on the tile.
        if constexpr (kPv == Format::kFp16 || kPv == Format::kBf16)
            for (float& top : tile_max_) top = std::ceil(top);
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            const int at = c * V::kLanes;
            const F top = V::load(tile_max_ + at);
            const M seen = V::not_equal(top, masked);
            const F lift = V::add(top, base), reference = V::load(reference_ + at);
            const M first = V::both(seen, V::equal(reference, masked));
            const M jump = V::both(seen, V::greater(V::sub(lift, reference), V::set1(numerics::kReferenceSlack)));
            const F next = V::select(V::either(first, jump), lift, reference);
            // First tile of a lane: O and l are still zero, so any finite factor will do.
            const F rescale =
                V::select(jump, V::select(first, zero, V::template exp2<6>(V::sub(reference, next))), V::set1(1.0f));
            moved |= V::any(jump);
            V::store(rescale_ + at, rescale);
            V::store(reference_ + at, next);
            const F weight = V::select(seen, V::template exp2<6>(V::sub(lift, next)), zero);
            V::store(weight_ + at, weight);

            F factor = V::load(tile_factor_ + at);
            F top_or_zero = V::select(seen, top, zero);
            if (V::any(V::greater(V::abs(top_or_zero), V::set1(kLargeScore)))) {
                subtract_maximum(keys, at, factor, top_or_zero);
                factor = V::set1(1.0f);
                top_or_zero = zero;
            }
            const F shift = V::sub(V::set1(kPLog2Top), top_or_zero);
            F l = V::mul(V::load(sum_ + at), rescale);
            F exact_sum = V::set1(0.0f);
            const F sum = desc_.want_lse ? make_p<true>(tile, keys, at, factor, shift, &exact_sum)
                                         : make_p<false>(tile, keys, at, factor, shift, &exact_sum);
            l = V::fma(sum, weight, l);
            V::store(sum_ + at, l);
            const F exact = V::mul(V::load(exact_sum_ + at), rescale);
            V::store(exact_sum_ + at, V::fma(exact_sum, weight, exact));
        }
        return moved;
    }

    // Returns the row sum of P as rounded; *exact_sum, for the LSE: as it was before rounding.
    template <bool kWantLse>
    F make_p(int64_t tile, int keys, int at, F factor, F shift, F* exact_sum) {
        if constexpr (kIntPv)
            return make_p_bytes<kWantLse>(tile, keys, at, factor, shift, exact_sum);
        else
            return make_p_floats<kWantLse>(keys, at, factor, shift, exact_sum);
    }

    // P = round(255 2^(x - m)) as dot operands, in the order of V's tokens; sums are weighted per token.
    template <bool kWantLse>
    F make_p_bytes(int64_t tile, int keys, int at, F factor, F shift, F* exact_sum) {
        static constexpr uint8_t kOnes[4] = {1, 1, 1, 1};
        const bool weighted = p_.v_weight != nullptr;
        const uint8_t* weights = weighted ? p_.v_weight + kv_row() + tile * tile_ : kOnes;
        I sum = V::zero();
        for (int position = 0; position < keys; position += 4) {
            I p[4];
            CLARY_UNROLL for (int i = 0; i < 4; ++i) {
                const int64_t key = numerics::v_token(position + i);
                const F exact = V::template exp2<4>(V::fma(V::load(buffers_.x + key * kWidth + at), factor, shift));
                p[i] = V::round(exact);
                if constexpr (kWantLse)
                    *exact_sum =
                        V::fma(exact, V::set1(weighted ? static_cast<float>(weights[position + i]) : 1.0f), *exact_sum);
            }
            int32_t* const to = buffers_.p + position / V::kDot * kWidth + at;
            V::store_p(to, kWidth, p[0], p[1], p[2], p[3]);
            sum = V::weigh(sum, to, kWidth, weights + (weighted ? position : 0));
        }
        const F total = V::to_float(sum);
        if (weighted) *exact_sum = V::mul(*exact_sum, V::set1(1.0f / numerics::kWeightUnit));
        return weighted ? V::mul(total, V::set1(1.0f / numerics::kWeightUnit)) : total;
    }

    // Scores beyond this lose bits that P needs: x f - m is then formed from products rounded as the maximum was.
    static constexpr float kLargeScore = 4096.0f;  // base 2; half a unit in the last place is 2^-12

    void subtract_maximum(int keys, int at, F factor, F top) {
        for (int key = 0; key < keys; ++key) {
            float* const x = buffers_.x + key * kWidth + at;
            V::store(x, V::sub(V::mul(V::load(x), factor), top));
        }
    }

    // P = 2^(x - m), rounded to the format of PV, in place of x.
    template <bool kWantLse>
    F make_p_floats(int keys, int at, F factor, F shift, F* exact_sum) {
        F sum = V::set1(0.0f);
        for (int key = 0; key < keys; ++key) {
            float* const x = buffers_.x + key * kWidth + at;
            const F exact = V::template exp2 < kPv == Format::kFp32 ? 6 : 4 > (V::fma(V::load(x), factor, shift));
            F p = exact;
            if constexpr (kPv == Format::kFp16) p = V::round_fp16(exact);
            if constexpr (kPv == Format::kBf16) p = V::round_bf16(exact);
            if constexpr (kWantLse) *exact_sum = V::add(*exact_sum, exact);
            V::store(x, p);
            sum = V::add(sum, p);
        }
        return sum;
    }

    void rescale_output() {
        for (int64_t d = 0; d < p_.dim_v; ++d) CLARY_UNROLL for (int c = 0; c < C; ++c) {
                float* const o = buffers_.o + d * kWidth + c * V::kLanes;
                V::store(o, V::mul(V::load(o), V::load(rescale_ + c * V::kLanes)));
            }
    }

    // -- O += float(V^T P) c --
    void accumulate(int64_t tile, int keys) {
        const int64_t tile_index = kv_row() / tile_ + tile;
        const VScale v_scale = desc_.recipe.v_scale;
        // One scale for the tile (token scales, fp16 V) joins the weight; per channel and tile it joins each row.
        const bool tile_scale = v_scale == VScale::kToken || kPv == Format::kFp16;
        const float* row_scale = v_scale == VScale::kChannelTile ? p_.v_scale + tile_index * p_.dim_v : nullptr;
        F weight[C];
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            weight[c] = V::load(weight_ + c * V::kLanes);
            if (tile_scale) weight[c] = V::mul(weight[c], V::set1(p_.v_scale[tile_index]));
        }
        load_values(tile_index, kv_row() + tile * tile_, keys);
        for (int64_t d = 0; d < p_.dim_v; d += V::kRows) {
            F value[V::kRows][C];
            value_block(value, d, keys);
            CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) {
                    float* const o = buffers_.o + (d + r) * kWidth + c * V::kLanes;
                    const F w = row_scale ? V::mul(weight[c], V::set1(row_scale[d + r])) : weight[c];
                    V::store(o, V::fma(value[r][c], w, V::load(o)));
                }
            }
        }
    }

    // T of kRows channels from d.
    [[gnu::always_inline]] void value_block(F (&value)[V::kRows][C], int64_t d, int keys) const {
        if constexpr (kIntPv) {
            I sum[V::kRows][C];
            CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
            }
            dot_block<V, V::kRows, C>(sum, static_cast<const int32_t*>(v_rows_) + d * (tile_ / V::kDot),
                                      tile_ / V::kDot, buffers_.p, keys / V::kDot);
            CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) value[r][c] = V::to_float(sum[r][c]);
            }
        } else {
            CLARY_UNROLL for (int r = 0; r < V::kRows; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) value[r][c] = V::set1(0.0f);
            }
            fma_block<V, V::kRows, C>(value, static_cast<const float*>(v_rows_) + d, 1, p_.dim_v, buffers_.x, keys);
        }
    }

    // Sets v_rows_: V of the tile as the inner block reads it, int8 [dim_v, tile] operands or fp32 [keys, dim_v].
    void load_values(int64_t tile_index, int64_t row, int keys) {
        if constexpr (kIntPv) {
            v_rows_ = V::row_operand(static_cast<const int8_t*>(p_.v_codes) + tile_index * p_.dim_v * tile_,
                                     p_.dim_v * tile_, buffers_.v_operand);
        } else if constexpr (kPv == Format::kFp32) {
            v_rows_ = static_cast<const float*>(p_.v_codes) + row * p_.dim_v;
        } else {
            load_span<V>(buffers_.v_tile, static_cast<const uint16_t*>(p_.v_codes) + row * p_.dim_v,
                         kPv == Format::kFp16 ? DType::kF16 : DType::kBF16, keys * p_.dim_v);
            v_rows_ = buffers_.v_tile;
        }
    }

    // -- results --
    void finish() {
        alignas(64) float inverse[kWidth], mean_share[kWidth];
        for (int lane = 0; lane < kWidth; ++lane) finish_row(lane, &inverse[lane], &mean_share[lane]);
        const int64_t head_channel = (t_.b * desc_.kv_heads + t_.kv_head) * p_.dim_v;
        const bool channel = desc_.recipe.v_scale == VScale::kChannel;
        for (int64_t d = 0; d < p_.dim_v; ++d) CLARY_UNROLL for (int c = 0; c < C; ++c) {
                float* const o = buffers_.o + d * kWidth + c * V::kLanes;
                F value = V::mul(V::load(o), V::load(inverse + c * V::kLanes));
                if (channel) value = V::mul(value, V::set1(p_.v_scale[head_channel + d]));
                V::store(o, value);
            }
        if (desc_.recipe.rotate_v) rotate_lanes<V>(buffers_.o, desc_.head_dim_v, kWidth);
        if (p_.v_mean)
            for (int64_t d = 0; d < desc_.head_dim_v; ++d) CLARY_UNROLL for (int c = 0; c < C; ++c) {
                    float* const o = buffers_.o + d * kWidth + c * V::kLanes;
                    const F mean = V::set1(p_.v_mean[head_channel + d]);
                    V::store(o, V::fma(mean, V::load(mean_share + c * V::kLanes), V::load(o)));
                }
        for (int first = 0; first < t_.rows; first += V::kLanes) {
            lanes_to_rows<V>(buffers_.o + first, kWidth, p_.dim_v, buffers_.x, p_.dim_v);
            for (int i = 0; i < V::kLanes && first + i < t_.rows; ++i) store_row(first + i, buffers_.x + i * p_.dim_v);
        }
    }

    // What a row of O is multiplied by, and the share of the softmax that is not the sink's; stores the row's LSE.
    void finish_row(int lane, float* inverse, float* mean_share) {
        const float l = sum_[lane], reference = reference_[lane];
        const bool empty = reference == -kInfinity && !std::isnan(l);  // NaN: all scores of its tiles were
        const double sum = static_cast<double>(desc_.want_lse ? exact_sum_[lane] : l) / static_cast<double>(kPTop);
        double lse = -std::numeric_limits<double>::infinity();
        if (!empty)
            lse = static_cast<double>(numerics::kLn2) * (static_cast<double>(reference) + std::log2(sum)) +
                  static_cast<double>(shift_[lane]);
        double share = 1;
        if (lane < t_.rows && desc_.sinks.given()) {
            const double sink = static_cast<const float*>(desc_.sinks.data)[q_head(lane) * desc_.sinks.stride[0]];
            const double with_sink = numerics::log_add_exp(lse, sink);
            share = empty ? 0 : std::exp(lse - with_sink);
            lse = with_sink;
        }
        *inverse = empty ? 0.0f : static_cast<float>(share / static_cast<double>(l));
        *mean_share = empty ? 0.0f : static_cast<float>(share);
        if (desc_.want_lse && lane < t_.rows)
            desc_.lse[t_.b * desc_.lse_batch_stride + q_head(lane) * desc_.lse_head_stride +
                      (t_.sequence.q_begin + query(lane)) * desc_.lse_token_stride] = static_cast<float>(lse);
    }

    void store_row(int lane, const float* row) {
        const Operand& out = desc_.out;
        char* to = static_cast<char*>(out.data) + (t_.b * out.batch_stride + q_head(lane) * out.head_stride +
                                                   (t_.sequence.q_begin + query(lane)) * out.token_stride) *
                                                      dtype_size(out.dtype);
        if (out.dim_stride == 1) {
            store_span<V>(to, out.dtype, row, desc_.head_dim_v);
            return;
        }
        for (int64_t d = 0; d < desc_.head_dim_v; ++d, to += out.dim_stride * dtype_size(out.dtype))
            store_element(to, out.dtype, row[d]);
    }

    const AttendProblem& p_;
    const AttendTask& t_;
    const AttentionDesc& desc_;
    const int tile_;
    Buffers buffers_;
    const void* v_rows_ = nullptr;

    // Per lane.
    alignas(64) float factor_[kWidth];       // base-2 score per unit of x
    alignas(64) float tile_factor_[kWidth];  // the same for the current tile: 1 where mask() has applied it
    alignas(64) float tile_max_[kWidth];     // of the current tile, base 2; -inf: no visible key
    alignas(64) float reference_[kWidth];    // R; -inf before the first tile with a visible key
    alignas(64) float rescale_[kWidth];      // 2^(R before - R now)
    alignas(64) float weight_[kWidth];       // c of the current tile
    alignas(64) float sum_[kWidth];          // l, in units of kPTop 2^R
    alignas(64) float exact_sum_[kWidth];    // the same of P before rounding, for the LSE
    alignas(64) int32_t pair_[kWidth];       // what K's (bias units, code sum) are multiplied by
    float float_bias_[kWidth];               // q_base a where the key bias is added in fp32, else 0
    float shift_[kWidth];                    // scale q.c_k, natural units
    bool any_float_bias_ = false;
    KeyRange ranges_[kWidth];
    int64_t begin_min_ = 0, begin_max_ = 0, end_min_ = 0, end_max_ = 0, keep_max_ = 0;
};

}  // namespace clary::cpu
