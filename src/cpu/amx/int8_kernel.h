// SPDX-License-Identifier: Apache-2.0
// int8_int8 with AMX. A block of queries and a tile of keys are a unit; the tile registers run ahead of the vectors, through all
// units of a task:
//
//     tile registers   .. 16 keys of S(u) ..      V^T P(u-1), 16 channels each     first keys of S(u+1)
//     vectors          x(u) and its maximum       P(u), O += T(u-1) c
//
// Scores in fixed point. Where a tile needs no mask, no LSE is wanted and the scores of a block surely lie within +-128
// octaves (base 2), they are int16 in units of 2^-8 (to +-512: of 2^-6), two keys (t and t + 8 of a run of 16) in each lane:
//
//     S16 = S >> shift                             shift: the lane's, so that 127 sum|q codes| fits 15 bits
//     x = S16 * (k_scale / largest) * factor       two rounded products
//     x += key bias
//     P = 255 * 2^-(m - x)                         exponent: high byte of m - x; a cubic polynomial (1e-4) of the low one
//
// P errs by 0.16 % in the mean square before it is rounded to 8 bits (docs/decisions/0022-scores-in-16-bits.md).
// All other tiles take AttentionKernel's own steps, in fp32.
#pragma once

#include "cpu/amx/tile_queries.h"

namespace clary::cpu::amx {

// What the blocks of a task use one after the other. It fits the first cache beside a tile of K and V and a block of O.
struct UnitMemory {
    UnitMemory(const AttentionDesc& desc, void* base) {
        Scratch scratch(base);
        const int64_t tile = desc.recipe.tile;
        x = scratch.take<int32_t>(tile / 2 * Tiles::kLanes);                         // [pairs of keys][lanes] int16
        for (int32_t*& p : p_) p = scratch.take<int32_t>(tile / 4 * Tiles::kLanes);  // [words of four keys][lanes]
        keys_ = scratch.take<int32_t>((TileQueue::kLead + 1) * Tiles::kBlock);
        channels_ = scratch.take<int32_t>(kSlots * Tiles::kBlock);
        // [keys][lanes] where fixed point will not do; finish() takes 16 rows of O there.
        float_x =
            scratch.take<float>(std::max(tile * Tiles::kLanes, Vec::kLanes * round_up(desc.head_dim_v, kDimMultiple)));
        bytes = scratch.bytes();
    }
    // P of a unit, sums of 16 of its keys, and of 16 channels, in turn.
    int32_t* p(int64_t unit) const { return p_[unit % 2]; }
    int32_t* keys(int run) const { return keys_ + run % (TileQueue::kLead + 1) * Tiles::kBlock; }
    int32_t* channels(int i) const { return channels_ + i % kSlots * Tiles::kBlock; }

    int32_t* x;
    float* float_x;
    int64_t bytes;

  private:
    // 256 channels beside a unit of 64 keys: all are begun before the first is added to O.
    static constexpr int kSlots = 16;
    int32_t *p_[2], *keys_, *channels_;
};

// The keys of a tile for scores in fixed point; the same for all blocks but for the unit of biases.
struct FixedKeys {
    int64_t tile = -1;
    float k_scale = 0;                        // the largest
    float loudest = 0;                        // key bias, octaves
    float octave = 0;                         // units of bias
    alignas(64) int32_t scale[kMaxTile / 2];  // of pairs: k_scale over the largest, times 32767
    alignas(64) int32_t bias[kMaxTile / 2];
    alignas(64) int32_t weights[kMaxTile / 2];
};

class Int8Block : public TileQueries<Format::kInt8> {
    static constexpr float kUnits = 256;      // of x in an octave, if all scores of a block fit
    static constexpr int kMostDoublings = 2;  // else half as many, or a quarter
    // Of x, to which roundings (K's scale and its product 1, the lane's and its product 1, the bias 1/2) add less than 3.
    static constexpr float kLargest = 32764;

  public:
    using Memory = UnitMemory;
    // With fewer, AVX-512 is as fast or faster: a task waits for its first products, and has no tile for scores in 16 bits.
    static constexpr int64_t kFewestKeys = 128;

    // A tile's keys that are multiplied; `fixed`: in fixed point, with these numbers.
    struct Unit {
        Int8Block* block = nullptr;
        int64_t tile = 0;
        int keys = 0;
        FixedKeys* fixed = nullptr;
        int doublings = 0;  // of x, to units of 2^-8 octaves
        float octave = 0;   // units of x
        int32_t* p = nullptr;
        Weight weight;  // once P is there
    };

    Int8Block(const AttendProblem& problem, const AttendTask& task, void* scratch, const UnitMemory& unit)
        : TileQueries(problem, task, scratch, unit.float_x), unit_(unit) {}

    void begin() {
        TileQueries::begin();
        set_shifts();
    }

    static void run(TileTask<Int8Block>& task) {
        TileQueue queue;
        // Of a tile and of the next: what its queries see begins less than 128 keys apart, so no unit of the tile after that comes
        // before a block's last of this one.
        static_assert(TileTask<Int8Block>::kQueries <= 128);
        FixedKeys fixed[2];
        int64_t tile = task.task().first_tile, number = 0;
        int block = 0;
        const auto next_unit = [&] {
            Unit unit;
            while (tile < task.task().end_tile && unit.keys == 0) {
                unit = task.block(block).unit_of(tile, task.memory().p(number), &fixed[tile % 2]);
                if (++block == task.count()) ++tile, block = 0;
            }
            ++number;
            return unit;
        };
        Unit before, unit = next_unit();
        multiply_first_keys(unit, &queue);
        while (unit.keys > 0) {
            const Unit next = next_unit();
            if (unit.fixed) {
                unit.block->fixed_step(unit, before, next, &queue);
            } else {
                multiply_values(before, &queue);
                unit.block->float_step(unit, &queue);
                multiply_first_keys(next, &queue);
            }
            before = unit;
            before.weight = unit.block->weight_of(unit.tile);
            unit = next;
        }
        multiply_values(before, &queue);
    }

  private:
    // The unit of a tile; keys 0: nothing to do.
    Unit unit_of(int64_t tile, int32_t* p, FixedKeys* fixed) {
        Unit unit;
        unit.block = this, unit.tile = tile, unit.keys = keys_of(tile), unit.p = p;
        if (unit.keys % kStep != 0 || unit.keys == 0 || desc_.want_lse || needs_mask(tile * tile_, unit.keys))
            return unit;
        if (fixed->tile != tile) set_fixed_keys(tile, fixed);
        const float octaves = largest_unit_ * fixed->k_scale * 0x1p15f + fixed->loudest;
        unit.octave = kUnits;
        while (unit.doublings < kMostDoublings && octaves * unit.octave > kLargest) unit.octave /= 2, ++unit.doublings;
        if (octaves * unit.octave <= kLargest) unit.fixed = fixed;  // not where it is NaN
        return unit;
    }

    // O += V^T P c.
    static void multiply_values(const Unit& unit, TileQueue* queue) {
        if (!unit.block) return;
        unit.block->add_values(
            unit.weight, unit.p, queue, [&](int i) { unit.block->multiply_group(unit, i, queue); },
            [&](int i) { return unit.block->unit_.channels(i); });
    }

    // The first keys of a unit that no step before it multiplied.
    static void multiply_first_keys(const Unit& unit, TileQueue* queue) {
        if (!unit.fixed) return;
        Tiles::hold(unit.block->q_);
        for (int run = 0; run < TileQueue::kLead; ++run)
            unit.block->multiply_run(unit.tile, run, unit.block->unit_.keys(run), queue);
    }

    // Each lane's shift.
    void set_shifts() {
        const int64_t words = p_.dim / V::kDot;
        const I lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        F largest = V::set1(0.0f);
        V::M nan = V::none();
        CLARY_UNROLL for (int c = 0; c < 2; ++c) {
            I sum = V::zero();
            for (int64_t i = 0; i < words; ++i)
                sum = V::dot(sum, _mm512_abs_epi8(V::load(q_ + i * kLanes + c * V::kLanes)), V::set1(0x01010101));
            // The bits of 127 sum beyond 15.
            const F exponent = _mm512_getexp_ps(V::mul(V::to_float(sum), V::set1(127.0f)));
            const F shift = V::max(V::sub(exponent, V::set1(14.0f)), V::set1(0.0f));
            const __mmask16 there = _mm512_cmplt_epi32_mask(lane, V::set1(t_.rows - c * V::kLanes));
            const F unit = _mm512_maskz_scalef_ps(there, V::load(factor_ + c * V::kLanes), shift);
            V::store(unit_of_lane_ + c * V::kLanes, unit);
            largest = V::max(unit, largest);
            nan = V::either(nan, V::is_nan(unit));
            // Bytes shift.. and shift + 8.. of each lane's 32 bits of 64, twice.
            const I odd = _mm512_slli_epi32(_mm512_and_si512(lane, V::set1(1)), 5);
            const I bit = V::add(V::round(shift), odd);
            const I two = _mm512_or_si512(bit, _mm512_slli_epi32(V::add(bit, V::set1(8)), 8));
            take16_[c] = _mm512_or_si512(two, _mm512_slli_epi32(two, 16));
        }
        largest_unit_ = V::any(nan) ? NAN : _mm512_reduce_max_ps(largest);
        bias_unit_ = p_.q_repeat ? p_.q_base[t_.b * desc_.kv_heads + t_.kv_head] * p_.a : 0.0f;
    }

    // -- products --
    // Sums of 16 channels, after hold(unit.p).
    [[gnu::always_inline]] void multiply_group(const Unit& unit, int i, TileQueue* queue) const {
        const int64_t tile = tile_;
        const auto* const rows =
            static_cast<const int8_t*>(p_.v_codes) + ((kv_tile_ + unit.tile) * p_.dim_v + i * kRun) * tile;
        Tiles::multiply_s8_u8(queue->begin(unit_.channels(i)), rows, tile, unit.p, (unit.keys + kStep - 1) / kStep);
    }

    void fixed_step(const Unit& unit, const Unit& before, const Unit& next, TileQueue* queue) {
        constexpr int kLead = TileQueue::kLead;
        FixedKeys& fixed = *unit.fixed;
        const int runs = unit.keys / kRun, groups = before.block ? before.block->groups() : 0;
        buffers_.p = unit.p;
        if (fixed.octave != unit.octave) set_bias(unit.octave, &fixed);
        set_lane_scales(fixed.k_scale, unit.octave);
        I top[2] = {_mm512_set1_epi16(INT16_MIN), _mm512_set1_epi16(INT16_MIN)}, sum[2] = {};
        int begun = 0, added = 0;  // groups of channels
        const auto channels = [&](int round) {
            const int until = groups * (round - (runs - kLead) + 1) / runs;
            if (begun == 0 && until > 0) Tiles::hold(before.p);
            for (; begun < until; ++begun) before.block->multiply_group(before, begun, queue);
        };
        for (int run = 0; run < runs; ++run) {
            if (run + kLead < runs)
                multiply_run(unit.tile, run + kLead, unit_.keys(run + kLead), queue);
            else
                channels(run);
            queue->end_round();
            fixed_scores(run, fixed, top);
        }
        const bool moved = set_fixed_maxima(unit.tile, unit.octave, top);
        for (int run = 0; run < runs; ++run) {
            const int round = runs + run, first = round - (2 * runs - kLead);
            if (first < 0) {
                channels(round);
            } else if (next.fixed) {
                if (first == 0) Tiles::hold(next.block->q_);
                next.block->multiply_run(next.tile, first, unit_.keys(first), queue);
            }
            queue->end_round();
            fixed_weights(run, unit.doublings, fixed, top, sum);
            for (; added < groups * (run + 1) / runs; ++added)  // those begun kLead rounds ago
                before.block->add_group(before.weight, added, unit_.channels(added));
        }
        if (!next.fixed) queue->store_all();
        add_fixed_sums(sum);
        if (moved) rescale_output();
    }

    void float_step(const Unit& unit, TileQueue* queue) {
        buffers_.p = unit.p;
        float_scores(unit.tile, unit.keys, queue);
        if (softmax(unit.tile, unit.keys)) rescale_output();
        pad(unit.p, unit.keys / V::kDot);  // to the steps that multiply_group() takes
    }

    // -- scores in fixed point --
    void set_lane_scales(float k_scale, float octave) {
        const F scale = V::set1(octave * (0x1p30f / 32767));
        CLARY_UNROLL for (int c = 0; c < 2; ++c) {
            const F unit = V::mul(V::load(unit_of_lane_ + c * V::kLanes), V::set1(k_scale));
            const I x = V::round(V::mul(unit, scale));
            lane_scale_[c] = _mm512_or_si512(x, _mm512_slli_epi32(x, 16));
        }
    }
    void set_fixed_keys(int64_t tile, FixedKeys* fixed) {
        const int64_t row = kv_row_ + tile * tile_;
        F largest = V::set1(0.0f), loudest = V::set1(0.0f);
        for (int key = 0; key < tile_; key += V::kLanes) {
            largest = V::max(V::loadu(p_.k_scale + row + key), largest);
            if (bias_unit_ != 0) loudest = V::max(V::abs(bias_of(row + key)), loudest);
        }
        fixed->tile = tile;
        fixed->octave = 0;
        fixed->k_scale = _mm512_reduce_max_ps(largest);
        fixed->loudest = _mm512_reduce_max_ps(loudest);
        for (int key = 0; key < tile_; key += V::kLanes) {
            const F scale = V::mul(V::loadu(p_.k_scale + row + key), V::set1(32767.0f / fixed->k_scale));
            store_pairs(V::round(scale), fixed->scale + key / 2);
        }
        set_weights(tile, fixed->weights);
    }
    void set_bias(float octave, FixedKeys* fixed) const {
        fixed->octave = octave;
        if (bias_unit_ == 0) return;
        const int64_t row = kv_row_ + fixed->tile * tile_;
        for (int key = 0; key < tile_; key += V::kLanes)
            store_pairs(V::round(V::mul(bias_of(row + key), V::set1(octave))), fixed->bias + key / 2);
    }
    // Of 16 keys, octaves.
    F bias_of(int64_t row) const {
        const I pair = _mm512_loadu_si512(p_.k_pair + 2 * row);
        const F units = V::to_float(_mm512_srai_epi32(_mm512_slli_epi32(pair, 16), 16));
        return V::mul(V::mul(units, V::loadu(p_.k_scale + row)), V::set1(bias_unit_));
    }
    // Key t of a run beside key t + 8.
    static void store_pairs(I x, int32_t* to) {
        const __m256i low = _mm512_castsi512_si256(x), high = _mm512_extracti64x4_epi64(x, 1);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa));
    }

    [[gnu::always_inline]] void fixed_scores(int run, const FixedKeys& fixed, I (&top)[2]) const {
        if (bias_unit_ != 0)
            fixed_scores<true>(run, fixed, top);
        else
            fixed_scores<false>(run, fixed, top);
    }
    template <bool kBias>
    [[gnu::always_inline]] void fixed_scores(int run, const FixedKeys& fixed, I (&largest)[2]) const {
        const int32_t* const sums = held(unit_.keys(run));
        const int32_t* const scale = held(fixed.scale + run * (kRun / 2));
        const int32_t* const bias = held(fixed.bias + run * (kRun / 2));
        int32_t* const to = held(unit_.x + run * (kRun / 2) * kLanes);
        const I take16[2] = {take16_[0], take16_[1]}, lane_scale[2] = {lane_scale_[0], lane_scale_[1]};
        I top[2] = {largest[0], largest[1]};
        const __mmask64 low = held(0x3333333333333333), high = held(0xcccccccccccccccc);
        CLARY_UNROLL for (int t = 0; t < kRun / 2; ++t) {
            const I k_scale = V::set1(scale[t]);
            CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                const int at = t * kLanes + c * V::kLanes;
                I x = _mm512_maskz_multishift_epi64_epi8(low, take16[c], V::load(sums + at));
                x = _mm512_mask_multishift_epi64_epi8(x, high, take16[c], V::load(sums + at + kRun / 2 * kLanes));
                x = _mm512_mulhrs_epi16(_mm512_mulhrs_epi16(x, k_scale), lane_scale[c]);
                if constexpr (kBias) x = _mm512_add_epi16(x, V::set1(bias[t]));
                top[c] = _mm512_max_epi16(top[c], x);
                V::store(to + at, x);
            }
        }
        largest[0] = top[0], largest[1] = top[1];
    }
    bool set_fixed_maxima(int64_t tile, float octave, I (&top)[2]) {
        bool moved = false;
        CLARY_UNROLL for (int c = 0; c < 2; ++c) {
            top[c] = _mm512_max_epi16(top[c], _mm512_rol_epi32(top[c], 16));
            const F octaves = V::mul(V::to_float(_mm512_srai_epi32(top[c], 16)), V::set1(1 / octave));
            moved |= set_weight(tile, c * V::kLanes, octaves);
        }
        return moved;
    }

    [[gnu::always_inline]] void fixed_weights(int run, int doublings, const FixedKeys& fixed, const I (&top)[2],
                                              I (&sum)[2]) const {
        const auto with = [&]<int kDoublings>(std::integral_constant<int, kDoublings>) {
            if (p_.v_weight)
                fixed_weights<kDoublings, true>(run, fixed, top, sum);
            else
                fixed_weights<kDoublings, false>(run, fixed, top, sum);
        };
        if (doublings == 0)
            with(std::integral_constant<int, 0>());
        else if (doublings == 1)
            with(std::integral_constant<int, 1>());
        else
            with(std::integral_constant<int, 2>());
    }
    template <int kDoublings, bool kWeighted>
    [[gnu::always_inline]] void fixed_weights(int run, const FixedKeys& fixed, const I (&largest)[2],
                                              I (&sums)[2]) const {
        constexpr int kWords = kRun / V::kDot;
        const int32_t* const from = held(unit_.x + run * (kRun / 2) * kLanes);
        const int32_t* const weights = held(fixed.weights + run * kWords);
        const int32_t* const rest = held(fixed.weights + tile_ / V::kDot + run * kWords);
        int32_t* const to = held(buffers_.p + run * kWords * kLanes);
        const I top[2] = {largest[0], largest[1]};
        I sum[2] = {sums[0], sums[1]};
        const auto word = [](int bits) { return held(_mm512_set1_epi16(static_cast<int16_t>(bits))); };
        const I c0 = word(65275), c1 = word(45110), c2 = word(15019), c3 = word(2547), half = word(128),
                high = word(0xff00);
        const I low_to_high = held(_mm512_set4_epi32(0x0e800c80, 0x0a800880, 0x06800480, 0x02800080));
        const I high_to_low = held(_mm512_set4_epi32(static_cast<int>(0x800f800d), static_cast<int>(0x800b8009),
                                                     static_cast<int>(0x80078005), static_cast<int>(0x80038001)));
        // 65280 2^-d, d in units of 2^-8 octaves. Bytes are moved by port 5, which has less to do than that of shifts.
        const auto power = [&](I d) {
            const I fraction = _mm512_shuffle_epi8(d, low_to_high);
            I p = _mm512_sub_epi16(c2, _mm512_mulhi_epu16(fraction, c3));
            p = _mm512_sub_epi16(c1, _mm512_mulhi_epu16(fraction, p));
            p = _mm512_sub_epi16(c0, _mm512_mulhi_epu16(fraction, p));
            return _mm512_srlv_epi16(p, _mm512_shuffle_epi8(d, high_to_low));
        };
        CLARY_UNROLL for (int w = 0; w < kWords; ++w) {
            CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                // A word of P holds keys t, t + 1, t + 8, t + 9 (numerics/permutation.h).
                const int at = 2 * w * kLanes + c * V::kLanes;
                I d[2] = {_mm512_sub_epi16(top[c], V::load(from + at)),
                          _mm512_sub_epi16(top[c], V::load(from + at + kLanes))};
                CLARY_UNROLL for (int i = 0; i < kDoublings; ++i) {
                    d[0] = _mm512_adds_epu16(d[0], d[0]);
                    d[1] = _mm512_adds_epu16(d[1], d[1]);
                }
                const I even = _mm512_add_epi16(power(d[0]), half), odd = _mm512_add_epi16(power(d[1]), half);
                const I p = _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, high, 0xf8);
                V::store(to + w * kLanes + c * V::kLanes, p);
                sum[c] = V::dot(sum[c], p, V::set1(rest[w]));
                if constexpr (kWeighted) sum[c] = V::dot(sum[c], p, V::set1(weights[w]));
            }
        }
        sums[0] = sum[0], sums[1] = sum[1];
    }

    void add_fixed_sums(const I (&sum)[2]) {
        CLARY_UNROLL for (int c = 0; c < 2; ++c) {
            const float unit = p_.v_weight ? 1.0f / numerics::kWeightUnit : 1.0f;
            add_to_sum(sum_ + c * V::kLanes, c * V::kLanes, V::mul(V::to_float(sum[c]), V::set1(unit)));
        }
    }

    const UnitMemory& unit_;
    I take16_[2];      // bits of S that become S16
    I lane_scale_[2];  // of the tile: units of x per unit of S16 at the largest k_scale, times 2^15, twice in each lane
    float bias_unit_ = 0;     // octaves per k_scale and bias unit
    float largest_unit_ = 0;  // octaves per k_scale and unit of S16
    alignas(64) float unit_of_lane_[kLanes];
};

}  // namespace clary::cpu::amx
