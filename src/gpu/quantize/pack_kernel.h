// SPDX-License-Identifier: Apache-2.0
// Packs Q, K and V of the quantized recipes: smoothing, rotation, scales, codes, key bias. A block takes 128 rows of a
// head of Q, or 128 keys of a head of K and V (one tile of 128, two of 64); every element of the input is read once.
//
//   Q   load | q.c_k, - c_q, rotate, amax | sync | scale, repeat, codes
//   V   load | - mean, rotate, amax       | sync | a key per thread: scale, weight | sync | codes, transposed
//   K   load | - c_k, k.c_q, rotate, amax | sync | bias, scale, units, codes, digits
//
// kWhole: a block packs a run of slabs of a head, V of all and then K, and the rows of each come by asynchronous copies
// while those before are packed. Where kernels of a stream may overlap, V is packed while statistics are taken.
//
// Rows stay in registers as fp32 from load to code (rows.h); shared memory holds what rows tell each other (amax, bias),
// c_k and c_q, V's codes on their way to [channel][key], and 16-bit rows on theirs. What is computed, and in which order,
// is defined by src/reference/quantize.cc and quantize_v.cc; here a rotation's norm joins the inverse scale, and
// x * (1 / scale) is rounded once with its product, which moves codes within 2^-22 of a tie.
//
// kAppend: the kernel of an append, which packs the tile that new keys go on anew (slab.h) and then keeps in the tail what
// they leave of the last one. The block that reads a tail also writes it: no block waits for another.
//
// Shared memory: 2 KB for rows, 4 bytes per channel, 128 bytes per V channel for the codes: 20 KB at head dim 128; with a
// run 8 KB and a slab's rows more: 60 KB.
#pragma once

#include <cmath>

#include "gpu/arrangement.h"
#include "gpu/quantize/channel_maximum.h"
#include "gpu/quantize/rows.h"
#include "gpu/quantize/slab.h"
#include "numerics/digits.h"
#include "numerics/permutation.h"

namespace clary::gpu {

template <class T, QuantizeConfig kConfig, PackKind kKind = PackKind::kAny>
class PackKernel {
    static constexpr bool kWhole = kKind == PackKind::kWhole, kAppend = kKind == PackKind::kAppend;
    static constexpr bool kMeasure = kKind == PackKind::kMeasure;
    using Row = Rows<T, kConfig.dim, kLong>;
    using VRow = Rows<T, kConfig.dim_v>;
    using Channels = ChannelMaximum<T, kConfig.dim_v>;

    // core/packed.h; codes and sums of 8-bit V.
    static constexpr numerics::VOrder kOrder = arrangement_of(T::kChip).v_order;
    static constexpr bool kSums = arrangement_of(T::kChip).v_sums;

    template <class V>
    static constexpr V larger(V a, V b) {
        return a > b ? a : b;
    }

  public:
    static constexpr int kThreads = larger(larger(Row::kSlabThreads, VRow::kSlabThreads), T::kLanes);
    static constexpr int kBlocks = larger(1, (kConfig.dim % 3 == 0 || kConfig.dim_v % 3 == 0 ? 384 : 512) / kThreads);

  private:
    // Byte offsets into shared memory; [128] each where nothing is said.
    static constexpr uint32_t kAmaxAt = 0;                       // of a run's even slabs; -1: the row is not finite
    static constexpr uint32_t kOddAmaxAt = kAmaxAt + kSlab * 4;  // of its odd ones
    static constexpr uint32_t kVInverseAt = kOddAmaxAt + kSlab * 4;
    // Of each slab of the run, [run][128], base 2: the bias of V's weight, infinity where V is not finite; then of the key.
    static constexpr uint32_t kBiasAt = kVInverseAt + kSlab * 4;
    static constexpr uint32_t kMeanAt = kBiasAt + (kWhole ? kLongestRun : 1) * kSlab * 4;  // c_k
    static constexpr uint32_t kQMeanAt = kMeanAt + Row::kVectorBytes;                      // c_q
    static constexpr uint32_t kChannelsAt = kQMeanAt + Row::kVectorBytes;  // 1 / scale of V's channels, by slot
    static constexpr uint32_t kCodesAt = kChannelsAt + kConfig.dim_v * 4;  // V's codes [channel][128], or maxima
    static_assert(Channels::kBytes <= kConfig.dim_v * kSlab, "the maxima of channels lie where codes will");
    static constexpr uint32_t kStageAt = kCodesAt + kConfig.dim_v * kSlab;  // rows on their way, of every wave
    static constexpr uint32_t kWaveStage = larger(Row::kStageBytes, VRow::kStageBytes);

  public:
    static constexpr uint32_t kSharedBytes = kStageAt + (kWhole ? kThreads / T::kLanes * kWaveStage : 0);
    static constexpr bool kFits = kSharedBytes <= T::kSharedBytes && (T::kChip.async_copies || !kWhole);
    static_assert(kFits || kWhole, "fits the machine");

    CLARY_DEVICE static void run(const QuantizeParams& p) {
        if constexpr (kFits) {
            if constexpr (!kMeasure) write_heads<T>(p, kThreads);
            const Slab slab = slab_of(p, T::block(0), kWhole || kMeasure ? p.run : 1);
            if (!T::any(slab.exists)) {  // the same for all: a vote lets the compiler know
                T::wait_for_previous();
                return;
            }
            if (slab.is_q)
                fetch<Row>(slab, p.desc.q);
            else
                fetch<VRow>(slab, p.desc.v);
            const bool at_once = slab.is_q || kAppend || needs_statistics_of_v(p);
            if (at_once) wait_for_statistics(p, slab);
            if constexpr (kMeasure) {
                measure(p, slab, at_once);
            } else if constexpr (kAppend) {
                pack_v(p, slab, 0, false, slab);
                pack_k(p, slab, 0, false);
                keep_new<VRow>(p, slab, p.desc.v, head_dim_v(p), p.tail_v);
                keep_new<Row>(p, slab, p.desc.k, head_dim(p), p.tail_k);
            } else if (slab.is_q) {
                over_run(p, slab, [&](const Slab& s, int n, bool more) { pack_q(p, s, n, more); });
            } else {
                over_run(p, slab, [&](const Slab& s, int n, bool more) { pack_v(p, s, n, more, slab); });
                if (!at_once) wait_for_statistics(p, slab);
                over_run(p, slab, [&](const Slab& s, int n, bool more) { pack_k(p, s, n, more); });
            }
        }
    }

  private:
    CLARY_DEVICE static float not_a_number() { return numerics::detail::quiet_nan(); }
    CLARY_DEVICE static bool finite(float x) { return fabsf(x) < INFINITY; }
    CLARY_DEVICE static float at(uint32_t array, int row) {
        return T::template load<float>({array + static_cast<uint32_t>(row * 4)});
    }
    CLARY_DEVICE static void put(uint32_t array, int row, float x) {
        T::store(SharedAddress{array + static_cast<uint32_t>(row * 4)}, x);
    }
    // Of values for the two halves of the slab, by select: a local array with a variable index would lie in memory.
    template <class V>
    CLARY_DEVICE static V of_half(const V* values, bool second) {
        return second ? values[1] : values[0];
    }

    // A value over the rows of each half of the slab, from 4 neighbouring rows per lane (of 32). `result`: [2].
    template <class Join>
    CLARY_DEVICE static void over_halves(float x, const Join& join, float* result) {
        CLARY_UNROLL
        for (int mask = 1; mask < 16; mask *= 2) x = join(x, T::shuffle_xor(x, mask));
        const float other = T::shuffle_xor(x, 16);
        const bool second = (T::lane() & 16) != 0;
        result[0] = second ? other : x;
        result[1] = second ? x : other;
    }
    CLARY_DEVICE static Bytes16 four_rows(uint32_t array) {
        return T::template load<Bytes16>({array + static_cast<uint32_t>(T::lane() % 32 * 16)});
    }
    // The largest of an array in the tile of each half; at least 0.
    CLARY_DEVICE static void tile_largest(uint32_t array, int tile, float* result) {
        const Bytes16 four = four_rows(array);
        float top = 0;
        CLARY_UNROLL
        for (int i = 0; i < 4; ++i) top = larger_of(numerics::bit_cast<float>(four.word[i]), top);
        over_halves(
            top, [](float a, float b) { return larger_of(a, b); }, result);
        if (tile == kSlab) result[0] = result[1] = larger_of(result[0], result[1]);
    }
    // NaN in the first place counts for nothing.
    CLARY_DEVICE static float larger_of(float x, float top) { return x > top ? x : top; }
    CLARY_DEVICE static float smaller_of(float x, float low) { return x < low ? x : low; }

    // amax of each row; rows that are not finite become zeros and get -1.
    template <class R>
    CLARY_DEVICE static void magnitudes(R& rows, float* amax) {
        bool bad = false;
        CLARY_UNROLL
        for (int i = 0; i < R::kRows; ++i) {
            amax[i] = rows.largest(i);
            bad = bad || !finite(amax[i]);
        }
        if (!T::any(bad)) return;
        CLARY_UNROLL
        for (int i = 0; i < R::kRows; ++i)
            if (!finite(amax[i])) {
                amax[i] = -1;
                rows.clear_row(i);
            }
    }

    CLARY_DEVICE static float largest_code(const QuantizeParams& p) {
        return static_cast<float>(p.desc.recipe.qk == Format::kInt4 ? numerics::kInt4Max : numerics::kInt8Max);
    }
    CLARY_DEVICE static int64_t code_columns(const QuantizeParams& p) {
        return kConfig.dim + (p.key_bias ? numerics::kDigitColumns : 0);
    }

    // Statistics may still be on their way when a block starts: V needs none, but for means and scales of channels.
    CLARY_DEVICE static bool needs_statistics_of_v(const QuantizeParams& p) {
        return p.v_mean != nullptr || p.desc.recipe.v_scale == VScale::kChannel;
    }
    // And puts c_k and c_q into shared memory.
    CLARY_DEVICE static void wait_for_statistics(const QuantizeParams& p, const Slab& slab) {
        const int64_t kv_head =
            slab.is_q ? static_cast<uint32_t>(slab.h) / static_cast<uint32_t>(p.q_heads_per_kv) : slab.h;
        const int64_t head = slab.b * p.desc.kv_heads + kv_head;
        T::wait_for_previous();
        Row::put_vector({kMeanAt}, p.c_k + head * kConfig.dim, kThreads);
        Row::put_vector({kQMeanAt}, p.c_q + head * kConfig.dim, kThreads);
        T::block_sync();
    }

    CLARY_DEVICE static int64_t head_dim(const QuantizeParams& p) { return kWhole ? kConfig.dim : p.desc.head_dim; }
    CLARY_DEVICE static int64_t head_dim_v(const QuantizeParams& p) {
        return kWhole ? kConfig.dim_v : p.desc.head_dim_v;
    }

    // pack(slab, number, whether another comes) of every slab of a block's run.
    template <class Pack>
    CLARY_DEVICE static void over_run(const QuantizeParams& p, const Slab& slab, const Pack& pack) {
        if constexpr (!kWhole && !kMeasure) {
            pack(slab, 0, false);
        } else {
            bool more = true;
            CLARY_NO_UNROLL
            for (int n = 0; more; ++n) {
                more = n + 1 < p.run && T::any(slab.at(p, n + 1).exists);
                pack(slab.at(p, n), n, more);
            }
        }
    }

    // -- scales of a whole head --
    struct Extremes {
        float amax = 0, bias = 0;  // over the rows of a thread
    };
    CLARY_DEVICE static void measure(const QuantizeParams& p, const Slab& slab, bool has_statistics) {
        if (!has_statistics) wait_for_statistics(p, slab);
        Extremes top;
        over_run(p, slab, [&](const Slab& s, int, bool) {
            if (s.is_q) {
                pack_q(p, s, 0, false, &top);
            } else {
                pack_v(p, s, 0, false, s);
                pack_k(p, s, 0, false, &top);
            }
            T::block_sync();  // what the slab's rows told each other has been read
        });
        CLARY_UNROLL
        for (int mask = 1; mask < T::kLanes; mask *= 2) {
            top.amax = larger_of(T::shuffle_xor(top.amax, mask), top.amax);
            top.bias = larger_of(T::shuffle_xor(top.bias, mask), top.bias);
        }
        if (T::lane() == 0) {
            put(kAmaxAt, T::wave(), top.amax);
            put(kBiasAt, T::wave(), top.bias);
        }
        T::block_sync();
        if (Row::thread() != 0) return;
        for (int wave = 1; wave < kThreads / T::kLanes; ++wave) {
            top.amax = larger_of(at(kAmaxAt, wave), top.amax);
            top.bias = larger_of(at(kBiasAt, wave), top.bias);
        }
        if (slab.is_q) {
            p.q_amax[slab.b * p.desc.q_heads + slab.h] = top.amax;
        } else {
            float* const to = p.k_amax + (slab.b * p.desc.kv_heads + slab.h) * 2;
            to[0] = top.amax;
            to[1] = top.bias;
        }
    }

    // -- rows, on their way while the ones before are packed: the place is free once these lie in registers --
    CLARY_DEVICE static SharedAddress stage() { return {kStageAt + static_cast<uint32_t>(T::wave()) * kWaveStage}; }
    CLARY_DEVICE static RowsFrom rows_from(const QuantizeParams& p, const Slab& slab, const Operand& operand) {
        return {token_address(p.desc, operand, slab.b, slab.h, slab.sequence, slab.is_q), slab.from};
    }
    template <class R>
    CLARY_DEVICE static void fetch(const Slab& slab, const Operand& operand) {
        if constexpr (kWhole) {
            const int64_t begin = slab.is_q ? slab.sequence.q_begin : slab.sequence.kv_begin;
            const int64_t element = slab.b * operand.batch_stride + slab.h * operand.head_stride +
                                    (begin + slab.from) * operand.token_stride;
            R::template fetch<kThreads>(stage(), slab.count, static_cast<const uint16_t*>(operand.data) + element,
                                        operand.token_stride * 2);
        }
    }
    template <class R>
    CLARY_DEVICE static void take(const QuantizeParams& p, const Slab& slab, const Operand& operand, int64_t dim,
                                  R& x) {
        if constexpr (kWhole)
            x.template take<kThreads>(stage(), operand.dtype == DType::kBF16);
        else
            x.load(operand, dim, slab.count, rows_from(p, slab, operand));
    }

    // Codes of rows below `rows` to packed rows from `to` on, and behind each the bytes of its digits.
    template <class Digits>
    CLARY_DEVICE static void store_codes(const QuantizeParams& p, const Row& x, const float* factor, int rows, char* to,
                                         const Digits& digits) {
        constexpr int kDigitWords = numerics::kDigitColumns / 4 / Row::kLanesPerRow;  // of a lane
        CLARY_UNROLL
        for (int i = 0; i < Row::kRows; ++i) {
            const int row = Row::row(i);
            if (row >= rows) continue;
            char* const codes = to + row * static_cast<int>(code_columns(p));
            CLARY_UNROLL
            for (int j = 0; j < Row::kChunks; ++j) {
                Bytes16 run;
                CLARY_UNROLL
                for (int word = 0; word < 4; ++word) run.word[word] = x.row_codes(i, j * 16 + word * 4, factor[i]);
                *reinterpret_cast<Bytes16*>(codes + Row::chunk(j) * 16) = run;
            }
            if (!p.key_bias) continue;
            Words<kDigitWords> run;
            CLARY_UNROLL
            for (int word = 0; word < kDigitWords; ++word)
                run.word[word] = digits(i, (Row::member() * kDigitWords + word) * 4);
            reinterpret_cast<Words<kDigitWords>*>(codes + kConfig.dim)[Row::member()] = run;
        }
    }
    template <int n>
    struct alignas(n < 4 ? n * 4 : 16) Words {
        uint32_t word[n];
    };

    // -- Q --
    CLARY_DEVICE static void pack_q(const QuantizeParams& p, const Slab& slab, int n, bool more,
                                    [[maybe_unused]] Extremes* top = nullptr) {
        const AttentionDesc& desc = p.desc;
        const int64_t head =
            slab.b * desc.kv_heads + static_cast<uint32_t>(slab.h) / static_cast<uint32_t>(p.q_heads_per_kv);
        const float sign = desc.scale > 0 ? 1.0f : desc.scale < 0 ? -1.0f : 0.0f;
        const uint32_t amax_at = n % 2 == 0 ? kAmaxAt : kOddAmaxAt;  // the other may still be read
        float amax[Row::kRows], shift[Row::kRows] = {}, factor[Row::kRows];
        uint32_t repeat[Row::kRows];
        Row x;
        take(p, slab, desc.q, head_dim(p), x);
        if (more) fetch<Row>(slab.at(p, 1), desc.q);
        if (p.q_shift != nullptr) {
            x.dot(SharedAddress{kMeanAt}, shift);
            CLARY_UNROLL
            for (int i = 0; i < Row::kRows; ++i) shift[i] *= static_cast<float>(desc.scale);
        }
        if (desc.recipe.smooth_q) x.subtract(SharedAddress{kQMeanAt});
        if (desc.recipe.rotate_qk) x.rotate(static_cast<int>(head_dim(p)));
        magnitudes(x, amax);
        CLARY_UNROLL
        for (int i = 0; i < Row::kRows; ++i)
            if ((sign == 0 && amax[i] > 0) || Row::row(i) >= slab.count) amax[i] = 0;
        if constexpr (kMeasure) {
            CLARY_UNROLL
            for (int i = 0; i < Row::kRows; ++i) top->amax = larger_of(amax[i], top->amax);
            return;
        }
        Row::put(amax_at, amax);
        share(p.q_group);

        const float q_base = p.q_base[head];
        CLARY_UNROLL
        for (int i = 0; i < Row::kRows; ++i) {
            const int row = Row::row(i);
            const float group_amax = over_group(p.q_group, row % kSlab, [&](int other) { return at(amax_at, other); });
            const float need =
                (p.q_amax != nullptr ? p.q_amax[slab.b * desc.q_heads + slab.h] : group_amax) / largest_code(p);
            float scale = numerics::detail::larger(need, numerics::kScaleFloor);
            int repeats = 0;
            // Louder than a given q_base allows: its own scale, and the bias is added in fp32.
            if (p.key_bias && need <= q_base) {
                repeats = numerics::q_repeat(q_base, need);
                scale = q_base / static_cast<float>(repeats);
            }
            factor[i] = sign * (1.0f / scale) * x.norm;
            repeat[i] = static_cast<uint32_t>(repeats) * 0x01010101u;
            if (row >= slab.count || Row::member() != 0) continue;
            const bool good = amax[i] >= 0;
            p.q_scale[slab.packed_row + row] = good ? scale : not_a_number();
            if (p.key_bias) p.q_repeat[slab.packed_row + row] = static_cast<uint8_t>(repeats);
            if (p.q_shift != nullptr) p.q_shift[slab.packed_row + row] = good ? shift[i] : not_a_number();
        }
        store_codes(p, x, factor, slab.count, static_cast<char*>(p.q_codes) + slab.packed_row * code_columns(p),
                    [&](int i, int) { return repeat[i]; });
    }

    // Rows of the slab that differ in these bits lie in lanes of one wave, kLanesPerRow apart.
    static constexpr int kWaveBits = (Row::kWaveRows < kSlab ? Row::kWaveRows : kSlab) - Row::kRows;

    // What rows of a group have put into shared memory is there for each other. (Waves that need not wait drift apart, so that
    // one's loads run beside another's arithmetic.)
    CLARY_DEVICE static void share(RowGroup group) {
        if ((group.mask & ~kWaveBits) != 0)
            T::block_sync();
        else
            T::wave_sync();
    }
    // The largest of value(row) over the rows that share the scale of `row`, a row of this lane; at least 0. Those of
    // the wave meet by shuffles, what lies beyond is read.
    template <class Value>
    CLARY_DEVICE static float over_group(RowGroup group, int row, const Value& value) {
        float top = larger_of(value(row), 0);
        const int beyond = group.mask & ~kWaveBits;
        for (int other = beyond; other != 0; other = (other - 1) & beyond) top = larger_of(value(row ^ other), top);
        CLARY_UNROLL
        for (int bit = Row::kRows; bit <= kWaveBits; bit *= 2)
            if ((group.mask & bit) != 0)
                top = larger_of(T::shuffle_xor(top, bit / Row::kRows * Row::kLanesPerRow), top);
        return top;
    }

    // -- K and V --
    template <class R>
    CLARY_DEVICE static void load(const QuantizeParams& p, const Slab& slab, const Operand& operand, int64_t dim,
                                  float* tail, R& x) {
        if constexpr (kAppend) {
            const RowsFrom rows = rows_from(p, slab, operand);
            const float* const kept = tail_of(p, slab, dim, tail);
            const Operand old{tail, DType::kF32, 0, 0, dim, 1};
            x.load(old, dim, slab.old, [&](int row) -> const void* { return kept + row * dim; });
            x.load_behind(operand, dim, slab.old, slab.count, [&](int row) { return rows(row - slab.old); });
        } else {
            take(p, slab, operand, dim, x);
            keep_tail(p, slab, x, dim, tail);
        }
    }

    // `first`: the slab that K begins with when V is done.
    CLARY_DEVICE static void pack_v(const QuantizeParams& p, const Slab& slab, int n, bool more, const Slab& first) {
        const AttentionDesc& desc = p.desc;
        const Recipe& recipe = desc.recipe;
        const int64_t head = slab.b * desc.kv_heads + slab.h;
        const int tile = p.kv_rows.tile;
        float amax[VRow::kRows];
        VRow x;
        load(p, slab, desc.v, head_dim_v(p), p.tail_v, x);
        if (more)
            fetch<VRow>(slab.at(p, 1), desc.v);
        else
            fetch<Row>(first, desc.k);
        if (p.v_mean != nullptr) {
            x.subtract(p.v_mean + head * kConfig.dim_v);
            x.clear_from(slab.count);
        }
        if (recipe.rotate_v) x.rotate(static_cast<int>(head_dim_v(p)));
        magnitudes(x, amax);
        VRow::put(kAmaxAt, amax);
        if (recipe.v_scale == VScale::kChannelTile) {
            if (n > 0) T::block_sync();  // the codes of the slab before have been read
            Channels::store(x, {kCodesAt});
        }
        T::block_sync();

        // Scales.
        float largest[2];
        tile_largest(kAmaxAt, tile, largest);
        if (recipe.v_scale == VScale::kToken) {
            weigh_keys(p, slab, bias_at(n), largest);
            if (Row::thread() < slab.tiles)
                p.v_scale[slab.packed_tile + Row::thread()] = v_tile_scale(of_half(largest, Row::thread() == 1));
        } else {
            for (int row = Row::thread(); row < kSlab; row += kThreads)
                put(bias_at(n), row, at(kAmaxAt, row) < 0 ? INFINITY : 0.0f);
        }
        if constexpr (kMeasure) {
            T::block_sync();  // K will want them
            return;
        }
        if (recipe.v_scale == VScale::kChannel)
            for (int slot = Row::thread(); slot < kConfig.dim_v; slot += kThreads)
                put(kChannelsAt, slot, 1.0f / p.v_scale[head * kConfig.dim_v + Channels::channel(slot)]);
        if (recipe.v_scale == VScale::kNone) {
            const float power[2] = {power_of_two(recipe, largest[0]), power_of_two(recipe, largest[1])};
            if (p.v_scale != nullptr && Row::thread() < slab.tiles)
                p.v_scale[slab.packed_tile + Row::thread()] = of_half(power, Row::thread() == 1);
            T::block_sync();
            store_v_rows(p, slab, x, power);
            return;
        }
        if (recipe.v_scale == VScale::kChannelTile) {
            pack_channel_tiles(p, slab, x);
            return;
        }
        T::block_sync();
        if (recipe.v_scale == VScale::kToken) {
            float inverse[VRow::kRows];
            VRow::get(kVInverseAt, inverse);
            stage_codes<false>(p, x, inverse, 0, kSlab);
        } else {
            stage_codes<true>(p, x, nullptr, 0, kSlab);
        }
        T::block_sync();
        store_v_codes(p, slab);
    }

    CLARY_DEVICE static uint32_t bias_at(int n) { return kBiasAt + static_cast<uint32_t>(n * kSlab * 4); }
    CLARY_DEVICE static float v_tile_scale(float amax) {
        return numerics::v_tile_scale(amax / static_cast<float>(numerics::kInt8Max));
    }

    // v_scale=token: weight, inverse scale and base-2 bias of every key.
    CLARY_DEVICE static void weigh_keys(const QuantizeParams& p, const Slab& slab, uint32_t bias_at,
                                        const float* largest) {
        const int tile = p.kv_rows.tile;
        for (int row = Row::thread(); row < kSlab; row += kThreads) {
            const float amax = at(kAmaxAt, row), need = larger_of(amax, 0) / static_cast<float>(numerics::kInt8Max);
            const float t_tile = v_tile_scale(of_half(largest, row >= kSlab / 2));
            const int weight = row < slab.count ? numerics::v_weight(t_tile, need) : 0;
            const float ratio = static_cast<float>(weight) / static_cast<float>(numerics::kWeightUnit);
            put(kVInverseAt, row, weight > 0 ? 1.0f / numerics::v_token_scale(t_tile, weight) : 0.0f);
            put(bias_at, row, amax < 0 ? INFINITY : weight > 0 ? -T::log2(ratio) : 0.0f);
            if (row < slab.tiles * tile)
                p.v_weight[slab.packed_row + numerics::v_position(kOrder, row)] = static_cast<uint8_t>(weight);
        }
    }

    // fp16 V: the smallest power of two, at least 1, that brings the tile to 32768 or less. An accumulator of the whole
    // row leaves no room for a scale per tile.
    CLARY_DEVICE static float power_of_two(const Recipe& recipe, float amax) {
        float scale = 1;
        if (recipe.pv != Format::kFp16 || recipe.accumulator == Accumulator::kFp16) return scale;
        while (amax > 32768.0f * scale) scale *= 2;
        return scale;
    }

    // fp16 and bf16 rows as they are.
    CLARY_DEVICE static void store_v_rows(const QuantizeParams& p, const Slab& slab, const VRow& x,
                                          const float* power) {
        auto* const to = static_cast<char*>(p.v_codes) + slab.packed_row * (kConfig.dim_v * 2);
        const int rows = slab.tiles * p.kv_rows.tile;
        CLARY_UNROLL
        for (int i = 0; i < VRow::kRows; ++i) {
            const int row = VRow::row(i);
            if (row >= rows) continue;
            const float factor = x.norm / of_half(power, row >= kSlab / 2);
            CLARY_UNROLL
            for (int j = 0; j < VRow::kChunks; ++j) {
                Bytes16 run;
                CLARY_UNROLL
                for (int word = 0; word < 4; ++word) {
                    const float a = x.x[i][j * 8 + word * 2] * factor, b = x.x[i][j * 8 + word * 2 + 1] * factor;
                    run.word[word] = p.desc.recipe.pv == Format::kFp16 ? T::template pack2<Element::kF16>(a, b)
                                                                       : T::template pack2<Element::kBf16>(a, b);
                }
                *reinterpret_cast<Bytes16*>(to + row * (kConfig.dim_v * 2) + VRow::chunk(j) * 16) = run;
            }
        }
    }

    // v_scale=channel_tile: one tile after the other uses the table of channel scales.
    CLARY_DEVICE static void pack_channel_tiles(const QuantizeParams& p, const Slab& slab, const VRow& x) {
        const int tile = p.kv_rows.tile, halves = tile / 64;
        float scale[2][kScalesPerThread];
        CLARY_UNROLL
        for (int t = 0; t < 2; ++t) {
            CLARY_UNROLL
            for (int n = 0; n < kScalesPerThread; ++n) {
                const int slot = Row::thread() + n * kThreads;
                if (t * tile >= kSlab || slot >= kConfig.dim_v) continue;
                const float amax = Channels::load({kCodesAt}, t * halves, (t + 1) * halves, slot);
                scale[t][n] = numerics::detail::larger(amax / v_code_limit(p.desc.recipe), numerics::kScaleFloor);
                if (t >= slab.tiles) continue;
                p.v_scale[(slab.packed_tile + t) * kConfig.dim_v + Channels::channel(slot)] = scale[t][n];
            }
        }
        CLARY_UNROLL
        for (int t = 0; t < 2; ++t) {
            if (t * tile >= kSlab) continue;
            T::block_sync();  // nobody reads maxima, or the scales of the tile before, any more
            CLARY_UNROLL
            for (int n = 0; n < kScalesPerThread; ++n) {
                const int slot = Row::thread() + n * kThreads;
                if (slot < kConfig.dim_v) put(kChannelsAt, slot, 1.0f / scale[t][n]);
            }
            T::block_sync();
            stage_codes<true>(p, x, nullptr, t * tile, (t + 1) * tile);
        }
        T::block_sync();
        store_v_codes(p, slab);
    }
    static constexpr int kScalesPerThread = (kConfig.dim_v + kThreads - 1) / kThreads;

    // Codes of the lane's keys within [begin, end) to [channel][key in V's order]: the four keys of a lane are one word.
    // The word of quad q and run c of channels lies at q ^ swizzle(c): 32 lanes meet 32 banks. (Where a wave has four quads,
    // runs of 32 keys leave it every second word.)
    CLARY_DEVICE static int swizzle(int chunk) {
        const int member = chunk % VRow::kLanesPerRow;
        if constexpr (VRow::kLanesPerRow == 16 && kOrder == numerics::VOrder::kRunsOf32)
            return member % 2 + member / 8 * 2 + member / 2 % 4 * 8;
        return member * (32 / VRow::kLanesPerRow);
    }
    // Of words of 4 keys, of which quads have the order of runs of 16.
    CLARY_DEVICE static int place_of_quad(int quad) {
        if constexpr (kOrder == numerics::VOrder::kRunsOf16) return quad;
        const int in_order = quad / 4 * 4 + quad % 4 / 2 + quad % 2 * 2;
        return static_cast<int>(numerics::v_position(kOrder, in_order * 4)) / 4;
    }
    // Four keys in a row are the halves of words of two neighbouring quads.
    CLARY_DEVICE static uint32_t word_in_order(uint32_t word, bool odd) {
        const uint32_t other = T::shuffle_xor(word, VRow::kLanesPerRow);
        return odd ? (word & 0xffff0000u) | other >> 16 : (word & 0xffffu) | other << 16;
    }
    template <bool kPerChannel>
    CLARY_DEVICE static void stage_codes(const QuantizeParams& p, const VRow& x, const float* inverse, int begin,
                                         int end) {
        const bool fp8 = kPerChannel && p.desc.recipe.pv == Format::kFp8;
        constexpr bool kInOrder = kOrder != numerics::VOrder::kRunsOf16;
        const int quad = VRow::quad(), index = place_of_quad(quad);
        const bool mine = VRow::first_row() >= begin && VRow::first_row() < end;
        if (!kInOrder && !mine) return;
        float factor[VRow::kRows];
        CLARY_UNROLL
        for (int i = 0; i < VRow::kRows; ++i) factor[i] = kPerChannel ? 0.0f : inverse[i] * x.norm;
        CLARY_UNROLL
        for (int column = 0; column < VRow::kColumns; ++column) {
            const int channel = VRow::channel(column);
            if constexpr (kPerChannel) {
                const float scale = at(kChannelsAt, Channels::slot(channel)) * x.norm;
                CLARY_UNROLL
                for (int i = 0; i < VRow::kRows; ++i) factor[i] = scale;
            }
            uint32_t word = 0;
            if (fp8)
                word = T::template pack4<Element::kE4m3>(x.x[0][column] * factor[0], x.x[1][column] * factor[1],
                                                         x.x[2][column] * factor[2], x.x[3][column] * factor[3]);
            else
                word = T::low_bytes(x.code(0, column, factor[0]), x.code(1, column, factor[1]),
                                    x.code(2, column, factor[2]), x.code(3, column, factor[3]));
            if constexpr (kInOrder) word = word_in_order(word, quad % 2 != 0);
            const int place = channel * 32 + (index ^ swizzle(channel / 8));
            if (mine) T::store(SharedAddress{kCodesAt + static_cast<uint32_t>(place * 4)}, word);
        }
    }
    CLARY_DEVICE static void store_v_codes(const QuantizeParams& p, const Slab& slab) {
        static_assert(kConfig.dim_v * 8 % kThreads == 0 && kThreads % 8 == 0);
        const int tile = p.kv_rows.tile, part = Row::thread() % 8;  // 16 keys of a channel
        const int t = part * 16 >> p.tile_shift;
        auto* const to = static_cast<char*>(p.v_codes) + slab.packed_row * kConfig.dim_v + t * tile * kConfig.dim_v +
                         (part * 16 & (tile - 1));
        CLARY_UNROLL
        for (int n = 0; n < kConfig.dim_v * 8 / kThreads; ++n) {
            const int channel = n * (kThreads / 8) + Row::thread() / 8;
            const int flip = swizzle(channel / 8);
            const int place = channel * 32 + ((part * 4) ^ (flip & ~3));
            Bytes16 run = T::template load<Bytes16>({kCodesAt + static_cast<uint32_t>(place * 4)});
            if constexpr (VRow::kLanesPerRow == 16)
                if ((flip & 2) != 0) run = Bytes16{{run.word[2], run.word[3], run.word[0], run.word[1]}};
            if constexpr (VRow::kLanesPerRow == 16 && kOrder == numerics::VOrder::kRunsOf32)
                if ((flip & 1) != 0) run = Bytes16{{run.word[1], run.word[0], run.word[3], run.word[2]}};
            if constexpr (kSums) store_sum(p, slab, run, channel, part);
            if (t < slab.tiles) *reinterpret_cast<Bytes16*>(to + (channel << p.tile_shift)) = run;
        }
    }

    // v_sum of a channel, by the lanes that hold its 8 runs of 16 codes.
    CLARY_DEVICE static void store_sum(const QuantizeParams& p, const Slab& slab, const Bytes16& run, int channel,
                                       int part) {
        if (p.v_sum == nullptr) return;
        int32_t sum = -128 * 16;
        CLARY_UNROLL
        for (int i = 0; i < 4; ++i) sum = T::dot4(run.word[i] ^ 0x80808080u, 0x01010101u, sum);
        sum += T::shuffle_xor(sum, 1);
        sum += T::shuffle_xor(sum, 2);
        if (p.kv_rows.tile == kSlab) sum += T::shuffle_xor(sum, 4);
        const int t = part * 16 >> p.tile_shift;
        if ((part * 16 & (p.kv_rows.tile - 1)) == 0 && t < slab.tiles)
            p.v_sum[(slab.packed_tile + t) * kConfig.dim_v + channel] = sum;
    }

    CLARY_DEVICE static void pack_k(const QuantizeParams& p, const Slab& slab, int n, bool more,
                                    [[maybe_unused]] Extremes* top = nullptr) {
        const AttentionDesc& desc = p.desc;
        const Recipe& recipe = desc.recipe;
        const int64_t head = slab.b * desc.kv_heads + slab.h;
        const int tile = p.kv_rows.tile;
        const uint32_t amax_at = n % 2 == 0 ? kAmaxAt : kOddAmaxAt;  // the other may still be read
        float amax[Row::kRows], bias[Row::kRows], factor[Row::kRows];
        int units[Row::kRows] = {};
        Row x;
        load(p, slab, desc.k, head_dim(p), p.tail_k, x);
        if (more) fetch<Row>(slab.at(p, 1), desc.k);
        if (recipe.smooth_k) x.subtract(SharedAddress{kMeanAt});
        Row::get(bias_at(n), bias);  // of V's weights
        if (recipe.smooth_q) {
            const float a = desc.scale < 0 ? -p.a : p.a;  // the sign lies in Q's codes
            float along[Row::kRows];
            x.dot(SharedAddress{kQMeanAt}, along);
            CLARY_UNROLL
            for (int i = 0; i < Row::kRows; ++i) bias[i] = T::fma(a, along[i], bias[i]);
        }
        if (recipe.rotate_qk) x.rotate(static_cast<int>(head_dim(p)));
        magnitudes(x, amax);
        // Infinity: the key is not finite, which poisons its tile. NaN: no key.
        CLARY_UNROLL
        for (int i = 0; i < Row::kRows; ++i) {
            const bool exists = Row::row(i) < slab.count;
            // Of a key whose V is not finite it is infinite, or NaN by now.
            bias[i] = !exists ? not_a_number() : amax[i] < 0 || !finite(bias[i]) ? INFINITY : bias[i];
            if (!exists) amax[i] = 0;
        }
        Row::put(amax_at, amax);
        T::wave_sync();  // the lanes of a row have read the bias that is replaced
        Row::put(bias_at(n), bias);
        T::block_sync();

        bool good[2];
        float base[2];
        tile_bases(bias_at(n), tile, p.desc.recipe.p_of_16_bits(), base, good);
        const auto local_bias = [&](int key) { return at(bias_at(n), key) - of_half(base, key >= kSlab / 2); };
        if constexpr (kMeasure) {
            CLARY_UNROLL
            for (int i = 0; i < Row::kRows; ++i) {
                const int row = Row::row(i) % kSlab;
                const float size = fabsf(local_bias(row));
                top->amax = larger_of(amax[i], top->amax);
                if (of_half(good, row >= kSlab / 2) && finite(size)) top->bias = larger_of(size, top->bias);
            }
            return;
        }
        const bool second = Row::thread() == 1;
        if (Row::thread() < slab.tiles)
            p.tile_base[slab.packed_tile + Row::thread()] =
                of_half(good, second) ? of_half(base, second) : not_a_number();
        const float q_base = p.q_base[head];
        const int rows = slab.tiles * tile;
        CLARY_UNROLL
        for (int i = 0; i < Row::kRows; ++i) {
            const int row = Row::row(i);
            const float group_amax = over_group(p.k_group, row % kSlab, [&](int key) { return at(amax_at, key); });
            const float need = (p.k_amax != nullptr ? p.k_amax[head * 2] : group_amax) / largest_code(p);
            float scale = numerics::detail::larger(need, numerics::kScaleFloor);
            if (p.key_bias) {
                const float largest_local = over_group(p.k_group, row % kSlab, [&](int key) {
                    const float size = fabsf(local_bias(key));
                    return finite(size) ? size : 0.0f;
                });
                const float local = local_bias(row % kSlab);
                scale = numerics::k_scale_for_bias(need, p.k_amax != nullptr ? p.k_amax[head * 2 + 1] : largest_local,
                                                   q_base, p.a);
                if (finite(local)) units[i] = numerics::bias_units(local, numerics::bias_unit(q_base, scale, p.a));
            }
            factor[i] = row < slab.count ? 1.0f / scale * x.norm : 0.0f;
            if (row < rows && Row::member() == 0) p.k_scale[slab.packed_row + row] = scale;
        }
        store_codes(p, x, factor, rows, static_cast<char*>(p.k_codes) + slab.packed_row * code_columns(p),
                    [&](int i, int column) { return numerics::digits(units[i], column); });
    }

    // The base of each tile, for both halves of the slab; 0 where a tile has no key or a bad one.
    CLARY_DEVICE static void tile_bases(uint32_t bias_at, int tile, bool whole, float* base, bool* good) {
        const Bytes16 four = four_rows(bias_at);
        float low = INFINITY, high = -INFINITY, lows[2], highs[2];
        CLARY_UNROLL
        for (int i = 0; i < 4; ++i) {
            low = smaller_of(numerics::bit_cast<float>(four.word[i]), low);
            high = larger_of(numerics::bit_cast<float>(four.word[i]), high);
        }
        over_halves(
            low, [](float a, float b) { return smaller_of(a, b); }, lows);
        over_halves(
            high, [](float a, float b) { return larger_of(a, b); }, highs);
        if (tile == kSlab) {
            lows[0] = lows[1] = smaller_of(lows[0], lows[1]);
            highs[0] = highs[1] = larger_of(highs[0], highs[1]);
        }
        CLARY_UNROLL
        for (int half = 0; half < 2; ++half) {
            good[half] = !(highs[half] >= INFINITY);
            base[half] =
                good[half] && lows[half] <= highs[half] ? numerics::tile_base(lows[half], highs[half], whole) : 0.0f;
        }
    }

    // Caches: the unquantized tokens of the last, partly filled tile, [tile, head_dim] of each head.
    CLARY_DEVICE static float* tail_of(const QuantizeParams& p, const Slab& slab, int64_t dim, float* tail) {
        return tail + (slab.b * p.desc.kv_heads + slab.h) * p.kv_rows.tile * dim;
    }
    // Rows first .. end - 1; row `shift` is key 0 of the tail.
    template <class R>
    CLARY_DEVICE static void store_tail(const R& x, int first, int end, int shift, int64_t dim, float* to) {
        CLARY_UNROLL
        for (int i = 0; i < R::kRows; ++i) {
            if (R::row(i) < first || R::row(i) >= end) continue;
            CLARY_UNROLL
            for (int column = 0; column < R::kColumns; ++column)
                if (R::channel(column) < dim) to[(R::row(i) - shift) * dim + R::channel(column)] = x.x[i][column];
        }
    }
    template <class R>
    CLARY_DEVICE static void keep_tail(const QuantizeParams& p, const Slab& slab, const R& x, int64_t dim,
                                       float* tail) {
        const int keys = slab.count & (p.kv_rows.tile - 1), shift = slab.count - keys;
        if (tail == nullptr || keys == 0) return;
        store_tail(x, shift, slab.count, shift, dim, tail_of(p, slab, dim, tail));
    }
    // By the first slab of an append, when it has read the tail: the new keys of what is the last tile now.
    template <class R>
    CLARY_DEVICE static void keep_new(const QuantizeParams& p, const Slab& slab, const Operand& operand, int64_t dim,
                                      float* tail) {
        if (slab.from != 0) return;
        const int64_t length = slab.first + slab.old, end = length + slab.sequence.kv_len;
        const int keys = static_cast<int>(end & (p.kv_rows.tile - 1));
        const int64_t last = end - keys;
        const int old = static_cast<int>(clamp(length - last, 0, keys));
        const RowsFrom rows{token_address(p.desc, operand, slab.b, slab.h, slab.sequence, false), last + old - length};
        R x;
        x.load_behind(operand, dim, old, keys, [&](int row) { return rows(row - old); });
        store_tail(x, old, keys, 0, dim, tail_of(p, slab, dim, tail));
    }
};

}  // namespace clary::gpu
