// SPDX-License-Identifier: Apache-2.0
// Packs the exact recipes fp16_fp16 and bf16_bf16: values rounded to their type, Q with the sign of scale, head dims
// padded with zeros. A row of Q with a non-finite value becomes NaN. A key with one in K or V gets K of NaN and V of
// zeros, so that exactly the rows that see it are NaN: a masked score is replaced, but 0 * V would not be.
//
// K is read twice, the second time from the cache: it is stored after V has been seen.
#pragma once

#include "gpu/quantize/rows.h"
#include "gpu/quantize/slab.h"

namespace clary::gpu {

template <class T, QuantizeConfig kConfig>
class ExactKernel {
    using Row = Rows<T, kConfig.dim>;
    using VRow = Rows<T, kConfig.dim_v>;
    static constexpr int larger(int a, int b) { return a > b ? a : b; }

  public:
    static constexpr int kThreads = larger(larger(Row::kSlabThreads, VRow::kSlabThreads), T::kLanes);
    static constexpr int kBlocks = larger(1, (kConfig.dim % 3 == 0 || kConfig.dim_v % 3 == 0 ? 384 : 512) / kThreads);
    static constexpr uint32_t kSharedBytes = kSlab * 4;

    CLARY_DEVICE static void run(const QuantizeParams& p) {
        write_heads<T>(p, kThreads);
        const Slab slab = slab_of(p, T::block(0));
        if (!T::any(slab.exists)) return;  // the same for all: a vote lets the compiler know
        if (slab.is_q)
            pack_q(p, slab);
        else
            pack_kv(p, slab);
    }

  private:
    static constexpr uint32_t kGoodAt = 0;  // [128] of keys: 1 where K and V are finite

    CLARY_DEVICE static RowsFrom rows_of(const QuantizeParams& p, const Slab& slab, const Operand& operand) {
        return {token_address(p.desc, operand, slab.b, slab.h, slab.sequence, slab.is_q), slab.from};
    }

    CLARY_DEVICE static void pack_q(const QuantizeParams& p, const Slab& slab) {
        const float sign = p.desc.scale > 0 ? 1.0f : p.desc.scale < 0 ? -1.0f : 0.0f;
        float good[Row::kRows];
        Row x;
        x.load(p.desc.q, p.desc.head_dim, slab.count, rows_of(p, slab, p.desc.q));
        note_finite(x, good);
        x.multiply(sign);
        store(p, x, good, numerics::detail::quiet_nan(), slab.count, p.q_codes, slab.packed_row);
    }

    CLARY_DEVICE static void pack_kv(const QuantizeParams& p, const Slab& slab) {
        const int rows = p.append ? slab.count : slab.tiles * p.kv_rows.tile;
        float k_good[Row::kRows], v_good[VRow::kRows], both[VRow::kRows];
        {
            Row k;
            k.load(p.desc.k, p.desc.head_dim, slab.count, rows_of(p, slab, p.desc.k));
            note_finite(k, k_good);
            Row::put(kGoodAt, k_good);
        }
        T::block_sync();
        {
            VRow v;
            v.load(p.desc.v, p.desc.head_dim_v, slab.count, rows_of(p, slab, p.desc.v));
            note_finite(v, v_good);
            VRow::get(kGoodAt, both);
            CLARY_UNROLL
            for (int i = 0; i < VRow::kRows; ++i) both[i] *= v_good[i];
            T::wave_sync();  // the lanes of a row have read what is replaced
            VRow::put(kGoodAt, both);
            store(p, v, both, 0, rows, p.v_codes, slab.packed_row);
        }
        T::block_sync();
        Row k;
        k.load(p.desc.k, p.desc.head_dim, slab.count, rows_of(p, slab, p.desc.k));
        Row::get(kGoodAt, k_good);
        store(p, k, k_good, numerics::detail::quiet_nan(), rows, p.k_codes, slab.packed_row);
    }

    // 1 where a row is finite, else 0.
    template <class R>
    CLARY_DEVICE static void note_finite(const R& x, float* good) {
        CLARY_UNROLL
        for (int i = 0; i < R::kRows; ++i) good[i] = x.largest(i) < INFINITY ? 1.0f : 0.0f;
    }

    // Rows below `rows`; those that are not good hold `bad`. Whole padded rows.
    template <class R>
    CLARY_DEVICE static void store(const QuantizeParams& p, const R& x, const float* good, float bad, int rows,
                                   void* to, int64_t packed_row) {
        constexpr int kDim = R::kLanesPerRow * R::kColumns;
        auto* const base = static_cast<char*>(to) + packed_row * (kDim * 2);
        const bool fp16 = p.desc.recipe.qk == Format::kFp16;
        CLARY_UNROLL
        for (int i = 0; i < R::kRows; ++i) {
            if (R::row(i) >= rows) continue;
            CLARY_UNROLL
            for (int j = 0; j < R::kChunks; ++j) {
                Bytes16 run;
                CLARY_UNROLL
                for (int word = 0; word < 4; ++word) {
                    const float a = good[i] != 0 ? x.x[i][j * 8 + word * 2] : bad;
                    const float b = good[i] != 0 ? x.x[i][j * 8 + word * 2 + 1] : bad;
                    run.word[word] =
                        fp16 ? T::template pack2<Element::kF16>(a, b) : T::template pack2<Element::kBf16>(a, b);
                }
                *reinterpret_cast<Bytes16*>(base + R::row(i) * (kDim * 2) + R::chunk(j) * 16) = run;
            }
        }
    }
};

}  // namespace clary::gpu
