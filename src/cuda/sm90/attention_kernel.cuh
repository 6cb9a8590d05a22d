// SPDX-License-Identifier: Apache-2.0
// Attention on packed INT8 operands with Hopper's wgmma: int8_int8, P against the maximum of its own tile of 128 keys.
//
//   O = softmax(scale Q K^T + key bias) V       a block: persistent, works through tiles of 128 rows
//
//   for each tile of keys:
//     S = Q K^T            exact int32 (64 rows of a warpgroup x 128 keys), the key bias as one more step of digits
//     m = row maximum      of the tile, on integers
//     O += float(T) c      T of the tile before, c its weight: 2^(m + base - R) times V's scale
//     P = 255 2^(x - m)    bytes, their sums
//     T = P V              exact int32
//
// Formulas and numbers are those of gpu/attention/attention_kernel.h, whose results these kernels give bit for bit.
//
// Two warpgroups of 64 rows compute; four warps feed them (producers.cuh). Of one warpgroup, time from left to right:
//
//   tensor cores   | T(j-1) = P V |        | S(j+1) = Q K |          | T(j) = P V ...
//   other pipes    | m(j)         | flush, x(j) | exponentials, P(j) | m(j+1) ...
//
// The two warpgroups drift apart until one's products run beside the other's exponentials. The order within a tile keeps
// 208 registers of results: O and S, and T or, once it is flushed, the base-2 scores that become P.
#pragma once

#include <cmath>

#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/producers.cuh"
#include "gpu/attention/row_result.h"
#include "numerics/constants.h"

namespace clary::cuda::sm90 {

using gpu::static_for;

template <Config kConfig>
class Attention {
    using L = Layout<kConfig>;
    using Output = typename L::Output;
    static constexpr Config c = kConfig;
    static constexpr int kD = c.head_dim;
    static constexpr int kRuns = kTileK / 16;  // of keys: a lane has four scores of a row in each
    using Scores = int32_t[kTileK / 2];
    struct RowSums {  // of the lane's two rows; see the members
        float reference[2], sum[2], exact[2];
    };

  public:
    static constexpr uint32_t kSharedBytes = L::kBytes;

    CLARY_DEVICE static void run(const Params& params) {
        if (threadIdx.x == 0) L::init_barriers();
        if constexpr (c.key_bias)
            if (params.attention.v_weight == nullptr)  // every key counts the same: 15 of 15
                for (uint32_t i = threadIdx.x; i < kStages * L::kWeightBytes / 4; i += blockDim.x)
                    T::store(SharedAddress{L::kWeightsAt + 4 * i}, 0x01010101u * numerics::kWeightUnit);
        __syncthreads();
        if (threadIdx.x >= L::kConsumers) {
            ptx::fewer_registers<c.producer_registers()>();
            Producers<kConfig>(params).run();
        } else {
            ptx::more_registers<c.registers()>();
            Attention(params).compute();
        }
    }

  private:
    static constexpr float kInfinity = __builtin_huge_valf();
    static constexpr float kPTop = numerics::kPUint8Max, kPLog2Top = numerics::kPUint8Log2Max;
    static constexpr int32_t kMasked = INT32_MIN;  // no score

    CLARY_DEVICE explicit Attention(const Params& params)
        : p_(params.attention),
          // One for the warp, as the shuffle tells the compiler.
          group_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0)),
          // (Shuffled, it stays in a register; else it would be computed anew, slowly, wherever it is used.)
          id_(__shfl_sync(0xffffffffu, T::wave() * 64 + T::lane(), T::lane())) {}
    // Of the thread, packed into one register: its lane, and its first row of the block, whose other is 8 further.
    // (Opaque: what follows from it is computed anew, instead of taking registers throughout.)
    CLARY_DEVICE unsigned id() const {
        unsigned id = id_;
        asm volatile("" : "+r"(id));
        return id;
    }
    CLARY_DEVICE int quad() const { return static_cast<int>(id() % 4); }
    CLARY_DEVICE bool leads() const { return id() % 32 == 0; }
    CLARY_DEVICE int row_in_block(int r) const { return static_cast<int>(id() / 4) + 8 * r; }

    // S of the next tile is on its way while P of this one is made, across the end of a work too: that is finished beside
    // the first tile of the next. (One loop without branches around products: ptxas keeps them asynchronous.)
    CLARY_DEVICE void compute() {
        CLARY_UNROLL
        for (int i = 0; i < kD / 2; ++i) t_[i] = 0;
        ptx::pin(t_);  // before products begin
        CLARY_UNROLL
        for (int i = 0; i < kD / 2; ++i) out_[i] = 0;
        flush_[0] = flush_[1] = 0;
        start_rows();
        Scores s;
        await_tile();
        multiply_keys(s);
        ptx::wgmma_commit();  // no P yet: a group of nothing
        for (;;) {
            const int stage = tiles_.stage();
            const TileConstants& tile = L::tile(stage);
            const bool masked = !tile.plain[group_];
            const bool loud = c.key_bias && L::work(queries_.stage()).loud;
            float factor[2][2], top[2];  // base 2 per unit of S; maxima of base-2 scores
            factors(tile, factor);

            ptx::wgmma_wait<1>();
            ptx::pin(s);
            if (loud) add_loud_bias(stage, s);
            if (masked) mask(tile.index * kTileK, s);
            row_maxima(s, factor, masked, top);

            ptx::wgmma_wait<0>();
            ptx::pin(t_);
            ptx::barrier_arrive_if(tile.begins != Begins::kBlock && leads(), L::empty(tiles_.before().stage()));
            if (tile.begins != Begins::kNothing) {
                lay_aside_sums();
                start_rows();
            }
            weigh(top, tile.base);
            tiles_ = tiles_.next();
            if (tile.begins == Begins::kNothing) await_tile();
            if (masked)
                flush_and_make_p<true>(stage, s, factor, top);
            else
                flush_and_make_p<false>(stage, s, factor, top);
            if (tile.begins != Begins::kNothing) {
                if (tile.begins == Begins::kWork)
                    finish(queries_.before().stage());  // its slot may be what the next tile waits for
                if (L::work(queries_.stage()).b < 0) return;
                CLARY_UNROLL
                for (int i = 0; i < kD / 2; ++i) out_[i] = 0;
                await_tile();
            }
            multiply_keys(s);
            flush_[0] = weight_[0] * tile.value_scale;
            flush_[1] = weight_[1] * tile.value_scale;
            multiply_values(stage);
        }
    }

    // -- rows: two of a lane --
    CLARY_DEVICE const RowConstants& row(int r) const { return L::row(queries_.stage(), row_in_block(r)); }
    CLARY_DEVICE void start_rows() {
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            reference_[r] = -kInfinity;
            sum_[r] = exact_sum_[r] = 0;
        }
    }
    // What finish() needs of rows whose last T is yet to join O, in shared memory that their O will take.
    CLARY_DEVICE RowSums& sums_aside() const {
        return reinterpret_cast<RowSums*>(gpu::clary_shared_memory + scratch().byte)[id() % 32];
    }
    CLARY_DEVICE static SharedAddress scratch() {
        return {L::kOutputAt + static_cast<uint32_t>(T::wave() * Output::kBytes)};
    }
    CLARY_DEVICE void lay_aside_sums() const {
        RowSums& aside = sums_aside();
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            aside.reference[r] = reference_[r];
            aside.sum[r] = sum_[r];
            aside.exact[r] = exact_sum_[r];
        }
    }

    // -- products --
    // The tile at tiles_ is there, and the next work's Q if that begins with it.
    CLARY_DEVICE void await_tile() {
        ptx::barrier_wait(L::full(tiles_.stage()), tiles_.parity());
        if (L::tile(tiles_.stage()).begins != Begins::kNothing) {
            queries_ = queries_.next();
            ptx::barrier_wait(L::query_full(queries_.stage()), queries_.parity());
        }
    }
    CLARY_DEVICE void multiply_keys(Scores& s) const {
        const int stage = tiles_.stage(), query_stage = queries_.stage();
        const ptx::Matrix q = ptx::matrix<kD>(L::base() + L::kQueriesAt) + query_stage * L::kQueryBytes +
                              group_ * kGroupRows * kD,
                          k = ptx::matrix<kD>(L::base() + L::kKeysAt) + stage * L::kKeyBytes;
        ptx::wgmma_fence();
        if constexpr (c.key_bias) {
            const ptx::Matrix repeats = ptx::matrix<32>(L::base() + L::kRepeatsAt) + query_stage * L::kRepeatBytes +
                                        group_ * kGroupRows * numerics::kDigitColumns;
            ptx::multiply_s8<false>(s, repeats, ptx::matrix<32>(L::base() + L::kDigitsAt) + stage * L::kDigitBytes);
        } else {
            ptx::multiply_s8<false>(s, q, k);
        }
        CLARY_UNROLL
        for (int d = c.key_bias ? 0 : 1; d < kD / 32; ++d) ptx::multiply_s8<true>(s, q + 32 * d, k + 32 * d);
        ptx::wgmma_commit();
    }
    CLARY_DEVICE void multiply_values(int stage) {
        const ptx::Matrix v = ptx::matrix<kTileK>(L::base() + L::kValuesAt) + stage * L::kValueBytes;
        CLARY_UNROLL
        for (int k = 0; k < kTileK / 32; ++k) ptx::pin(p8_[k]);
        ptx::wgmma_fence();
        ptx::multiply_u8<false>(t_, p8_[0], v);
        CLARY_UNROLL
        for (int k = 1; k < kTileK / 32; ++k) ptx::multiply_u8<true>(t_, p8_[k], v + 32 * k);
        ptx::wgmma_commit();
    }
    // -- S becomes base-2 scores relative to their row's maximum: log2 of what P will be, before rounding --
    CLARY_DEVICE void factors(const TileConstants& tile, float (&factor)[2][2]) const {
        const int at = quad();
        const float keys[2] = {tile.key_scale[at], tile.key_scale[4 + at]};
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            const float own = row(r).factor;
            factor[r][0] = own * keys[0];
            factor[r][1] = own * keys[1];
        }
    }
    CLARY_DEVICE static void row_maxima(const Scores& s, const float (&factor)[2][2], bool masked, float (&top)[2]) {
        int32_t high[2][2] = {{kMasked, kMasked}, {kMasked, kMasked}};
        CLARY_UNROLL
        for (int i = 0; i < kTileK / 2; i += 2) {
            int32_t& h = high[i / 2 % 2][i / 32];
            h = max(max(h, s[i]), s[i + 1]);
        }
        float scaled[2][2];
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) CLARY_UNROLL
        for (int g = 0; g < 2; ++g) scaled[r][g] = static_cast<float>(high[r][g]) * factor[r][g];
        if (masked) {
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r) CLARY_UNROLL
            for (int g = 0; g < 2; ++g)
                if (high[r][g] == kMasked) scaled[r][g] = -kInfinity;
        }
        top[0] = T::max(scaled[0][0], scaled[0][1]);
        top[1] = T::max(scaled[1][0], scaled[1][1]);
        CLARY_UNROLL
        for (int lanes = 1; lanes <= 2; lanes *= 2) {
            const float other[2] = {T::shuffle_xor(top[0], lanes), T::shuffle_xor(top[1], lanes)};
            top[0] = T::max(top[0], other[0]);
            top[1] = T::max(top[1], other[1]);
        }
    }
    // c of the tile.
    CLARY_DEVICE void weigh(const float (&top)[2], float base) {
        float rise[2] = {top[0] + base - reference_[0], top[1] + base - reference_[1]};
        // (Unusual: a first tile, a rise by more than the slack, NaN, or no key seen before either.)
        const bool usual = rise[0] <= numerics::kReferenceSlack && rise[1] <= numerics::kReferenceSlack;
        if (T::any(!usual)) {
            rise[0] = move_reference(0, top[0], base);
            rise[1] = move_reference(1, top[1], base);
        }
        weight_[0] = T::exp2(rise[0]);
        weight_[1] = T::exp2(rise[1]);
    }
    // R moves to a first tile, and where the maximum lies far above it. How far above R the maximum lies then.
    CLARY_DEVICE float move_reference(int r, float top, float base) {
        const float lift = top + base, before = reference_[r];
        if (top == -kInfinity) return -kInfinity;  // no key seen
        const bool first = before == -kInfinity, jump = lift - before > numerics::kReferenceSlack;
        if (!first && !jump) return lift - before;
        reference_[r] = lift;
        if (!first) {
            const float rescale = T::exp2(before - lift);
            sum_[r] *= rescale;
            exact_sum_[r] *= rescale;
            flush_[r] *= rescale;
            CLARY_UNROLL
            for (int i = 2 * r; i < kD / 2; i += 4) {
                out_[i] *= rescale;
                out_[i + 1] *= rescale;
            }
        }
        return lift - lift;  // 0, or NaN
    }

    // Rows whose repeat is 0 have no digits in S (see gpu/attention/attention_kernel.h): their bias joins it here.
    CLARY_DEVICE void add_loud_bias(int stage, Scores& s) const {
        const float loud[2] = {row(0).loud, row(1).loud};
        CLARY_UNROLL
        for (int n = 0; n < kTileK / 8; ++n) CLARY_UNROLL
        for (int j = 0; j < 2; ++j) {
            const int key = 8 * n + quad() * 2 + j;
            const SharedAddress digits{L::kDigitsAt + stage * L::kDigitBytes + static_cast<uint32_t>(key * 32)};
            int units = 0;
            // Rows of 32 bytes, whose halves the swizzle may have swapped: their sum does not care.
            CLARY_UNROLL
            for (uint32_t word = 0; word < 8; ++word)
                units = __dp4a(T::load<int>(digits + word * 4), 0x01010101, units);
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r)
                s[4 * n + 2 * r + j] += static_cast<int32_t>(::rintf(static_cast<float>(units) * loud[r]));
        }
    }
    CLARY_DEVICE void mask(int first_key, Scores& s) const {
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            const int first = first_key + quad() * 2;
            const gpu::VisibleKeys seen = row(r).keys, keys{seen.begin - first, seen.end - first, seen.keep - first};
            CLARY_UNROLL
            for (int n = 0; n < kTileK / 8; ++n) CLARY_UNROLL
            for (int j = 0; j < 2; ++j)
                if (!keys.sees(8 * n + j)) s[4 * n + 2 * r + j] = kMasked;
        }
    }

    // -- P to bytes, in the order of V's keys, and its row sums; beside it O takes T of the tile before: one block of
    // instructions, in which products of floats and conversions fill the gaps between exponentials --
    template <bool masked>
    CLARY_DEVICE void flush_and_make_p(int stage, const Scores& s, const float (&factor)[2][2], const float (&top)[2]) {
        const float shift[2] = {kPLog2Top - top[0], kPLog2Top - top[1]};
        int32_t whole[2] = {0, 0};
        float exact[2] = {0, 0};
        CLARY_UNROLL
        for (int run = 0; run < kRuns; ++run) {
            uint32_t weights = 0x01010101u * numerics::kWeightUnit;
            if constexpr (c.key_bias)
                weights = T::load<uint32_t>(SharedAddress{L::kWeightsAt + stage * L::kWeightBytes +
                                                          static_cast<uint32_t>(16 * run + quad() * 4)});
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r) {
                float e[4];
                CLARY_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const int i = 8 * run + 2 * r + j % 2 + j / 2 * 4;
                    e[j] = T::exp2(T::fma(static_cast<float>(s[i]), factor[r][run / 4], shift[r]));
                    if (masked && s[i] == kMasked) e[j] = 0;
                }
                uint32_t& word = p8_[run / 2][run % 2 * 2 + r];
                word = T::pack4<gpu::Element::kU8>(e[0], e[1], e[2], e[3]);
                whole[r] = T::dot4(word, weights, whole[r]);
                if constexpr (c.want_lse) {
                    CLARY_UNROLL
                    for (int j = 0; j < 4; ++j)
                        exact[r] = T::fma(e[j], static_cast<float>(weights >> (8 * j) & 255u), exact[r]);
                }
            }
            flush<kD / 16>(run * (kD / 16));
        }
        constexpr float kUnit = 1.0f / numerics::kWeightUnit;
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            sum_[r] = T::fma(static_cast<float>(whole[r]) * kUnit, weight_[r], sum_[r]);
            if constexpr (c.want_lse) exact_sum_[r] = T::fma(exact[r] * kUnit, weight_[r], exact_sum_[r]);
        }
    }
    // O += float(T) c, of some registers.
    template <int count>
    CLARY_DEVICE void flush(int first) {
        CLARY_UNROLL
        for (int i = first; i < first + count; ++i)
            out_[i] = T::fma(static_cast<float>(t_[i]), flush_[i / 2 % 2], out_[i]);
    }

    // -- results --
    CLARY_DEVICE void finish(int query_stage) {
        const Work& work = L::work(query_stage);
        const RowSums sums = sums_aside();
        const AttentionDesc& desc = p_.desc;
        float inverse[2], share[2];
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            const RowConstants& row = L::row(query_stage, row_in_block(r));
            const float l = T::row_sum(sums.sum[r]), sum = c.want_lse ? T::row_sum(sums.exact[r]) : l;
            const gpu::RowResult result =
                gpu::row_result<T>(l, sum / kPTop, sums.reference[r], row.shift, desc.sinks, row.row.head, work.valid);
            inverse[r] = result.inverse;
            share[r] = result.share;
            if (c.want_lse && row_in_block(r) < work.rows && quad() == 0)
                gpu::store_lse(desc, work.b, row.row, work.q_begin, result.lse);
        }
        const int64_t head_channel = (int64_t{work.b} * desc.kv_heads + work.kv_head) * kD;
        const bool by_channel = desc.recipe.v_scale == VScale::kChannel;
        typename Output::Registers out;
        static_for<kD / 8, 4>([&](auto n, auto i) {
            float o = out_[n * 4 + i] * inverse[i / 2];
            if (by_channel) o *= p_.v_scale[head_channel + Output::channel_of(n, i)];
            out[0][n][i] = o;
        });
        if (desc.recipe.rotate_v) Output::rotate(out, static_cast<int>(desc.head_dim_v));
        if (p_.v_mean)
            static_for<kD / 8, 4>([&](auto n, auto i) {
                out[0][n][i] = T::fma(p_.v_mean[head_channel + Output::channel_of(n, i)], share[i / 2], out[0][n][i]);
            });
        const int first = T::wave() * 16;
        T::wave_sync();
        Output::store(out, scratch(), desc.out, static_cast<int>(desc.head_dim_v), work.rows - first, [&](int row) {
            const gpu::Row& at = L::row(query_stage, first + row).row;
            return work.b * desc.out.batch_stride + at.head * desc.out.head_stride +
                   (work.q_begin + at.query) * desc.out.token_stride;
        });
        ptx::barrier_arrive_if(leads(), L::query_empty(query_stage));
    }

    const gpu::AttentionParams& p_;
    const int group_;  // warpgroup of the thread
    const unsigned id_;
    Ring<kStages> tiles_;
    Ring<L::kQueryStages> queries_ = Ring<L::kQueryStages>{}.before();  // that S belongs to

    // Of the lane's two rows.
    float reference_[2];  // R; -inf before the first tile with a visible key
    float weight_[2];     // c of the tile whose P is made
    float flush_[2];      // c times V's scale of the tile whose T is made
    float sum_[2];        // the lane's part of l, in units of kPTop 2^R
    float exact_sum_[2];  // the same of P before rounding, for the LSE

    uint32_t p8_[kTileK / 32][4];  // P
    int32_t t_[kD / 2];            // T
    float out_[kD / 2];            // O
};

}  // namespace clary::cuda::sm90
