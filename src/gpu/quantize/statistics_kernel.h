// SPDX-License-Identifier: Apache-2.0
// The vectors of every (sequence, kv head), one block each: c_k and v_mean (means over keys), c_q (mean over the rows of
// all q heads of the kv head), q_base (the scale of Q's repeat 1), and the floor that v_scale=channel starts from.
//
// They are taken from a sample of at most 256 keys (of V 512), and as many rows of Q: the sequence in 256 parts, one token
// of each, at a place that changes from part to part so that no period of the tokens (rows of an image, alternating signs)
// falls in step with the sample. Up to 256 all are taken. A mean is a choice, not a result: softmax does not change
// with c_k, the key bias restores c_q, the epilogue adds v_mean. The error of a sampled mean is 1/16 of a channel's
// standard deviation, far below what smoothing is for (channels whose mean is many deviations). Rows with a
// value that is not finite are left out.
//
// q_base, from 128 rows: a row that needs more has its bias added in fp32, right but slow, so their largest need gets head
// room of a factor 2 where it is not the largest of all. It costs nothing where rows are alike: 64 times the typical need
// is larger then.
//
// Reads: 256 rows of Q and K, 128 of Q again, and 512 of V with smooth_v. Nearly all of the time is latency, so blocks
// take half of a multiprocessor and leave the other half to the next kernel, where the two may overlap. Shared memory: sums
// of every channel and wave.
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
    static constexpr int64_t kFewestQueriesToSmooth = 16;  // their mean would be the signal

  public:
    static constexpr int kThreads = 256;
    static constexpr int kBlocks = 2;

  private:
    static constexpr int kWaves = kThreads / T::kLanes;
    static constexpr uint32_t kSumsAt = 0;                                  // [wave][channel by slot]
    static constexpr uint32_t kRowsAt = kSumsAt + kWaves * kLargerDim * 4;  // [wave]
    static constexpr uint32_t kNeedsAt = kRowsAt + 64;                      // [wave]: largest, sum, rows, -
    static_assert(kWaves * 4 <= 64);

  public:
    static constexpr uint32_t kSharedBytes = kNeedsAt + kWaves * 16;
    static_assert(kSharedBytes <= T::kSharedBytes, "fits the machine");

    CLARY_DEVICE static void run(const QuantizeParams& p) {
        const AttentionDesc& desc = p.desc;
        const Recipe& recipe = desc.recipe;
        T::let_next_start();
        const int64_t head = T::block(0), b = head / desc.kv_heads, h = head % desc.kv_heads;
        if (b >= desc.batch) return;
        const Sequence s = sequence_of(desc, b);
        float* const c_k = p.c_k + head * kConfig.dim;
        float* const c_q = p.c_q + head * kConfig.dim;
        const Source keys{s.kv_len, 1, h, false};
        if (!recipe.smooth_k)
            fill(c_k, kConfig.dim);
        else if (desc.c_k.given())
            take(desc.c_k, b, h, desc.head_dim, c_k);
        else
            mean<Row, 256>(desc, s, b, keys, desc.k, desc.head_dim, c_k);
        if (p.v_mean != nullptr)
            mean<VRow, 512>(desc, s, b, keys, desc.v, desc.head_dim_v, p.v_mean + head * kConfig.dim_v);
        if (recipe.v_scale == VScale::kChannel)
            for (int d = Row::thread(); d < kConfig.dim_v; d += kThreads)
                p.v_scale[head * kConfig.dim_v + d] = numerics::kScaleFloor;

        const bool with_q = desc.q.data != nullptr && s.q_len > 0;
        const Source queries{with_q ? s.q_len : 0, p.q_heads_per_kv, h * p.q_heads_per_kv, true};
        // With scale 0 no score counts, and the bias of c_q must not either.
        if (!recipe.smooth_q || desc.scale == 0)
            fill(c_q, kConfig.dim);
        else if (desc.c_q.given())
            take(desc.c_q, b, h, desc.head_dim, c_q);
        else if (!with_q || s.q_len < kFewestQueriesToSmooth)
            fill(c_q, kConfig.dim);
        else
            mean<Row, 256>(desc, s, b, queries, desc.q, desc.head_dim, c_q);

        float q_base = 1;  // no query will read it
        if (p.key_bias && desc.q_base.given()) {
            q_base = static_cast<const float*>(desc.q_base.data)[b * desc.q_base.stride[0] + h * desc.q_base.stride[1]];
        } else if (p.key_bias && with_q) {
            T::block_sync();  // c_q is there
            q_base = base_of(p, s, b, queries, c_q);
        }
        if (Row::thread() == 0) p.q_base[head] = q_base;
    }

  private:
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
            return token_address(desc, operand, b, first_head + row / length, s, is_q)(row % length);
        }
    };

    CLARY_DEVICE static void fill(float* vector, int dim) {
        for (int d = Row::thread(); d < dim; d += kThreads) vector[d] = 0;
    }
    CLARY_DEVICE static void take(const TensorView& given, int64_t b, int64_t h, int64_t head_dim, float* vector) {
        const float* const from = static_cast<const float*>(given.data) + b * given.stride[0] + h * given.stride[1];
        for (int d = Row::thread(); d < kConfig.dim; d += kThreads)
            vector[d] = d < head_dim ? from[d * given.stride[2]] : 0.0f;
    }

    // The mean of each channel over the rows of a sample that are finite; 0 where there are none.
    template <class R, uint32_t kMost>
    CLARY_DEVICE static void mean(const AttentionDesc& desc, const Sequence& s, int64_t b, const Source& source,
                                  const Operand& operand, int64_t head_dim, float* result) {
        constexpr int kDim = R::kLanesPerRow * R::kColumns;
        constexpr int kAtOnce = kThreads / R::kLanesPerRow * R::kRows;  // rows
        const auto sample = source.template sample<kMost>();
        const int count = static_cast<int>(sample.taken());
        float sum[R::kColumns] = {}, rows = 0;
        for (int first = 0; first < count; first += kAtOnce) {
            R x;
            x.load(operand, head_dim, count - first, [&](int row) {
                return source.address(desc, operand, s, b, sample(static_cast<uint32_t>(first + row)));
            });
            CLARY_UNROLL
            for (int i = 0; i < R::kRows; ++i) {
                const bool finite = x.largest(i) < INFINITY;
                if (finite) {
                    CLARY_UNROLL
                    for (int column = 0; column < R::kColumns; ++column) sum[column] += x.x[i][column];
                }
                rows += finite && R::row(i) < count - first ? 1.0f : 0.0f;
            }
        }
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
    CLARY_DEVICE static SharedAddress word(uint32_t array, int index) {
        return {array + static_cast<uint32_t>(index * 4)};
    }

    struct alignas(16) Needs {
        float largest, sum, rows, unused;
    };
    CLARY_DEVICE static float base_of(const QuantizeParams& p, const Sequence& s, int64_t b, const Source& queries,
                                      const float* c_q) {
        const AttentionDesc& desc = p.desc;
        constexpr int kAtOnce = kThreads / Row::kLanesPerRow * Row::kRows;
        const bool int4 = desc.recipe.qk == Format::kInt4;
        const auto limit = static_cast<float>(int4 ? numerics::kInt4Max : numerics::kInt8Max);
        const auto sample = queries.template sample<128>();
        const int taken = static_cast<int>(sample.taken());
        Needs needs{};
        for (int first = 0; first < taken; first += kAtOnce) {
            const int left = taken - first;
            Row x;
            x.load(desc.q, desc.head_dim, left, [&](int row) {
                return queries.address(desc, desc.q, s, b, sample(static_cast<uint32_t>(first + row)));
            });
            if (desc.scale == 0) x.multiply(0);
            if (desc.recipe.smooth_q) x.subtract(c_q);
            if (desc.recipe.rotate_qk) x.rotate(static_cast<int>(desc.head_dim));
            CLARY_UNROLL
            for (int i = 0; i < Row::kRows; ++i) {
                const float amax = x.largest(i);
                if (Row::member() != 0 || Row::row(i) >= left || !(amax < INFINITY)) continue;
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
        const float head_room = sample.taken() < sample.count ? 2.0f : 1.0f;
        return numerics::q_base_scale(head_room * all.largest, all.rows > 0 ? all.sum / all.rows : 0.0f,
                                      int4 ? numerics::kTypicalRepeatInt4 : numerics::kTypicalRepeat);
    }
};

}  // namespace clary::gpu
