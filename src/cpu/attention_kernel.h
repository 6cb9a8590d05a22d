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
// Few queries (decoding) would leave most lanes empty: then a query takes L = 4 neighbouring lanes, which hold four steps of
// a dot product, and after their sum four keys of x or four channels of O. "Part": 4 lanes, 128 bits.
//
//     L    a vector of x         of P                          of O              K or V are spread
//     1    1 key x queries       4 bytes of keys x queries     1 channel         1 word to all lanes
//     4    4 keys x queries / 4  4 x 4 bytes x queries / 4     4 channels        4 words to each part
//
// The keys of one task may be a piece of a sequence's (cpu/attend.cc): its O, l and R are saved, and joined with the others'.
//
// Working set of one task at head dim 64, tile 128, 32 queries: x 16 KiB, P 4 KiB, O 8 KiB, Q 2 KiB, K and V tile 8 KiB
// each. The same template serves all tiers (V: cpu/<tier>/vec.h) and recipes (kQk, kPv).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/element.h"
#include "cpu/inner_blocks.h"
#include "cpu/scratch.h"
#include "cpu/tier.h"
#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/log_add_exp.h"
#include "numerics/permutation.h"

namespace clary::cpu {

// C vectors of queries per task, L lanes per query.
template <class V, Format kQk, Format kPv, int C, int L>
class AttentionKernel {
    using F = typename V::F;
    using I = typename V::I;
    using M = typename V::M;
    static constexpr int kWidth = C * V::kLanes;
    static constexpr int kRowsAtOnce = V::kLanes / L;              // that a vector holds words of
    static constexpr int kOutWidth = L == 1 ? kWidth : V::kLanes;  // lanes of a finished block, one for each query
    static_assert(L == 1 || (L == 4 && kWidth / L <= kOutWidth));
    static constexpr bool kIntQk = kQk == Format::kInt8;
    static constexpr bool kIntPv = kPv == Format::kInt8;
    static constexpr float kInfinity = std::numeric_limits<float>::infinity();
    // P is a byte 255 2^.., or a float 2^..
    static constexpr float kPLog2Top = kIntPv ? numerics::kPUint8Log2Max : 0.0f;
    static constexpr float kPTop = kIntPv ? numerics::kPUint8Max : 1.0f;
    // Channels of O and keys of x per inner block. PV in floats has an accumulator for each L channels, else for each one.
    static constexpr int kKeys = V::kRows, kChannels = kIntPv || L == 1 ? V::kRows : kDimMultiple;

  public:
    static constexpr int kQueries = kWidth / L;  // of the block

    AttentionKernel(const AttendProblem& problem, const AttendTask& task, void* scratch)
        : p_(problem),
          t_(task),
          desc_(problem.desc),
          tile_(problem.desc.recipe.tile),
          group_(problem.desc.q_heads_per_kv()),
          kv_row_(problem.kv_rows.begin(task.b, task.kv_head, problem.desc.kv_heads, task.sequence.kv_begin)),
          kv_tile_(kv_row_ / tile_),
          buffers_(problem.desc, scratch) {}

    static int64_t scratch_bytes(const AttentionDesc& desc) { return Buffers(desc, nullptr).bytes; }

    // Floats of an unfinished result: R, l, l before rounding, O.
    static int64_t partial_floats(const AttentionDesc& desc) {
        return (round_up(desc.head_dim_v, kDimMultiple) / L + 3) * kWidth;
    }

    void run() {
        load_queries();
        set_ranges();
        for (int64_t tile = t_.first_tile; tile < t_.end_tile; ++tile) {
            const int64_t first_key = tile * tile_;
            if (skips(tile)) continue;
            const int keys = keys_to_compute(first_key);
            scores(tile, keys);
            if (needs_mask(first_key, keys)) mask(first_key, keys);
            const bool moved = softmax(tile, keys);
            if (moved) rescale_output();
            accumulate(tile, keys);
        }
        if (t_.partial)
            save(t_.partial);
        else
            finish();
    }

    // The result of `count` saved pieces of the keys, first to last, `stride` floats apart.
    void join(const float* partials, int64_t stride, int64_t count) {
        load_queries();
        for (int64_t i = 0; i < count; ++i) add(partials + i * stride);
        finish();
    }

  protected:  // the stages, which bench/cpu measures one by one
    // -- memory --
    struct Buffers {
        Buffers(const AttentionDesc& desc, void* base) {
            Scratch scratch(base);
            const int64_t dim = round_up(desc.head_dim, kDimMultiple), dim_v = round_up(desc.head_dim_v, kDimMultiple);
            const int64_t tile = desc.recipe.tile;
            // (dim / L, kWidth) fp32, or (dim / kDot / L, kWidth) code words; steps up to a multiple of V's lanes are zeros
            q = scratch.take<float>(round_up(dim, V::kLanes) / L * kWidth);
            x = scratch.take<float>(std::max(tile / L * kWidth, V::kLanes * dim_v));  // (tile / L, kWidth)
            p = scratch.take<int32_t>(kIntPv ? tile / V::kDot / L * kWidth : 0);      // (tile / kDot / L, kWidth)
            // (tile, kWidth), each P in all lanes of its query
            p_lanes = scratch.take<float>(kIntPv || L == 1 ? 0 : tile * kWidth);
            o = scratch.take<float>(dim_v / L * kWidth);                // (dim_v / L, kWidth)
            out = L == 1 ? o : scratch.take<float>(dim_v * kOutWidth);  // (dim_v, kOutWidth)
            bias = scratch.take<float>(desc.biased() || desc.recipe.key_bias() ? tile / L * kWidth : 0);
            v_tile = scratch.take<float>(kPv == Format::kFp16 || kPv == Format::kBf16 ? tile * dim_v : 0);
            k_operand = scratch.take<char>(kIntQk ? tile * dim * V::kRowScratch : 0);
            v_operand = scratch.take<char>(kIntPv ? tile * dim_v * V::kRowScratch : 0);
            bytes = scratch.bytes();
        }
        float *q, *x, *p_lanes, *o, *out, *bias, *v_tile;
        int32_t* p;
        char *k_operand, *v_operand;
        int64_t bytes;
    };

    // L = 1: a word to all lanes; L = 4: four to each part.
    static I spread(const void* from) {
        if constexpr (L == 4) return V::spread4(static_cast<const int32_t*>(from));
        int32_t word;
        std::memcpy(&word, from, sizeof(word));
        return V::set1(word);
    }
    static F spread(const float* from) {
        if constexpr (L == 4) return V::spread4(from);
        return V::set1(*from);
    }
    template <int R>
    [[gnu::always_inline]] static void dot(I (&sum)[R][C], const int32_t* rows, int64_t row_stride,
                                           const int32_t* lanes, int64_t steps) {
        if constexpr (L == 1)
            dot_block<V, R, C>(sum, rows, row_stride, lanes, steps);
        else
            part_block<V, R, C>(sum, rows, row_stride, lanes, steps);
    }
    // Row r of a block of sums that an inner block left: for L = 4 of the four rows from 4 r on, with their parts summed.
    template <typename X, int R>
    [[gnu::always_inline]] static X summed(const X (&sum)[R][C], int r, int c) {
        if constexpr (L == 4) return V::sum4(sum[4 * r][c], sum[4 * r + 1][c], sum[4 * r + 2][c], sum[4 * r + 3][c]);
        return sum[r][c];
    }

    // -- queries --
    int64_t q_head(int row) const { return t_.kv_head * group_ + rows_[row].head; }
    int64_t query(int row) const { return rows_[row].query; }

    void load_queries() {
        set_rows();
        std::memset(buffers_.o, 0, static_cast<size_t>(p_.dim_v / L * kWidth) * sizeof(float));
        for (int lane = 0; lane < kWidth; ++lane) {
            const int r = lane / L;
            factor_[lane] = p_.a;
            pair_[lane] = 0;
            float_bias_[lane] = 0;
            shift_[lane] = 0;
            reference_[lane] = -kInfinity;
            sum_[lane] = exact_sum_[lane] = 0;
            if (!kIntQk || r >= t_.rows) continue;
            const int64_t row = packed_row(r);
            factor_[lane] = p_.q_scale[row] * p_.a;
            const int32_t repeat = p_.q_repeat ? p_.q_repeat[row] : 0;
            pair_[lane] = (repeat & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(-V::kCodeBias) << 16);
            if (p_.q_repeat && repeat == 0) {
                float_bias_[lane] = p_.q_base[t_.b * desc_.kv_heads + t_.kv_head] * p_.a;
                any_float_bias_ = true;
            }
            if (p_.q_shift) shift_[lane] = p_.q_shift[row];
        }
        load_lanes();
    }

    void set_rows() {
        int64_t head = t_.first_row % group_, query = t_.first_row / group_;
        for (Row& row : rows_) {
            row = {head, query};
            if (++head == group_) head = 0, ++query;
        }
    }
    int64_t packed_row(int row) const {
        return p_.q_rows.begin(t_.b, q_head(row), desc_.q_heads, t_.sequence.q_begin) + query(row);
    }

    // Q to lanes: steps of a row side by side in its L lanes; zeros where there is no row.
    void load_lanes() {
        using Step = std::conditional_t<kIntQk, int32_t, float>;
        const int64_t steps = kIntQk ? p_.dim / V::kDot : p_.dim, padded = round_up(steps, V::kLanes);
        auto* const to = reinterpret_cast<Step*>(buffers_.q);
        auto* const rows = reinterpret_cast<Step*>(buffers_.x);  // [kRowsAtOnce][padded]
        for (int first = 0; first < kQueries; first += kRowsAtOnce) {
            std::memset(rows, 0, static_cast<size_t>(kRowsAtOnce * padded) * sizeof(Step));
            for (int r = 0; r < std::min(kRowsAtOnce, t_.rows - first); ++r)
                for (int64_t i = 0; i < steps; ++i) rows[r * padded + i] = q_step(packed_row(first + r) * p_.dim, i);
            to_lanes(rows, padded, padded, to, first);
        }
    }
    // rows [kRowsAtOnce][row_stride] of `count` words to lanes, from those of row `first` on.
    template <typename Word>
    static void to_lanes(const Word* rows, int64_t row_stride, int64_t count, Word* to, int first) {
        if constexpr (L == 1)
            rows_to_lanes<V>(reinterpret_cast<const float*>(rows), row_stride, count,
                             reinterpret_cast<float*>(to) + first, kWidth);
        else
            for (int lane = 0; lane < V::kLanes; ++lane)
                for (int64_t i = lane % L; i < count; i += L)
                    to[i / L * kWidth + first * L + lane] = rows[lane / L * row_stride + i];
    }
    [[gnu::always_inline]] auto q_step(int64_t row_begin, int64_t i) const {
        if constexpr (kIntQk)
            return V::code_word(static_cast<const int8_t*>(p_.q_codes) + row_begin + i * V::kDot);
        else
            return static_cast<const float*>(p_.q_codes)[row_begin + i];
    }

    // Visible keys of each lane; those past the last row see what row 0 sees (their results are dropped).
    void set_ranges() {
        int64_t ranged = 0;  // query of the lane before
        for (int lane = 0; lane < kWidth; ++lane) {
            const int64_t seen = query(lane / L < t_.rows ? lane / L : 0);
            if (lane > 0 && seen == ranged)
                ranges_[lane] = ranges_[lane - 1];
            else
                ranges_[lane] = key_range(desc_, t_.sequence, seen + t_.sequence.offset);
            ranged = seen;
            const KeyRange& range = ranges_[lane];
            begin_min_ = lane ? std::min(begin_min_, range.begin) : range.begin;
            begin_max_ = lane ? std::max(begin_max_, range.begin) : range.begin;
            end_min_ = lane ? std::min(end_min_, range.end) : range.end;
            end_max_ = lane ? std::max(end_max_, range.end) : range.end;
            keep_max_ = lane ? std::max(keep_max_, range.keep_end) : range.keep_end;
        }
    }

    bool skips(int64_t tile) const {  // no lane sees a key of it
        const int64_t first_key = tile * tile_;
        return first_key >= keep_max_ && (first_key + tile_ <= begin_min_ || first_key >= end_max_);
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

    // -- S^T = K Q^T --
    void scores(int64_t tile, int keys) {
        const int64_t row = kv_row_ + tile * tile_;
        F top[C];
        CLARY_UNROLL for (int c = 0; c < C; ++c) { top[c] = V::set1(-kInfinity); }
        if constexpr (kIntQk) {
            const int32_t* k = V::row_operand(static_cast<const int8_t*>(p_.k_codes) + row * p_.dim, keys * p_.dim,
                                              buffers_.k_operand);
            const int64_t steps = p_.dim / V::kDot;
            I pair[C];
            CLARY_UNROLL for (int c = 0; c < C; ++c) { pair[c] = V::load(pair_ + c * V::kLanes); }
            for (int key = 0; key < keys; key += kKeys) {
                I sum[kKeys][C];
                CLARY_UNROLL for (int r = 0; r < kKeys; ++r) {
                    CLARY_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
                }
                dot(sum, k + key * steps, steps, reinterpret_cast<const int32_t*>(buffers_.q), steps / L);
                CLARY_UNROLL for (int r = 0; r < kKeys / L; ++r) {
                    const int at = key + r * L;
                    const I k_pair = spread(p_.k_pair + 2 * (row + at));  // bias units | sum
                    const F k_scale = spread(p_.k_scale + row + at);
                    CLARY_UNROLL for (int c = 0; c < C; ++c)
                        put_score(summed(sum, r, c), pair[c], k_pair, k_scale,
                                  buffers_.x + at / L * kWidth + c * V::kLanes, &top[c]);
                }
            }
        } else {
            const float* k = static_cast<const float*>(p_.k_codes) + row * p_.dim;
            for (int key = 0; key < keys; key += kKeys) {
                F sum[kKeys][C];
                CLARY_UNROLL for (int r = 0; r < kKeys; ++r) {
                    CLARY_UNROLL for (int c = 0; c < C; ++c) { sum[r][c] = V::set1(0.0f); }
                }
                fma_block<V, kKeys, C, L>(sum, k + key * p_.dim, p_.dim, L, buffers_.q, p_.dim / L);
                CLARY_UNROLL for (int r = 0; r < kKeys / L; ++r) {
                    CLARY_UNROLL for (int c = 0; c < C; ++c) {
                        const F x = summed(sum, r, c);
                        top[c] = V::max(x, top[c]);
                        V::store(buffers_.x + (key / L + r) * kWidth + c * V::kLanes, x);
                    }
                }
            }
        }
        set_maxima(top);
    }

    // A score in fp32 from the sum of code products, and the largest so far.
    [[gnu::always_inline]] static void put_score(I sum, I pair, I k_pair, F k_scale, float* x, F* top) {
        const F value = V::mul(V::to_float(V::dot16(sum, pair, k_pair)), k_scale);
        *top = V::max(value, *top);
        V::store(x, value);
    }

    // The tile's factors and maxima, from the largest x of each lane.
    [[gnu::always_inline]] void set_maxima(const F (&top)[C]) {
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            const F factor = V::load(factor_ + c * V::kLanes);
            V::store(tile_factor_ + c * V::kLanes, factor);
            // -inf * NaN aside, a NaN factor (a poisoned row) makes the maximum NaN, and with it the whole row.
            V::store(tile_max_ + c * V::kLanes, V::mul(factor, across(top[c])));
        }
    }

    // The largest of a query's lanes in each of them; NaN where one is.
    static F across(F x) {
        if constexpr (L == 4) {
            x = V::select(V::is_nan(x), x, V::max(x, V::template exchange<1>(x)));
            x = V::select(V::is_nan(x), x, V::max(x, V::template exchange<2>(x)));
        }
        return x;
    }

    // -- masks and biases --
    void mask(int64_t first_key, int keys) {
        const bool biased = desc_.biased() || any_float_bias_;
        if (biased) fill_bias(first_key, keys);
        alignas(64) int32_t begin[kWidth], end[kWidth], keep[kWidth];
        for (int lane = 0; lane < kWidth; ++lane) {
            // The first of the lane's own keys, lane % L + L i, that lies at `key` or behind it.
            const auto within = [&](int64_t key) {
                const int64_t at = std::clamp<int64_t>(key - first_key, 0, keys);
                return static_cast<int32_t>((at + L - 1 - lane % L) / L);
            };
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
            for (int i = 0; i < keys / L; ++i) {
                float* const x = buffers_.x + i * kWidth + at;
                F value = V::mul(V::load(x), factor);
                if (biased) {
                    // A bias of -inf hides the key even where its score is NaN.
                    const F bias = V::load(buffers_.bias + i * kWidth + at);
                    value = V::select(V::equal(bias, masked), masked, V::add(value, bias));
                }
                value = V::select(V::in_range(i, from, to, kept), value, masked);
                V::store(x, value);
                top = V::max(value, top);
                seen = V::either(seen, V::not_equal(value, masked));
                nan = V::either(nan, V::is_nan(value));
            }
            top = V::select(nan, V::set1(std::numeric_limits<float>::quiet_NaN()), top);
            V::store(tile_max_ + at, across(V::select(seen, top, masked)));
            V::store(tile_factor_ + at, V::set1(1.0f));
        }
    }

    // Boolean and additive masks, ALiBi, and the key bias of rows that it could not ride the MMA for. Base 2.
    void fill_bias(int64_t first_key, int keys) {
        const int valid = static_cast<int>(std::min<int64_t>(keys, t_.sequence.kv_len - first_key));
        alignas(64) float rows[kRowsAtOnce * kMaxTile];
        for (int first = 0; first < kQueries; first += kRowsAtOnce) {
            std::memset(rows, 0, sizeof(rows));
            for (int r = 0; r < std::min(kRowsAtOnce, t_.rows - first); ++r)
                fill_row_bias(first + r, first_key, valid, rows + r * kMaxTile);
            to_lanes(rows, kMaxTile, keys, buffers_.bias, first);
        }
    }
    void fill_row_bias(int row, int64_t first_key, int count, float* bias) const {
        const int64_t head = q_head(row), i = query(row);
        if (desc_.mask_kind != MaskKind::kNone) {
            const TensorView& m = desc_.mask;
            const int64_t element = dtype_size(m.dtype), stride = m.stride[3] * element;
            const char* const at =
                static_cast<const char*>(m.data) +
                (t_.b * m.stride[0] + head * m.stride[1] + i * m.stride[2] + first_key * m.stride[3]) * element;
            if (desc_.mask_kind == MaskKind::kBoolean) {
                const auto hide = [&](auto step) {
                    for (int key = 0; key < count; ++key) bias[key] = at[key * step] ? 0.0f : -kInfinity;
                };
                if (stride == 1)
                    hide(std::integral_constant<int, 1>());  // many at once
                else
                    hide(stride);
            } else {
                if (stride == element)
                    load_span<V>(bias, at, m.dtype, count);
                else
                    for (int key = 0; key < count; ++key) bias[key] = load_element(at + key * stride, m.dtype);
                for (int key = 0; key < count; ++key) bias[key] *= numerics::kLog2E;
            }
        }
        if (desc_.alibi_slopes.given()) {
            const float slope = numerics::kLog2E *
                                static_cast<const float*>(desc_.alibi_slopes.data)[head * desc_.alibi_slopes.stride[0]];
            const auto distance =
                static_cast<double>(i + t_.sequence.offset - first_key);  // AVX2 has no int64 to float
            for (int key = 0; key < count; ++key) bias[key] -= slope * static_cast<float>(std::abs(distance - key));
        }
        if (const float unit = float_bias_[row * L]; unit != 0) {
            const int64_t first = kv_row_ + first_key;
            for (int key = 0; key < count; ++key)
                bias[key] += static_cast<float>(p_.k_pair[2 * (first + key)]) * p_.k_scale[first + key] * unit;
        }
    }

    // -- online softmax over tile-local maxima --
    // Makes P of the tile and its weight c = 2^(m + base - R); true where a lane's reference R moved.
    bool softmax(int64_t tile, int keys) {
        return softmax(tile, keys,
                       [&]<bool kWantLse>(std::bool_constant<kWantLse>, auto... p) { return make_p<kWantLse>(p...); });
    }
    // The same with P from make(whether an LSE is wanted, as make_p()).
    template <typename Make>
    [[gnu::always_inline]] bool softmax(int64_t tile, int keys, const Make& make) {
        const F masked = V::set1(-kInfinity), zero = V::set1(0.0f);
        bool moved = false;
        if constexpr (kIntPv) set_weights(tile, weights_);
        // P of 16 bits is taken against a whole power of two, so that its rounding does not depend on the tile.
        if constexpr (kPv == Format::kFp16 || kPv == Format::kBf16)
            for (float& top : tile_max_) top = std::ceil(top);
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            const int at = c * V::kLanes;
            const F top = V::load(tile_max_ + at);
            moved |= set_weight(tile, at, top);
            F factor = V::load(tile_factor_ + at);
            F top_or_zero = V::select(V::not_equal(top, masked), top, zero);
            if (V::any(V::greater(V::abs(top_or_zero), V::set1(kLargeScore)))) {
                subtract_maximum(keys, at, factor, top_or_zero);
                factor = V::set1(1.0f);
                top_or_zero = zero;
            }
            const F shift = V::sub(V::set1(kPLog2Top), top_or_zero);
            F exact_sum = zero;
            const F sum = desc_.want_lse ? make(std::true_type(), keys, at, factor, shift, &exact_sum)
                                         : make(std::false_type(), keys, at, factor, shift, &exact_sum);
            add_to_sum(sum_ + at, at, sum);
            add_to_sum(exact_sum_ + at, at, exact_sum);
        }
        return moved;
    }

    // Moves R of the lanes at `at` where the tile's maximum (base 2; -inf: no visible key) asks for it, and sets c; true where R
    // moved.
    bool set_weight(int64_t tile, int at, F top) {
        const F base = V::set1(p_.tile_base ? p_.tile_base[kv_tile_ + tile] : 0.0f);
        const F masked = V::set1(-kInfinity), zero = V::set1(0.0f);
        const M seen = V::not_equal(top, masked);
        const F lift = V::add(top, base), reference = V::load(reference_ + at);
        const M first = V::both(seen, V::equal(reference, masked));
        const M jump = V::both(seen, V::greater(V::sub(lift, reference), V::set1(numerics::kReferenceSlack)));
        const F next = V::select(V::either(first, jump), lift, reference);
        F rescale = V::set1(1.0f);
        const bool moved = V::any(jump);
        // First tile of a lane: O and l are still zero, so any finite factor will do.
        if (moved)
            rescale = V::select(jump, V::select(first, zero, V::template exp2<6>(V::sub(reference, next))), rescale);
        V::store(rescale_ + at, rescale);
        V::store(reference_ + at, next);
        V::store(weight_ + at, V::select(seen, V::template exp2<6>(V::sub(lift, next)), zero));
        return moved;
    }
    // *sum = *sum * rescale + of_tile * c, of the lanes at `at`.
    void add_to_sum(float* sum, int at, F of_tile) const {
        const F before = V::mul(V::load(sum), V::load(rescale_ + at));
        V::store(sum, V::fma(of_tile, V::load(weight_ + at), before));
    }

    // Returns the row sum of P as rounded; *exact_sum, for the LSE: as it was before rounding.
    template <bool kWantLse>
    F make_p(int keys, int at, F factor, F shift, F* exact_sum) {
        if constexpr (kIntPv)
            return make_p_bytes<kWantLse>(keys, at, factor, shift, exact_sum);
        else
            return make_p_floats<kWantLse>(keys, at, factor, shift, exact_sum);
    }

    // P = round(255 2^(x - m)) as dot operands, in the order of V's tokens; sums are weighted per token.
    template <bool kWantLse>
    F make_p_bytes(int keys, int at, F factor, F shift, F* exact_sum) {
        I sum = V::zero();
        for (int position = 0; position < keys; position += 4 * L) {
            I p[4];
            CLARY_UNROLL for (int i = 0; i < 4; ++i) {
                const int64_t key = L == 1 ? numerics::v_token(position + i) : position + i * L;
                const F x = V::load(buffers_.x + key / L * kWidth + at);
                const F exact = V::template exp2<4>(V::fma(x, factor, shift));
                p[i] = V::round(exact);
                if constexpr (kWantLse) *exact_sum = V::fma(exact, spread(key_weight_ + key), *exact_sum);
            }
            int32_t* const to = buffers_.p + position / V::kDot / L * kWidth + at;
            if constexpr (L == 1)
                V::store_p(to, kWidth, p[0], p[1], p[2], p[3]);
            else
                V::store_p_run(to, kWidth, p[0], p[1], p[2], p[3]);
            CLARY_UNROLL for (int step = 0; step < 4 / V::kDot; ++step) {
                const I operand = V::load(to + step * kWidth);
                const int32_t* const weight = weights_ + position / V::kDot + step * L;
                CLARY_UNROLL for (int i = 0; i < V::kWeightParts; ++i) {
                    sum = V::dot(sum, operand, spread(weight + i * (tile_ / V::kDot)));
                }
            }
        }
        const F unit = V::set1(p_.v_weight ? 1.0f / numerics::kWeightUnit : 1.0f);
        *exact_sum = V::mul(*exact_sum, unit);
        return V::mul(V::to_float(sum), unit);
    }

    // The tile's weights of V as operands of dot(), and in the order of the keys.
    void set_weights(int64_t tile, int32_t* to) {
        static constexpr Ones kOnes;
        const uint8_t* const weights = p_.v_weight ? p_.v_weight + kv_row_ + tile * tile_ : kOnes.weight;
        V::weight_operands(weights, tile_, to);
        if (desc_.want_lse)
            for (int position = 0; position < tile_; ++position)
                key_weight_[numerics::v_token(position)] = static_cast<float>(weights[position]);
    }
    struct Ones {
        uint8_t weight[kMaxTile];
        constexpr Ones() : weight() { std::fill(weight, weight + kMaxTile, uint8_t{1}); }
    };

    // Scores beyond this lose bits that P needs: x f - m is then formed from products rounded as the maximum was.
    static constexpr float kLargeScore = 4096.0f;  // base 2; half a unit in the last place is 2^-12

    void subtract_maximum(int keys, int at, F factor, F top) {
        for (int i = 0; i < keys / L; ++i) {
            float* const x = buffers_.x + i * kWidth + at;
            V::store(x, V::sub(V::mul(V::load(x), factor), top));
        }
    }

    // P = 2^(x - m), rounded to the format of PV, in place of x; L = 4: in p_lanes.
    template <bool kWantLse>
    F make_p_floats(int keys, int at, F factor, F shift, F* exact_sum) {
        F sum = V::set1(0.0f);
        for (int i = 0; i < keys / L; ++i) {
            float* const x = buffers_.x + i * kWidth + at;
            const F exact = V::template exp2 < kPv == Format::kFp32 ? 6 : 4 > (V::fma(V::load(x), factor, shift));
            F p = exact;
            if constexpr (kPv == Format::kFp16) p = V::round_fp16(exact);
            if constexpr (kPv == Format::kBf16) p = V::round_bf16(exact);
            if constexpr (kWantLse) *exact_sum = V::add(*exact_sum, exact);
            if constexpr (L == 1) {
                V::store(x, p);
            } else {
                float* const to = buffers_.p_lanes + i * L * kWidth + at;
                V::store(to, V::template splat4<0>(p));
                V::store(to + kWidth, V::template splat4<1>(p));
                V::store(to + 2 * kWidth, V::template splat4<2>(p));
                V::store(to + 3 * kWidth, V::template splat4<3>(p));
            }
            sum = V::add(sum, p);
        }
        return sum;
    }

    void rescale_output() {
        for (int64_t i = 0; i < p_.dim_v / L; ++i) CLARY_UNROLL for (int c = 0; c < C; ++c) {
                float* const o = buffers_.o + i * kWidth + c * V::kLanes;
                V::store(o, V::mul(V::load(o), V::load(rescale_ + c * V::kLanes)));
            }
    }

    // -- O += float(V^T P) c --
    void accumulate(int64_t tile, int keys) {
        const Weight weight = weight_of(tile);
        load_values(kv_tile_ + tile, kv_row_ + tile * tile_, keys);
        for (int64_t d = 0; d < p_.dim_v; d += kChannels) {
            F value[kChannels / L][C];
            value_block(value, d, keys);
            CLARY_UNROLL for (int r = 0; r < kChannels / L; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) add_value(weight, d + r * L, c, value[r][c]);
            }
        }
    }

    // c of a tile with its scales of V: one for the tile (token scales, fp16 V) joins c; those of channels join each row of O.
    struct Weight {
        F c[C];
        const float* row_scale;  // [dim_v] or null
    };
    Weight weight_of(int64_t tile) const {
        const int64_t tile_index = kv_tile_ + tile;
        const VScale v_scale = desc_.recipe.v_scale;
        const bool tile_scale = v_scale == VScale::kToken || kPv == Format::kFp16;
        Weight weight;
        weight.row_scale = v_scale == VScale::kChannelTile ? p_.v_scale + tile_index * p_.dim_v : nullptr;
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            weight.c[c] = V::load(weight_ + c * V::kLanes);
            if (tile_scale) weight.c[c] = V::mul(weight.c[c], V::set1(p_.v_scale[tile_index]));
        }
        return weight;
    }
    // O of channel d (L = 4: of four) += value c.
    [[gnu::always_inline]] void add_value(const Weight& weight, int64_t d, int c, F value) {
        float* const o = buffers_.o + d / L * kWidth + c * V::kLanes;
        const F w = weight.row_scale ? V::mul(weight.c[c], spread(weight.row_scale + d)) : weight.c[c];
        V::store(o, V::fma(value, w, V::load(o)));
    }

    // T of kChannels channels from d.
    [[gnu::always_inline]] void value_block(F (&value)[kChannels / L][C], int64_t d, int keys) const {
        if constexpr (kIntPv) {
            I sum[kChannels][C];
            CLARY_UNROLL for (int r = 0; r < kChannels; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
            }
            dot(sum, static_cast<const int32_t*>(v_rows_) + d * (tile_ / V::kDot), tile_ / V::kDot, buffers_.p,
                keys / V::kDot / L);
            CLARY_UNROLL for (int r = 0; r < kChannels / L; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) value[r][c] = V::to_float(summed(sum, r, c));
            }
        } else {
            CLARY_UNROLL for (int r = 0; r < kChannels / L; ++r) {
                CLARY_UNROLL for (int c = 0; c < C; ++c) value[r][c] = V::set1(0.0f);
            }
            fma_block<V, kChannels / L, C, L>(value, static_cast<const float*>(v_rows_) + d, L, p_.dim_v,
                                              L == 1 ? buffers_.x : buffers_.p_lanes, keys);
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

    // -- pieces of the keys --
    void save(float* to) const {
        for (const float* lanes : {reference_, sum_, exact_sum_}) to = std::copy_n(lanes, kWidth, to);
        std::copy_n(buffers_.o, p_.dim_v / L * kWidth, to);
    }

    // Joins a saved piece to what is there already.
    void add(const float* piece) {
        const F masked = V::set1(-kInfinity), zero = V::set1(0.0f);
        CLARY_UNROLL for (int c = 0; c < C; ++c) {
            const int at = c * V::kLanes;
            const F here = V::load(reference_ + at), there = V::load(piece + at), next = V::max(here, there);
            const auto share = [&](F reference) {
                return V::select(V::equal(reference, masked), zero, V::template exp2<6>(V::sub(reference, next)));
            };
            const F a = share(here), b = share(there);
            const auto joined = [&](float* mine, const float* others) {
                V::store(mine, V::fma(V::load(others), b, V::mul(V::load(mine), a)));
            };
            V::store(reference_ + at, next);
            joined(sum_ + at, piece + kWidth + at);
            joined(exact_sum_ + at, piece + 2 * kWidth + at);
            for (int64_t i = 0; i < p_.dim_v / L; ++i)
                joined(buffers_.o + i * kWidth + at, piece + (3 + i) * kWidth + at);
        }
    }

    // -- results --
    void finish() {
        alignas(64) float inverse[kOutWidth] = {}, mean_share[kOutWidth] = {};
        for (int row = 0; row < kQueries; ++row) finish_row(row, &inverse[row], &mean_share[row]);
        if constexpr (L > 1) {
            std::memset(buffers_.out, 0, static_cast<size_t>(p_.dim_v * kOutWidth) * sizeof(float));
            for (int64_t d = 0; d < p_.dim_v; ++d)
                for (int row = 0; row < t_.rows; ++row)
                    buffers_.out[d * kOutWidth + row] = buffers_.o[d / L * kWidth + row * L + d % L];
        }
        const int64_t head_channel = (t_.b * desc_.kv_heads + t_.kv_head) * p_.dim_v;
        const bool channel = desc_.recipe.v_scale == VScale::kChannel;
        for (int64_t d = 0; d < p_.dim_v; ++d)
            for (int at = 0; at < kOutWidth; at += V::kLanes) {
                float* const o = buffers_.out + d * kOutWidth + at;
                F value = V::mul(V::load(o), V::load(inverse + at));
                if (channel) value = V::mul(value, V::set1(p_.v_scale[head_channel + d]));
                V::store(o, value);
            }
        if (desc_.recipe.rotate_v) rotate_lanes<V>(buffers_.out, desc_.head_dim_v, kOutWidth);
        if (p_.v_mean)
            for (int64_t d = 0; d < desc_.head_dim_v; ++d)
                for (int at = 0; at < kOutWidth; at += V::kLanes) {
                    float* const o = buffers_.out + d * kOutWidth + at;
                    const F mean = V::set1(p_.v_mean[head_channel + d]);
                    V::store(o, V::fma(mean, V::load(mean_share + at), V::load(o)));
                }
        for (int first = 0; first < t_.rows; first += V::kLanes) {
            lanes_to_rows<V>(buffers_.out + first, kOutWidth, p_.dim_v, buffers_.x, p_.dim_v);
            for (int i = 0; i < V::kLanes && first + i < t_.rows; ++i) store_row(first + i, buffers_.x + i * p_.dim_v);
        }
    }

    // What a row of O is multiplied by, and the share of the softmax that is not the sink's; stores the row's LSE.
    void finish_row(int row, float* inverse, float* mean_share) {
        float l = 0, exact_l = 0;
        for (int lane = row * L; lane < row * L + L; ++lane) l += sum_[lane], exact_l += exact_sum_[lane];
        const float reference = reference_[row * L];
        const bool empty = reference == -kInfinity && !std::isnan(l);  // NaN: all scores of its tiles were
        const auto lse_of = [&](float sum) {
            if (empty) return -std::numeric_limits<double>::infinity();
            const double log_sum = std::log2(static_cast<double>(sum) / static_cast<double>(kPTop));
            return static_cast<double>(numerics::kLn2) * (static_cast<double>(reference) + log_sum) +
                   static_cast<double>(shift_[row * L]);
        };
        const bool has_sink = row < t_.rows && desc_.sinks.given();
        const double sink =
            has_sink ? static_cast<const float*>(desc_.sinks.data)[q_head(row) * desc_.sinks.stride[0]] : 0;
        double share = 1;
        if (has_sink) share = empty ? 0 : std::exp(lse_of(l) - numerics::log_add_exp(lse_of(l), sink));
        if (desc_.want_lse && row < t_.rows) {
            const double lse = has_sink ? numerics::log_add_exp(lse_of(exact_l), sink) : lse_of(exact_l);
            desc_.lse[t_.b * desc_.lse_batch_stride + q_head(row) * desc_.lse_head_stride +
                      (t_.sequence.q_begin + query(row)) * desc_.lse_token_stride] = static_cast<float>(lse);
        }
        *inverse = empty ? 0.0f : static_cast<float>(share / static_cast<double>(l));
        *mean_share = empty ? 0.0f : static_cast<float>(share);
    }

    void store_row(int row, const float* values) {
        const Operand& out = desc_.out;
        char* to = static_cast<char*>(out.data) + (t_.b * out.batch_stride + q_head(row) * out.head_stride +
                                                   (t_.sequence.q_begin + query(row)) * out.token_stride) *
                                                      dtype_size(out.dtype);
        if (out.dim_stride == 1) {
            store_span<V>(to, out.dtype, values, desc_.head_dim_v);
            return;
        }
        for (int64_t d = 0; d < desc_.head_dim_v; ++d, to += out.dim_stride * dtype_size(out.dtype))
            store_element(to, out.dtype, values[d]);
    }

    const AttendProblem& p_;
    const AttendTask& t_;
    const AttentionDesc& desc_;
    const int tile_;
    const int64_t group_;             // q heads of a kv head
    const int64_t kv_row_, kv_tile_;  // the first of the sequence in K's and V's sections
    Buffers buffers_;
    const void* v_rows_ = nullptr;

    // Per tile.
    alignas(64) int32_t weights_[kMaxTile / 2];  // operands of dot()
    alignas(64) float key_weight_[kMaxTile];     // in the order of the keys

    // Per lane; all lanes of a query hold the same, but for sums, which are of a lane's own keys.
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
    struct Row {
        int64_t head, query;  // of the kv head's q heads, of the sequence
    };
    Row rows_[kQueries];
    bool any_float_bias_ = false;
    KeyRange ranges_[kWidth];
    int64_t begin_min_ = 0, begin_max_ = 0, end_min_ = 0, end_max_ = 0, keep_max_ = 0;
};

}  // namespace clary::cpu
