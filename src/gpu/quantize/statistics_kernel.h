// SPDX-License-Identifier: Apache-2.0
// The vectors of every (sequence, kv head): c_k and v_mean (means over keys) and the floor that v_scale=channel starts from by
// one block; c_q (mean over the rows of all q heads of the kv head) and q_base (the scale of Q's repeat 1) by another.
//
// They are taken from a sample of at most 128 keys (of V 512), and as many rows of Q: the sequence in 128 parts, one token
// of each, at a place that changes from part to part so that no period of the tokens (rows of an image, alternating signs)
// falls in step with the sample. Up to 128 all are taken. A mean is a choice, not a result: softmax does not change
// with c_k, the key bias restores c_q, the epilogue adds v_mean. The error of a sampled mean is 1/11 of a channel's
// standard deviation, far below what smoothing is for (channels whose mean is many deviations). Rows with a
// value that is not finite are left out.
//
// q_base, from the same rows of Q: a row that needs more has its bias added in fp32, right but slow, so their largest need gets
// head room of a factor 2 where they are not all. It costs nothing where rows are alike: 64 times the typical need is larger
// then.
//
// Reads: 128 rows of Q and K, and 512 of V with smooth_v. Most of the time is latency, so what a block holds of Q's sample when
// c_q is there serves q_base too. Shared memory: sums of every channel and wave, and c_q.
#pragma once

#include <cmath>

#include "gpu/quantize/rows.h"
#include "numerics/digits.h"

namespace clary::gpu {

// Token i of a sample of `taken` from `count`, which kernels count in 31 bits.
template <uint32_t kMost>
struct Sample {
    uint32_t count;
    CLARY_HD constexpr uint32_t taken() const { return count < kMost ? count : kMost; }
    CLARY_HD constexpr uint32_t operator()(uint32_t i) const {
        if (count <= kMost) return i;
        const auto begin = static_cast<uint32_t>(uint64_t{i} * count / kMost);
        const uint32_t width = static_cast<uint32_t>(uint64_t{i + 1} * count / kMost) - begin;
        const uint32_t random = (i + 1) * 0x9e3779b9u;  // golden ratio: spreads evenly
        return begin + static_cast<uint32_t>(uint64_t{random} * width >> 32);
    }
};

template <class T, QuantizeConfig kConfig>
class StatisticsKernel {
    using Row = Rows<T, kConfig.dim>;
    using VRow = Rows<T, kConfig.dim_v>;
    static constexpr int kLargerDim = kConfig.dim > kConfig.dim_v ? kConfig.dim : kConfig.dim_v;
    static constexpr uint32_t kSampled = 128;              // rows of Q and K
    static constexpr int64_t kFewestQueriesToSmooth = 16;  // their mean would be the signal

  public:
    static constexpr int kThreads = 256;
    static constexpr int kBlocks = 2;

  private:
    static constexpr int kWaves = kThreads / T::kLanes;
    static constexpr uint32_t kSumsAt = 0;                                  // [wave][channel by slot]
    static constexpr uint32_t kRowsAt = kSumsAt + kWaves * kLargerDim * 4;  // [wave]
    static constexpr uint32_t kNeedsAt = kRowsAt + 64;                      // [wave]: largest, sum, rows, -
    static constexpr uint32_t kQMeanAt = kNeedsAt + kWaves * 16;            // c_q
    static_assert(kWaves * 4 <= 64);

  public:
    static constexpr uint32_t kSharedBytes = kQMeanAt + Row::kVectorBytes;
    static_assert(kSharedBytes <= T::kSharedBytes, "fits the machine");

    CLARY_DEVICE static void run(const QuantizeParams& p) {
        const AttentionDesc& desc = p.desc;
        T::let_next_start();
        const int64_t heads = desc.batch * desc.kv_heads;
        const bool of_q = T::block(0) < heads;  // what takes longer comes first
        const int64_t head = of_q ? T::block(0) : T::block(0) - heads;
        if (head >= heads) return;
        const int64_t b = head / desc.kv_heads, h = head % desc.kv_heads;
        const Sequence s = sequence_of(desc, b);
        if (of_q)
            of_queries(p, s, head, b, h);
        else
            of_keys(p, s, head, b, h);
    }

  private:
    CLARY_DEVICE static void of_keys(const QuantizeParams& p, const Sequence& s, int64_t head, int64_t b, int64_t h) {
        const AttentionDesc& desc = p.desc;
        const Recipe& recipe = desc.recipe;
        float* const c_k = p.c_k + head * kConfig.dim;
        const Source keys{s.kv_len, 1, h, false};
        if (!recipe.smooth_k)
            fill(c_k);
        else if (desc.c_k.given())
            take(desc.c_k, b, h, desc.head_dim, c_k);
        else
            mean<Row, kSampled>(desc, s, b, keys, desc.k, desc.head_dim, c_k);
        if (p.v_mean != nullptr)
            mean<VRow, 512>(desc, s, b, keys, desc.v, desc.head_dim_v, p.v_mean + head * kConfig.dim_v);
        if (recipe.v_scale == VScale::kChannel)
            for (int d = Row::thread(); d < kConfig.dim_v; d += kThreads)
                p.v_scale[head * kConfig.dim_v + d] = numerics::kScaleFloor;
    }
    CLARY_DEVICE static void of_queries(const QuantizeParams& p, const Sequence& s, int64_t head, int64_t b,
                                        int64_t h) {
        const AttentionDesc& desc = p.desc;
        float* const c_q = p.c_q + head * kConfig.dim;
        const bool some = desc.q.data != nullptr && s.q_len > 0;
        const Source queries{some ? s.q_len : 0, p.q_heads_per_kv, h * p.q_heads_per_kv, true};
        Draw<Row, kSampled> draw(desc, s, b, queries, desc.q, desc.head_dim);
        // With scale 0 no score counts, and the bias of c_q must not either.
        if (!desc.recipe.smooth_q || desc.scale == 0)
            fill(c_q);
        else if (desc.c_q.given())
            take(desc.c_q, b, h, desc.head_dim, c_q);
        else if (!some || s.q_len < kFewestQueriesToSmooth)
            fill(c_q);
        else
            mean(draw, c_q);

        float q_base = 1;  // no query will read it
        if (p.key_bias && desc.q_base.given())
            q_base = static_cast<const float*>(desc.q_base.data)[b * desc.q_base.stride[0] + h * desc.q_base.stride[1]];
        else if (p.key_bias && some)
            q_base = base_of(p, draw, c_q);
        if (Row::thread() == 0) p.q_base[head] = q_base;
    }

    // Rows of a kv head: the tokens of its heads, one head after the other.
    struct Source {
        int64_t tokens;
        int32_t heads;
        int64_t first_head;
        bool is_q;

        template <uint32_t kMost>
        CLARY_DEVICE Sample<kMost> sample() const {
            return {static_cast<uint32_t>(tokens * heads)};
        }
        CLARY_DEVICE const void* address(const AttentionDesc& desc, const Operand& operand, const Sequence& s,
                                         int64_t b, uint32_t row) const {
            const auto length = static_cast<uint32_t>(tokens);
            const uint32_t head = heads > 1 ? row / length : 0;  // (a division is twenty instructions)
            return token_address(desc, operand, b, first_head + head, s, is_q)(row - head * length);
        }
    };

    CLARY_DEVICE static void fill(float* vector) {
        for (int d = Row::thread(); d < kConfig.dim; d += kThreads) vector[d] = 0;
    }
    CLARY_DEVICE static void take(const TensorView& given, int64_t b, int64_t h, int64_t head_dim, float* vector) {
        const float* const from = static_cast<const float*>(given.data) + b * given.stride[0] + h * given.stride[1];
        for (int d = Row::thread(); d < kConfig.dim; d += kThreads)
            vector[d] = d < head_dim ? from[d * given.stride[2]] : 0.0f;
    }

    // A sample, as many rows at once as the block holds: every so many-th, so that each pass has some of the whole sequence.
    template <class R, uint32_t kMost>
    struct Draw {
        using Rows = R;
        static constexpr int kAtOnce = kThreads / R::kLanesPerRow * R::kRows;
        const AttentionDesc& desc;
        const Sequence& sequence;
        int64_t b;
        const Source& source;
        const Operand& operand;
        int64_t head_dim;
        Sample<kMost> sample;
        int taken, passes, pass = -1;  // the one that is held
        R x;

        CLARY_DEVICE Draw(const AttentionDesc& desc_, const Sequence& sequence_, int64_t b_, const Source& source_,
                          const Operand& operand_, int64_t head_dim_)
            : desc(desc_),
              sequence(sequence_),
              b(b_),
              source(source_),
              operand(operand_),
              head_dim(head_dim_),
              sample(source_.template sample<kMost>()),
              taken(static_cast<int>(sample.taken())),
              passes((taken + kAtOnce - 1) / kAtOnce) {}
        CLARY_DEVICE int rows() const { return (taken - pass + passes - 1) / passes; }  // of the pass
        CLARY_DEVICE void hold(int which) {
            if (pass == which) return;
            pass = which;
            x.load(operand, head_dim, rows(), [&](int row) {
                return source.address(desc, operand, sequence, b, sample(static_cast<uint32_t>(row * passes + pass)));
            });
        }
    };

    // Sums of the lane's columns over its rows, which are counted; if `checked`, over the finite ones.
    template <bool checked, class D>
    CLARY_DEVICE static float add_rows(D& draw, float* sum) {
        using R = typename D::Rows;
        float rows = 0;
        CLARY_UNROLL
        for (int column = 0; column < R::kColumns; ++column) sum[column] = 0;
        for (int pass = 0; pass < draw.passes; ++pass) {
            draw.hold(pass);
            CLARY_UNROLL
            for (int i = 0; i < R::kRows; ++i) {
                if (checked && !(draw.x.largest(i) < INFINITY)) continue;
                CLARY_UNROLL
                for (int column = 0; column < R::kColumns; ++column) sum[column] += draw.x.x[i][column];
                rows += R::row(i) < draw.rows() ? 1.0f : 0.0f;
            }
        }
        return rows;
    }
    // The mean of each channel over the rows of a sample that are finite; 0 where there are none.
    template <class D>
    CLARY_DEVICE static void mean(D& draw, float* result) {
        using R = typename D::Rows;
        constexpr int kDim = R::kLanesPerRow * R::kColumns;
        float sum[R::kColumns], rows = add_rows<false>(draw, sum), all = 0;
        CLARY_UNROLL
        for (int column = 0; column < R::kColumns; ++column) all += sum[column];
        if (T::any(!(fabsf(all) < INFINITY))) rows = add_rows<true>(draw, sum);
        T::block_sync();  // the sums of the vector before have been read
        CLARY_UNROLL
        for (int mask = R::kLanesPerRow; mask < T::kLanes; mask *= 2) rows += T::shuffle_xor(rows, mask);
        if (T::lane() == 0) T::store(word(kRowsAt, T::wave()), rows);
        CLARY_UNROLL
        for (int column = 0; column < R::kColumns; ++column) {
            CLARY_UNROLL
            for (int mask = R::kLanesPerRow; mask < T::kLanes; mask *= 2)
                sum[column] += T::shuffle_xor(sum[column], mask);
            // Lanes that hold neighbouring runs of 8 channels write neighbouring words.
            const int slot = column % 8 * (kDim / 8) + R::chunk(column / 8);
            if (T::lane() < R::kLanesPerRow) T::store(word(kSumsAt, T::wave() * kDim + slot), sum[column]);
        }
        T::block_sync();
        for (int slot = R::thread(); slot < kDim; slot += kThreads) {
            float total = 0, present = 0;
            for (int wave = 0; wave < kWaves; ++wave) {
                total += T::template load<float>(word(kSumsAt, wave * kDim + slot));
                present += T::template load<float>(word(kRowsAt, wave));
            }
            result[slot % (kDim / 8) * 8 + slot / (kDim / 8)] = present > 0 ? total / present : 0.0f;
        }
    }
    template <class R, uint32_t kMost>
    CLARY_DEVICE static void mean(const AttentionDesc& desc, const Sequence& s, int64_t b, const Source& source,
                                  const Operand& operand, int64_t head_dim, float* result) {
        Draw<R, kMost> draw(desc, s, b, source, operand, head_dim);
        mean(draw, result);
    }
    CLARY_DEVICE static SharedAddress word(uint32_t array, int index) {
        return {array + static_cast<uint32_t>(index * 4)};
    }

    struct alignas(16) Needs {
        float largest, sum, rows, unused;
    };
    CLARY_DEVICE static float base_of(const QuantizeParams& p, Draw<Row, kSampled>& draw, const float* c_q) {
        const AttentionDesc& desc = p.desc;
        const bool int4 = desc.recipe.qk == Format::kInt4;
        const auto limit = static_cast<float>(int4 ? numerics::kInt4Max : numerics::kInt8Max);
        T::block_sync();  // c_q is there
        Row::put_vector({kQMeanAt}, c_q, kThreads);
        T::block_sync();
        Needs needs{};
        for (int pass = draw.passes - 1; pass >= 0; --pass) {  // from the one that is held
            draw.hold(pass);
            Row& x = draw.x;
            if (desc.scale == 0) x.multiply(0);
            if (desc.recipe.smooth_q) x.subtract(SharedAddress{kQMeanAt});
            if (desc.recipe.rotate_qk) x.rotate(static_cast<int>(desc.head_dim));
            CLARY_UNROLL
            for (int i = 0; i < Row::kRows; ++i) {
                const float amax = x.largest(i);
                if (Row::member() != 0 || Row::row(i) >= draw.rows() || !(amax < INFINITY)) continue;
                needs.largest = T::max(needs.largest, amax / limit);
                needs.sum += amax / limit;
                needs.rows += 1;
            }
        }
        CLARY_UNROLL
        for (int mask = 1; mask < T::kLanes; mask *= 2) {
            needs.largest = T::max(needs.largest, T::shuffle_xor(needs.largest, mask));
            needs.sum += T::shuffle_xor(needs.sum, mask);
            needs.rows += T::shuffle_xor(needs.rows, mask);
        }
        if (T::lane() == 0) T::store(SharedAddress{kNeedsAt + static_cast<uint32_t>(T::wave() * 16)}, needs);
        T::block_sync();
        if (Row::thread() != 0) return 0;
        Needs all{};
        for (int wave = 0; wave < kWaves; ++wave) {
            const auto one = T::template load<Needs>({kNeedsAt + static_cast<uint32_t>(wave * 16)});
            all.largest = T::max(all.largest, one.largest);
            all.sum += one.sum;
            all.rows += one.rows;
        }
        const float head_room = draw.sample.taken() < draw.sample.count ? 2.0f : 1.0f;
        return numerics::q_base_scale(head_room * all.largest, all.rows > 0 ? all.sum / all.rows : 0.0f,
                                      int4 ? numerics::kTypicalRepeatInt4 : numerics::kTypicalRepeat);
    }
};

}  // namespace clary::gpu
