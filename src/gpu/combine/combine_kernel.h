// SPDX-License-Identifier: Apache-2.0
// Joins the pieces of keys that the attention kernel took apart (gpu/attention/split.h): a block for each row.
//
//   R = max of the pieces' R          a thread each
//   w = 2^(R of the piece - R)        l = sum of l w       O = sum of O w      a wave takes every kWaves-th piece
//   finish                            as the attention kernel ends a row: O / l, rotate back, add V's mean, store; LSE
//
// All sums are in an order that the number of pieces alone decides. Channel c lies in lane c % kLanes.
#pragma once

#include "core/element.h"
#include "gpu/attention/config.h"
#include "gpu/attention/params.h"
#include "gpu/attention/row_result.h"
#include "gpu/header.h"
#include "gpu/target/target.h"
#include "numerics/constants.h"
#include "numerics/hadamard.h"

namespace clary::gpu {

inline int64_t combine_blocks(const AttentionParams& p) { return p.desc.batch * p.desc.kv_heads * p.split.rows; }

template <class T>
class CombineKernel {
    static constexpr int kChannels = 256;  // at most
    static constexpr int kColumns = kChannels / T::kLanes, kWaves = kMaxPieces / T::kLanes;
    static constexpr int kAtOnce = 8;  // pieces whose O is on its way together

    struct alignas(8) Sums {
        float sum, exact;
    };
    // Byte offsets into shared memory.
    static constexpr uint32_t kWeightsAt = 0;                            // of each piece; negative: it saw no key
    static constexpr uint32_t kTopsAt = kWeightsAt + 4 * kMaxPieces;     // of each wave
    static constexpr uint32_t kSumsAt = kTopsAt + 4 * kWaves;            // likewise
    static constexpr uint32_t kOutAt = kSumsAt + sizeof(Sums) * kWaves;  // likewise, of each channel
    static_assert(kSumsAt % sizeof(Sums) == 0);

  public:
    static constexpr int kThreads = kMaxPieces;
    static constexpr uint32_t kSharedBytes = kOutAt + 4 * kWaves * kChannels;

    CLARY_DEVICE static void run(const AttentionParams& p) {
        const int rows = p.split.rows, head = T::block(0) / rows, row = T::block(0) - head * rows;
        const auto b = static_cast<int>(head / p.desc.kv_heads);
        const Row at = Row::of(p.desc, static_cast<int>(head - b * p.desc.kv_heads), row);
        const Sequence sequence = packed_sequence(p, b);
        if (at.query >= sequence.q_len) return;
        T::wait_for_previous();  // the pieces are there

        const int piece = T::wave() * T::kLanes + T::lane();
        RowSums mine{-kInfinity, 0, 0, 0};
        if (piece < p.split.pieces) mine = p.split.sums[p.split.row_of(head, piece, row)];
        const float top = highest(mine.reference);
        const bool empty = mine.reference == -kInfinity;
        const float weight = empty ? 0.0f : T::exp2(mine.reference - top);
        T::store(weight_at(piece), empty ? -1.0f : weight);
        const Sums wave{wave_sum(mine.sum * weight), wave_sum(mine.exact * weight)};
        if (T::lane() == 0) T::store(sums_at(T::wave()), wave);
        T::block_sync();  // weights and sums are there

        float o[kColumns];
        add_pieces(p, head, row, o);
        static_for<kColumns>([&](auto j) { T::store(out_at(T::wave(), j), o[j]); });
        T::block_sync();  // the waves' parts are there
        if (T::wave() == 0) finish(p, b, at, sequence.q_begin, top, o);
    }

  private:
    static constexpr float kInfinity = __builtin_huge_valf();

    CLARY_DEVICE static SharedAddress weight_at(int piece) { return {kWeightsAt + 4 * static_cast<uint32_t>(piece)}; }
    CLARY_DEVICE static SharedAddress top_at(int wave) { return {kTopsAt + 4 * static_cast<uint32_t>(wave)}; }
    CLARY_DEVICE static SharedAddress sums_at(int wave) {
        return {kSumsAt + uint32_t{sizeof(Sums)} * static_cast<uint32_t>(wave)};
    }
    CLARY_DEVICE static int channel(int column) { return column * T::kLanes + T::lane(); }
    CLARY_DEVICE static SharedAddress out_at(int wave, int column) {
        return {kOutAt + 4 * static_cast<uint32_t>(wave * kChannels + channel(column))};
    }

    CLARY_DEVICE static float highest(float x) {
        CLARY_UNROLL
        for (int mask = 1; mask < T::kLanes; mask *= 2) x = T::max(x, T::shuffle_xor(x, mask));
        if (T::lane() == 0) T::store(top_at(T::wave()), x);
        T::block_sync();  // the waves' tops are there
        for (int wave = 0; wave < kWaves; ++wave) x = T::max(x, T::template load<float>(top_at(wave)));
        return x;
    }
    CLARY_DEVICE static float wave_sum(float x) {
        CLARY_UNROLL
        for (int mask = 1; mask < T::kLanes; mask *= 2) x += T::shuffle_xor(x, mask);
        return x;
    }

    // O of every kWaves-th piece, weighted.
    CLARY_DEVICE static void add_pieces(const AttentionParams& p, int head, int row, float (&o)[kColumns]) {
        static_for<kColumns>([&](auto j) { o[j] = 0; });
        const int channels = p.split.channels;
        CLARY_NO_UNROLL
        for (int first = T::wave(); first < p.split.pieces; first += kWaves * kAtOnce) {
            float weight[kAtOnce], part[kAtOnce][kColumns];
            static_for<kAtOnce>([&](auto i) {
                const int piece = first + i * kWaves;
                weight[i] = piece < p.split.pieces ? T::template load<float>(weight_at(piece)) : -1.0f;
                const float* const from = p.split.out + p.split.row_of(head, piece, row) * channels;
                static_for<kColumns>(
                    [&](auto j) { part[i][j] = weight[i] < 0 || channel(j) >= channels ? 0.0f : from[channel(j)]; });
            });
            static_for<kAtOnce, kColumns>([&](auto i, auto j) { o[j] = T::fma(part[i][j], weight[i], o[j]); });
        }
    }

    CLARY_DEVICE static void finish(const AttentionParams& p, int b, const Row& at, int64_t q_begin, float top,
                                    float (&o)[kColumns]) {
        const AttentionDesc& desc = p.desc;
        Sums total{0, 0};
        for (int wave = 0; wave < kWaves; ++wave) {
            const Sums one = T::template load<Sums>(sums_at(wave));
            total.sum += one.sum;
            total.exact += one.exact;
        }
        static_for<kColumns>([&](auto j) {
            o[j] = 0;
            for (int wave = 0; wave < kWaves; ++wave) o[j] += T::template load<float>(out_at(wave, j));
        });
        const int64_t packed_row = p.q_rows.begin(b, at.head, desc.q_heads, q_begin) + at.query;
        const RowResult result = row_result<T>(total.sum, total.exact / p_top(element_of(desc.recipe.pv)).value, top,
                                               p.q_shift ? p.q_shift[packed_row] : 0.0f, desc.want_lse, desc.sinks,
                                               at.head, headers_match(p.headers));
        if (desc.want_lse && T::lane() == 0) store_lse(desc, b, at, q_begin, result.lse);

        const ValueChannels v = value_channels(p, b, at.head / desc.q_heads_per_kv(), p.split.channels);
        static_for<kColumns>([&](auto j) {
            o[j] *= result.inverse;
            if (v.scale != nullptr && channel(j) < v.dim) o[j] *= v.scale[channel(j)];
        });
        if (v.rotated) rotate(o, v.dim);
        char* const to =
            static_cast<char*>(desc.out.data) + (b * desc.out.batch_stride + at.head * desc.out.head_stride +
                                                 (q_begin + at.query) * desc.out.token_stride) *
                                                    dtype_size(desc.out.dtype);
        static_for<kColumns>([&](auto j) {
            if (channel(j) >= v.dim) return;
            if (v.mean != nullptr) o[j] = T::fma(v.mean[channel(j)], result.share, o[j]);
            store_element(to + channel(j) * desc.out.dim_stride * dtype_size(desc.out.dtype), desc.out.dtype, o[j]);
        });
    }

    // numerics::rotate of channels 0 .. dim - 1.
    CLARY_DEVICE static void rotate(float (&o)[kColumns], int dim) {
        static_for<8>([&](auto bit) {
            constexpr int h = 1 << bit;
            static_for<kColumns>([&](auto j) {
                const bool meets = numerics::hadamard_meets(channel(j), dim, h);
                if constexpr (h < T::kLanes) {
                    const float sign = (T::lane() & h) != 0 ? -1.0f : 1.0f, theirs = T::shuffle_xor(o[j], h);
                    if (meets) o[j] = T::fma(sign, o[j], theirs);
                } else {
                    constexpr int other = j ^ (h / T::kLanes);
                    if constexpr (j < other && other < kColumns)
                        if (meets) numerics::butterfly(o[j], o[other]);
                }
            });
        });
        static_for<kColumns>([&](auto j) { o[j] *= numerics::hadamard_norm_at<float>(channel(j), dim); });
    }
};

}  // namespace clary::gpu
