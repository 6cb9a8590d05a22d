// SPDX-License-Identifier: Apache-2.0
// The attention kernel with AMX's tile products. A task is four blocks of 32 queries, which read each tile of K and V while it
// is near; a block and a tile are a unit. Vectors work on a unit while the tile registers finish the unit before it and begin
// the next:
//
//     tile registers   S(0)   |  V^T P(u-1)         S(u+1)      |  ...
//     vectors                 |  scores, max of u   P(u)        |  ...
//                                O += T(u-1) c
//
// Scores in fixed point. Where a tile needs no mask, no LSE is wanted and its scores surely lie within +-128 octaves (base
// 2), they are int16 in units of 2^-8, two keys (t and t + 8 of a run of 16) in each lane:
//
//     S16 = S >> shift                             shift: the lane's, so that 127 sum|q codes| fits 15 bits
//     x = S16 * (k_scale / largest) * factor       two rounded products
//     x += key bias
//     P = 255 * 2^-(m - x)                         exponent: high byte of m - x; a square polynomial (0.17 %) of the low one
//
// P errs by 0.3 % at most, 0.2 % in the mean square, before it is rounded to 8 bits; docs/decisions/0022-scores-in-16-bits.md.
// All other tiles take AttentionKernel's own steps, in fp32.
#pragma once

#include <bit>
#include <optional>

#include "cpu/amx/tiles.h"
#include "cpu/amx/vec.h"
#include "cpu/attention_kernel.h"

namespace clary::cpu::amx {

// What the blocks of a task use one after the other.
struct UnitMemory {
    UnitMemory(const AttentionDesc& desc, void* base) {
        Scratch scratch(base);
        s = scratch.take<int32_t>(desc.recipe.tile * 32);      // [keys][lanes]; later x in fp32
        x = scratch.take<int32_t>(desc.recipe.tile / 2 * 32);  // [pairs of keys][lanes] int16
        p = scratch.take<int32_t>(desc.recipe.tile / 4 * 32);  // [words of four keys][lanes]
        t = scratch.take<int32_t>(32 * 32);                    // [channels][lanes]
        bytes = scratch.bytes();
    }
    int32_t *s, *x, *p, *t;
    int64_t bytes;
};

// The keys of a tile for scores in fixed point; the same for all blocks.
struct FixedKeys {
    int64_t tile = -1;
    int fraction = 0;    // bits of x below an octave
    float k_scale = 0;   // the largest
    alignas(64) int32_t scale[kMaxTile / 2];  // of pairs: k_scale over the largest, times 32767
    alignas(64) int32_t bias[kMaxTile / 2];   // units of x
    alignas(64) int32_t weights[kMaxTile / 2];
};

// A block and a tile: the keys that are multiplied are those that any lane sees, up to a whole step of products. No keys: no unit.
struct Unit {
    int block = 0;
    int64_t tile = 0;
    int keys = 0;
};

// NaN where one is.
inline float larger(float a, float b) { return a >= b || a != a ? a : b; }

class TileBlock : AttentionKernel<Vec, Format::kInt8, Format::kInt8, 2, 1> {
    using Base = AttentionKernel<Vec, Format::kInt8, Format::kInt8, 2, 1>;
    using V = Vec;
    using I = V::I;
    using F = V::F;
    static constexpr int kProducts = 2 * Tiles::kRows;  // keys or channels of a block of products
    static constexpr int kStep = Tiles::kRowBytes;      // codes of a step of products
    static constexpr int kRun = numerics::kVRun;        // keys
    static constexpr int kRuns = kProducts / kRun;
    static constexpr int kLeastFraction = 6, kMostFraction = 10;  // bits of x below an octave

  public:
    static constexpr int kLanes = Base::kQueries;  // in two vectors
    static constexpr int64_t kRowBytes = kLanes * sizeof(int32_t);

    TileBlock(const AttendProblem& problem, const AttendTask& task, void* scratch, const UnitMemory& unit)
        : Base(problem, task, scratch), unit_(unit), q_(static_cast<int32_t*>(scratch) + Base::scratch_bytes(problem.desc) / 4) {
        buffers_.x = reinterpret_cast<float*>(unit.s);
        buffers_.p = unit.p;
    }
    static int64_t scratch_bytes(const AttentionDesc& desc) {
        return Base::scratch_bytes(desc) + round_up(desc.head_dim, kStep) / V::kDot * kRowBytes;
    }
    using Base::join;
    using Base::partial_floats;

    void begin() {
        load_queries();
        set_ranges();
        load_operands();
    }
    void end() {
        if (t_.partial)
            save(t_.partial);
        else
            finish();
    }

    float largest_unit() const { return largest_unit_; }

    int keys_of(int64_t tile) const {
        const int64_t first_key = tile * tile_;
        if (first_key >= keep_max_ && (first_key + tile_ <= begin_min_ || first_key >= end_max_)) return 0;
        return static_cast<int>(round_up(keys_to_compute(first_key), kStep));
    }

    // P of the unit, while `before` multiplies its values and `next` its keys.
    void step(const Unit& unit, float largest_unit, FixedKeys* fixed, TileBlock* before, const Unit& unit_before, TileBlock* next,
              const Unit& unit_next) {
        const bool masked = needs_mask(unit.tile * tile_, unit.keys);
        bool moved = false;
        if (!masked && set_fixed_point(unit, largest_unit, fixed)) {
            const int chunks = unit.keys / kProducts;
            I top[2] = {_mm512_set1_epi16(INT16_MIN), _mm512_set1_epi16(INT16_MIN)}, sum[2] = {};
            before->multiply_values(unit_before, chunks, [&](int i) { fixed_scores(i, *fixed, top); });
            moved = set_fixed_maxima(unit.tile, fixed->fraction, top);
            next->multiply_keys(unit_next, chunks, [&](int i) { fixed_weights(i, *fixed, top, sum); });
            add_fixed_sums(sum);
        } else {
            before->multiply_values(unit_before, 0, [](int) {});
            float_scores(unit);
            if (masked) mask(unit.tile * tile_, unit.keys);
            moved = softmax(unit.tile, unit.keys);
            next->multiply_keys(unit_next, 0, [](int) {});
        }
        if (moved) rescale_output();
    }

  private:
    friend class TileTask;

    // Q's codes with zeros up to a whole step, so that what lies behind a row of K counts nothing; each lane's shift.
    void load_operands() {
        const int64_t words = p_.dim / V::kDot;
        std::memcpy(q_, buffers_.q, static_cast<size_t>(words * kRowBytes));
        std::memset(q_ + words * kLanes, 0, static_cast<size_t>((round_up(p_.dim, kStep) / V::kDot - words) * kRowBytes));
        alignas(64) int32_t magnitude[kLanes], control[kLanes];
        CLARY_UNROLL for (int c = 0; c < 2; ++c) {
            I sum = V::zero();
            for (int64_t i = 0; i < words; ++i)
                sum = V::dot(sum, _mm512_abs_epi8(V::load(q_ + i * kLanes + c * V::kLanes)), V::set1(0x01010101));
            V::store(magnitude + c * V::kLanes, sum);
        }
        largest_unit_ = 0;
        for (int lane = 0; lane < kLanes; ++lane) {
            const int shift = std::bit_width(static_cast<uint32_t>(magnitude[lane]) * 127 >> 15);
            unit_of_lane_[lane] = lane < t_.rows ? factor_[lane] * static_cast<float>(1 << shift) : 0.0f;
            largest_unit_ = larger(largest_unit_, unit_of_lane_[lane]);
            const int bit = shift + 32 * (lane % 2);  // of a lane's 64 bits
            control[lane] = (bit | (bit + 8) << 8) * 0x00010001;
        }
        CLARY_UNROLL for (int c = 0; c < 2; ++c) take16_[c] = V::load(control + c * V::kLanes);
        bias_unit_ = p_.q_repeat ? p_.q_base[t_.b * desc_.kv_heads + t_.kv_head] * p_.a : 0.0f;
    }

    // -- products; work(i) of `chunks` is done beside them --
    template <typename Work>
    [[gnu::always_inline]] void multiply_keys(const Unit& unit, int chunks, const Work& work) {
        const auto* const rows = static_cast<const int8_t*>(p_.k_codes) + (kv_row() + unit.tile * tile_) * p_.dim;
        const int blocks = unit.keys / kProducts;
        for (int block = 0, done = 0; block < std::max(blocks, 1); ++block) {
            if (block < blocks) {
                Tiles::clear();
                for (int64_t step = 0; step < p_.dim; step += kStep) {
                    Tiles::load<true>(rows + block * kProducts * p_.dim + step, p_.dim, q_ + step / V::kDot * kLanes,
                                      kRowBytes);
                    Tiles::multiply_s8_s8<true>();
                }
            }
            for (; done < chunks * (block + 1) / std::max(blocks, 1); ++done) work(done);
            if (block < blocks) Tiles::store<true>(buffers_.x + block * kProducts * kLanes);
        }
    }

    template <typename Work>
    [[gnu::always_inline]] void multiply_values(const Unit& unit, int chunks, const Work& work) {
        if (unit.keys == 0) {
            for (int i = 0; i < chunks; ++i) work(i);
            return;
        }
        const Weight weight = weight_of(unit.tile);
        const auto* const rows =
            static_cast<const int8_t*>(p_.v_codes) + (kv_row() / tile_ + unit.tile) * p_.dim_v * tile_;
        const int blocks = static_cast<int>((p_.dim_v + kProducts - 1) / kProducts);
        for (int block = 0, done = 0; block < blocks; ++block) {
            const int64_t d = block * kProducts;
            Tiles::clear();
            const bool both = d + kProducts <= p_.dim_v;
            for (int64_t step = 0; step < unit.keys; step += kStep)
                multiply_step(both, rows + d * tile_ + step, buffers_.p + step / V::kDot * kLanes);
            if (block > 0) add_block(weight, d - kProducts, Tiles::kRows * 2);
            for (; done < chunks * (block + 1) / blocks; ++done) work(done);
            if (both)
                Tiles::store<true>(unit_.t);
            else
                Tiles::store<false>(unit_.t);
        }
        const int64_t last = (blocks - 1) * kProducts;
        add_block(weight, last, static_cast<int>(p_.dim_v - last));
    }
    [[gnu::always_inline]] void multiply_step(bool both, const int8_t* v, const int32_t* p) {
        if (both) {
            Tiles::load<true>(v, tile_, p, kRowBytes);
            Tiles::multiply_s8_u8<true>();
        } else {
            Tiles::load<false>(v, tile_, p, kRowBytes);
            Tiles::multiply_s8_u8<false>();
        }
    }
    [[gnu::always_inline]] void add_block(const Weight& weight, int64_t d, int channels) {
        const Weight own = weight;
        const int32_t* const from = unit_.t;
        for (int r = 0; r < channels; ++r) {
            CLARY_UNROLL for (int c = 0; c < 2; ++c)
                add_value(own, d + r, c, V::to_float(V::load(from + r * kLanes + c * V::kLanes)));
        }
    }

    // -- scores in fp32 --
    void float_scores(const Unit& unit) {
        const int64_t row = kv_row() + unit.tile * tile_;
        F top[2] = {V::set1(-INFINITY), V::set1(-INFINITY)};
        for (int key = 0; key < unit.keys; ++key) {
            const I k_pair = spread(p_.k_pair + 2 * (row + key));
            const F k_scale = spread(p_.k_scale + row + key);
            CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                float* const x = buffers_.x + key * kLanes + c * V::kLanes;
                put_score(V::load(reinterpret_cast<const int32_t*>(x)), V::load(pair_ + c * V::kLanes), k_pair, k_scale, x,
                          &top[c]);
            }
        }
        set_maxima(top);
    }

    // -- scores in fixed point --
    // The factors of the tile's keys and lanes; false where scores might not fit.
    bool set_fixed_point(const Unit& unit, float largest_unit, FixedKeys* fixed) {
        if (desc_.want_lse) return false;
        if (fixed->tile != unit.tile) set_fixed_keys(unit.tile, largest_unit, fixed);
        if (fixed->fraction < kLeastFraction) return false;
        const F scale = V::set1(std::ldexp(fixed->k_scale, fixed->fraction + 15));
        CLARY_UNROLL for (int c = 0; c < 2; ++c) {
            const I x = V::round(V::mul(V::load(unit_of_lane_ + c * V::kLanes), scale));
            lane_scale_[c] = _mm512_or_si512(x, _mm512_slli_epi32(x, 16));
        }
        return true;
    }
    void set_fixed_keys(int64_t tile, float largest_unit, FixedKeys* fixed) {
        const int64_t row = kv_row() + tile * tile_;
        F largest = V::set1(0.0f), loudest = V::set1(0.0f);
        const auto bias = [&](int key) {  // octaves
            const I pair = _mm512_loadu_si512(p_.k_pair + 2 * (row + key));
            const F units = V::to_float(_mm512_srai_epi32(_mm512_slli_epi32(pair, 16), 16));
            return V::mul(V::mul(units, V::loadu(p_.k_scale + row + key)), V::set1(bias_unit_));
        };
        for (int key = 0; key < tile_; key += V::kLanes) {
            largest = V::max(V::loadu(p_.k_scale + row + key), largest);
            if (bias_unit_ != 0) loudest = V::max(V::abs(bias(key)), loudest);
        }
        fixed->tile = tile;
        fixed->k_scale = _mm512_reduce_max_ps(largest);
        // Half a unit of each rounding is kept free.
        const float octaves = largest_unit * fixed->k_scale * 0x1p15f + _mm512_reduce_max_ps(loudest);
        fixed->fraction = octaves <= 512 ? std::min(14 - std::ilogb(std::max(octaves * 1.001f, 1.0f)), kMostFraction) : 0;
        if (fixed->fraction < kLeastFraction) return;
        for (int key = 0; key < tile_; key += V::kLanes) {
            const F scale = V::mul(V::loadu(p_.k_scale + row + key), V::set1(32767.0f / fixed->k_scale));
            store_pairs(V::round(scale), fixed->scale + key / 2);
            if (bias_unit_ != 0)
                store_pairs(V::round(V::mul(bias(key), V::set1(std::ldexp(1.0f, fixed->fraction)))), fixed->bias + key / 2);
        }
        set_weights(tile, fixed->weights);
    }
    // Key t of a run beside key t + 8.
    static void store_pairs(I x, int32_t* to) {
        const __m256i low = _mm512_castsi512_si256(x), high = _mm512_extracti64x4_epi64(x, 1);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                           _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa));
    }

    [[gnu::always_inline]] void fixed_scores(int chunk, const FixedKeys& fixed, I (&top)[2]) {
        if (bias_unit_ != 0)
            fixed_scores<true>(chunk, fixed, top);
        else
            fixed_scores<false>(chunk, fixed, top);
    }
    template <bool kBias>
    [[gnu::always_inline]] void fixed_scores(int chunk, const FixedKeys& fixed, I (&largest)[2]) {
        // Copies, which stay in registers: a store of a vector may change any member.
        const I take16[2] = {take16_[0], take16_[1]}, lane_scale[2] = {lane_scale_[0], lane_scale_[1]};
        const auto* const scores = reinterpret_cast<const int32_t*>(buffers_.x);
        int32_t* const to = unit_.x;
        I top[2] = {largest[0], largest[1]};
        constexpr __mmask64 kLow = 0x3333333333333333, kHigh = ~kLow;
        for (int run = chunk * kRuns; run < (chunk + 1) * kRuns; ++run)
            CLARY_UNROLL for (int t = 0; t < kRun / 2; ++t) {
                const int pair = run * (kRun / 2) + t;
                const I k_scale = V::set1(fixed.scale[pair]), k_bias = kBias ? V::set1(fixed.bias[pair]) : V::zero();
                CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                    const int32_t* const s = scores + (run * kRun + t) * kLanes + c * V::kLanes;
                    I x = _mm512_maskz_multishift_epi64_epi8(kLow, take16[c], V::load(s));
                    x = _mm512_mask_multishift_epi64_epi8(x, kHigh, take16[c], V::load(s + kRun / 2 * kLanes));
                    x = _mm512_mulhrs_epi16(_mm512_mulhrs_epi16(x, k_scale), lane_scale[c]);
                    if constexpr (kBias) x = _mm512_add_epi16(x, k_bias);
                    top[c] = _mm512_max_epi16(top[c], x);
                    V::store(to + pair * kLanes + c * V::kLanes, x);
                }
            }
        largest[0] = top[0], largest[1] = top[1];
    }

    bool set_fixed_maxima(int64_t tile, int fraction, I (&top)[2]) {
        bool moved = false;
        CLARY_UNROLL for (int c = 0; c < 2; ++c) {
            top[c] = _mm512_max_epi16(top[c], _mm512_rol_epi32(top[c], 16));
            const F octaves = V::mul(V::to_float(_mm512_srai_epi32(top[c], 16)), V::set1(std::ldexp(1.0f, -fraction)));
            moved |= set_weight(tile, c * V::kLanes, octaves);
        }
        return moved;
    }

    // 65280 2^-d, d with so many bits below an octave.
    static I power(I d, I fraction, I rest) {
        const I f = _mm512_sllv_epi16(d, rest);
        I p = _mm512_sub_epi16(_mm512_set1_epi16(static_cast<int16_t>(43477)), _mm512_mulhi_epu16(f, _mm512_set1_epi16(11006)));
        p = _mm512_sub_epi16(_mm512_set1_epi16(static_cast<int16_t>(65168)), _mm512_mulhi_epu16(f, p));
        return _mm512_srlv_epi16(p, _mm512_srlv_epi16(d, fraction));
    }

    [[gnu::always_inline]] void fixed_weights(int chunk, const FixedKeys& fixed, const I (&largest)[2], I (&sums)[2]) {
        const I top[2] = {largest[0], largest[1]};
        I sum[2] = {sums[0], sums[1]};
        const I half = _mm512_set1_epi16(128), high = _mm512_set1_epi16(static_cast<int16_t>(0xff00));
        const I fraction = _mm512_set1_epi16(static_cast<int16_t>(fixed.fraction));
        const I rest = _mm512_set1_epi16(static_cast<int16_t>(16 - fixed.fraction));
        const bool weighted = p_.v_weight != nullptr;
        const int32_t* const from = unit_.x;
        const int32_t* const weights = fixed.weights;
        int32_t* const to = buffers_.p;
        const int parts = tile_ / V::kDot;  // words between the two parts of weights
        for (int run = chunk * kRuns; run < (chunk + 1) * kRuns; ++run)
            CLARY_UNROLL for (int w = 0; w < kRun / V::kDot; ++w) {
                const int word = run * (kRun / V::kDot) + w;
                CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                    // A word of P holds keys t, t + 1, t + 8, t + 9 (numerics/permutation.h).
                    const int32_t* const x = from + 2 * word * kLanes + c * V::kLanes;
                    const I even = _mm512_add_epi16(power(_mm512_sub_epi16(top[c], V::load(x)), fraction, rest), half);
                    const I odd = _mm512_add_epi16(power(_mm512_sub_epi16(top[c], V::load(x + kLanes)), fraction, rest), half);
                    const I p = _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, high, 0xf8);
                    V::store(to + word * kLanes + c * V::kLanes, p);
                    sum[c] = V::dot(sum[c], p, V::set1(weights[parts + word]));
                    if (weighted) sum[c] = V::dot(sum[c], p, V::set1(weights[word]));
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
    int32_t* const q_;    // [code words][lanes]
    I take16_[2];         // bits of S that become S16
    I lane_scale_[2];     // of the tile: units of x per unit of S16 at the largest k_scale, times 2^15, twice in each lane
    float bias_unit_ = 0;     // octaves per k_scale and bias unit
    float largest_unit_ = 0;  // octaves per k_scale and unit of S16
    alignas(64) float unit_of_lane_[kLanes];
};

// Four blocks, tile by tile.
class TileTask {
    static constexpr int kBlocks = 4;

  public:
    static constexpr int kQueries = kBlocks * TileBlock::kLanes;

    static int64_t scratch_bytes(const AttentionDesc& desc) {
        return UnitMemory(desc, nullptr).bytes + kBlocks * TileBlock::scratch_bytes(desc);
    }
    static int64_t partial_floats(const AttentionDesc& desc, int rows) {
        return (rows + TileBlock::kLanes - 1) / TileBlock::kLanes * TileBlock::partial_floats(desc);
    }

    TileTask(const AttendProblem& problem, const AttendTask& task, void* scratch)
        : task_(task), memory_(problem.desc, scratch) {
        char* at = static_cast<char*>(scratch) + memory_.bytes;
        for (int row = 0; row < task.rows; row += TileBlock::kLanes) {
            AttendTask& own = tasks_[count_] = task;
            own.first_row += row;
            own.rows = std::min(task.rows - row, TileBlock::kLanes);
            if (task.partial) own.partial += count_ * TileBlock::partial_floats(problem.desc);
            blocks_[count_++].emplace(problem, own, at, memory_);
            at += TileBlock::scratch_bytes(problem.desc);
        }
    }

    void run() {
        float largest_unit = 0;
        for (int i = 0; i < count_; ++i) {
            blocks_[i]->begin();
            largest_unit = larger(largest_unit, blocks_[i]->largest_unit());
        }
        FixedKeys fixed;
        const Tiles tiles;
        Unit before, now = after({.block = -1, .tile = task_.first_tile});
        blocks_[now.block]->multiply_keys(now, 0, [](int) {});
        while (now.keys > 0) {
            const Unit next = after(now);
            blocks_[now.block]->step(now, largest_unit, &fixed, &*blocks_[before.block], before, &*blocks_[next.block], next);
            before = now;
            now = next;
        }
        blocks_[before.block]->multiply_values(before, 0, [](int) {});
        for (int i = 0; i < count_; ++i) blocks_[i]->end();
    }

    void join(const float* partials, int64_t stride, int64_t pieces) {
        for (int i = 0; i < count_; ++i)
            blocks_[i]->join(partials + i * blocks_[i]->partial_floats(blocks_[i]->desc_), stride, pieces);
    }

  private:
    Unit after(Unit unit) const {
        do {
            if (++unit.block == count_) ++unit.tile, unit.block = 0;
            if (unit.tile >= task_.end_tile) return {};
            unit.keys = blocks_[unit.block]->keys_of(unit.tile);
        } while (unit.keys == 0);
        return unit;
    }

    const AttendTask& task_;
    UnitMemory memory_;
    AttendTask tasks_[kBlocks];
    std::optional<TileBlock> blocks_[kBlocks];
    int count_ = 0;
};

}  // namespace clary::cpu::amx
