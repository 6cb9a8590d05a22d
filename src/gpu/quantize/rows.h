// SPDX-License-Identifier: Apache-2.0
// Rows of Q, K or V in the registers of a block: loading, smoothing, rotation, magnitudes, codes.
//
// kLanesPerRow neighbouring lanes (members) hold a row, or four of them (quads), in kChunks runs of kRun channels each:
//
//   channel(c) = kRun (member + kLanesPerRow (c / kRun)) + c % kRun      c = 0 .. kColumns - 1
//   kQuads     4 rows in a lane in runs of 8: rows {0, 1, 8, 9} + 2 (quad % 4) + 16 (quad / 4), neighbours in V's permuted
//              order (numerics/permutation.h), so that their codes of a channel are a word
//   kLong      1 row in a lane in runs of 16, 64 channels or 96: a rotation crosses few lanes, a row is known to few
//
// So a run is one load of 16 bytes or two, codes of a long row's run are a store of 16 bytes, and lanes of a row read whole
// sectors. Of the butterflies of a rotation only those of kRun .. kRun kLanesPerRow / 2 channels cross lanes. Head dims of
// 3 * 2^n have half as many channels more in a lane, which keeps kLanesPerRow a power of two.
#pragma once

#include <cmath>

#include "core/element.h"
#include "gpu/quantize/configs.h"
#include "gpu/target/atoms.h"
#include "gpu/target/target.h"
#include "numerics/hadamard.h"

namespace clary::gpu {

// What a lane holds: rows, and neighbouring channels (a run).
struct Share {
    int rows, run;
};
inline constexpr Share kQuads{4, 8}, kLong{1, 16};

template <class T, int kDim, Share kShare = kQuads>
struct Rows {
    static constexpr bool kIsQuad = kShare.rows == 4;
    static constexpr int kRun = kShare.run;
    static constexpr int kRows = kShare.rows;  // of a lane
    static constexpr int kColumns =            // of a lane
        kIsQuad ? (kDim % 3 == 0 ? 24 : 16)
                : (kDim % 3 == 0 ? 96
                   : kDim < 64   ? kDim
                                 : 64);
    static constexpr int kChunks = kColumns / kRun;
    static constexpr int kLanesPerRow = kDim / kColumns;
    static constexpr int kSlabThreads = kSlab / kRows * kLanesPerRow;  // that hold a slab
    static constexpr int kWaveRows = T::kLanes / kLanesPerRow * kRows;
    static_assert(kDim % kColumns == 0 && (kLanesPerRow & (kLanesPerRow - 1)) == 0 && kLanesPerRow <= 32);

    float x[kRows][kColumns];
    float norm = 1;  // what x still has to be multiplied by after a rotation

    CLARY_DEVICE static int thread() { return T::wave() * T::kLanes + T::lane(); }
    CLARY_DEVICE static int quad() { return thread() / kLanesPerRow; }
    CLARY_DEVICE static int member() { return T::lane() % kLanesPerRow; }
    // Of a block of kThreads.
    template <int kThreads>
    CLARY_DEVICE static bool has_rows() {
        return kThreads <= kSlabThreads || first_row() < kSlab;
    }
    CLARY_DEVICE static int first_row() { return kIsQuad ? quad() / 4 * 16 + quad() % 4 * 2 : quad(); }
    CLARY_DEVICE static int row(int i) { return first_row() + (kIsQuad ? i / 2 * 8 + i % 2 : i); }
    CLARY_DEVICE static int chunk(int j) { return member() + kLanesPerRow * j; }
    CLARY_DEVICE static int channel(int column) { return chunk(column / kRun) * kRun + column % kRun; }

    // Rows below `count`, row r from address(r); the others and the channels behind head_dim are zeros.
    template <class Address>
    CLARY_DEVICE void load(const Operand& operand, int64_t head_dim, int64_t count, const Address& address) {
        load_rows<false>(operand, head_dim, 0, count, address);
    }
    // Likewise, but rows before `first` stay what they are.
    template <class Address>
    CLARY_DEVICE void load_behind(const Operand& operand, int64_t head_dim, int64_t first, int64_t count,
                                  const Address& address) {
        load_rows<true>(operand, head_dim, first, count, address);
    }

    // A vector over channels, fp32, padded to kDim, in global memory or put into shared memory: x - c, and the sum of x c of
    // each row.
    template <class Vector>
    CLARY_DEVICE void subtract(Vector c) {
        for_columns(c, [&](int i, int column, float value) { x[i][column] -= value; });
    }
    template <class Vector>
    CLARY_DEVICE void dot(Vector c, float* sum) const {
        float part[kRows][kParts] = {};
        for_columns(c, [&](int i, int column, float value) {
            part[i][column % kParts] = T::fma(x[i][column], value, part[i][column % kParts]);
        });
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            CLARY_UNROLL
            for (int half = kParts / 2; half > 0; half /= 2) {
                CLARY_UNROLL
                for (int n = 0; n < half; ++n) part[i][n] += part[i][n + half];
            }
            sum[i] = part[i][0];
            CLARY_UNROLL
            for (int mask = 1; mask < kLanesPerRow; mask *= 2) sum[i] += T::shuffle_xor(sum[i], mask);
        }
    }
    static constexpr uint32_t kVectorBytes = kDim * 4;
    CLARY_DEVICE static void put_vector(SharedAddress to, const float* vector, int threads) {
        for (int unit = thread(); unit < kDim / 4; unit += threads)
            T::store(to + vector_place(unit), reinterpret_cast<const Bytes16*>(vector)[unit]);
    }
    CLARY_DEVICE void multiply(float factor) {
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column) {
            CLARY_UNROLL
            for (int i = 0; i < kRows; ++i) x[i][column] *= factor;
        }
    }
    CLARY_DEVICE void clear_row(int i) {
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column) x[i][column] = 0;
    }
    CLARY_DEVICE void clear_from(int64_t count) {
        if (count >= kSlab) return;
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i)
            if (row(i) >= count) clear_row(i);
    }

    // numerics::rotate of each row, but for the factor `norm`.
    CLARY_DEVICE void rotate(int head_dim) {
        if (head_dim == kDim)
            rotate_whole();
        else
            rotate_part(head_dim);
    }

    // -- over all channels of row i, known to all lanes of the row --
    // Largest magnitude; NaN or infinity where the row is not finite.
    CLARY_DEVICE float largest(int i) const {
        float part[kParts] = {};
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column)
            part[column % kParts] = T::max(part[column % kParts], fabsf(x[i][column]));
        CLARY_UNROLL
        for (int n = 1; n < kParts; ++n) part[0] = T::max(part[0], part[n]);
        float top = part[0];
        CLARY_UNROLL
        for (int mask = 1; mask < kLanesPerRow; mask *= 2) top = T::max(top, T::shuffle_xor(top, mask));
        return top * norm;
    }

    // A float of each row of the slab in shared memory, [128]: put() by the first lane that holds the row.
    CLARY_DEVICE static void put(uint32_t array, const float* value) {
        if (member() != 0 || first_row() >= kSlab) return;
        const SharedAddress to{array + static_cast<uint32_t>(first_row() * 4)};
        if constexpr (kIsQuad) {
            // Every other 8 quads begin with the second pair: 16 quads of a wave then meet 32 banks.
            const bool second = quad() / 8 % 2 != 0;
            const Pair low{value[0], value[1]}, high{value[2], value[3]};
            T::store(to + (second ? 32 : 0), second ? high : low);
            T::store(to + (second ? 0 : 32), second ? low : high);
        } else {
            T::store(to, value[0]);
        }
    }
    CLARY_DEVICE static void get(uint32_t array, float* value) {
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) value[i] = 0;
        if (first_row() >= kSlab) return;
        const SharedAddress from{array + static_cast<uint32_t>(first_row() * 4)};
        if constexpr (kIsQuad) {
            const bool second = quad() / 8 % 2 != 0;
            Pair low = T::template load<Pair>(from + (second ? 32 : 0));
            Pair high = T::template load<Pair>(from + (second ? 0 : 32));
            if (second) {
                const Pair other = low;
                low = high;
                high = other;
            }
            value[0] = low.a;
            value[1] = low.b;
            value[2] = high.a;
            value[3] = high.b;
        } else {
            value[0] = T::template load<float>(from);
        }
    }

    // -- rows on their way: 16-bit runs by asynchronous copies into the wave's part of shared memory. Every wave reads
    // what it has copied itself, so that nothing but a wave_sync() stands between --
    static constexpr int kUnits = kRows * kColumns / 8;               // 16-byte units of a lane
    static constexpr uint32_t kStageBytes = kUnits * T::kLanes * 16;  // of a wave

    // Row r begins at from + r step (bytes); `count` of them, the others are zeros.
    template <int kThreads>
    CLARY_DEVICE static void fetch(SharedAddress stage, int count, const void* from, int64_t step) {
        const char* const first = static_cast<const char*>(from) + unit_of(0).row * step;
        CLARY_UNROLL
        for (int k = 0; k < kUnits; ++k) {
            const Unit unit = unit_of(k);
            // Where whole rows are copied at once the difference is a constant.
            const int rows = kIsQuad ? k / kChunks / 2 * 8 + k / kChunks % 2 : k * T::kLanes / kRowUnits;
            const char* const row = kIsQuad || T::kLanes % kRowUnits == 0 ? first + rows * step
                                                                          : first + (unit.row - unit_of(0).row) * step;
            T::copy16(stage + static_cast<uint32_t>((k * T::kLanes + T::lane()) * 16), row + unit.column * 16,
                      unit.row < count, has_rows<kThreads>());
        }
        T::commit();
    }
    // Afterwards the place is free.
    template <int kThreads>
    CLARY_DEVICE void take(SharedAddress stage, bool bf16) {
        norm = 1;
        T::template wait<0, kUnits>();
        T::wave_sync();
        Bytes16 unit[kUnits];
        CLARY_UNROLL
        for (int k = 0; k < kUnits; ++k)
            unit[k] = has_rows<kThreads>() ? T::template load<Bytes16>(stage + place_of(k)) : Bytes16{};
        T::wave_sync();
        if (bf16)
            unpack_units<Element::kBf16>(unit);
        else
            unpack_units<Element::kF16>(unit);
    }

    // The low byte holds x * factor to the nearest integer, ties to even: 1.5 * 2^23 leaves a sum no place for fractions.
    // The factor contains `norm`; |x * factor| < 2^22.
    CLARY_DEVICE uint32_t code(int i, int column, float factor) const {
        return numerics::bit_cast<uint32_t>(T::fma(x[i][column], factor, 12582912.0f));
    }
    // Codes of columns column .. column + 3 of a row.
    CLARY_DEVICE uint32_t row_codes(int i, int column, float factor) const {
        return T::low_bytes(code(i, column, factor), code(i, column + 1, factor), code(i, column + 2, factor),
                            code(i, column + 3, factor));
    }

  private:
    static constexpr int kParts = kRows == 1 ? 8 : 1;  // of a long chain of sums or maxima
    struct alignas(8) Pair {
        float a, b;
    };

    // Of 4 channels: in shared memory lanes that read the same four of their runs meet different banks.
    CLARY_DEVICE static uint32_t vector_place(int unit) { return static_cast<uint32_t>((unit ^ (unit / 8 % 2)) * 16); }
    CLARY_DEVICE static Bytes16 four(const float* vector, int unit) {
        return reinterpret_cast<const Bytes16*>(vector)[unit];
    }
    CLARY_DEVICE static Bytes16 four(SharedAddress vector, int unit) {
        return T::template load<Bytes16>(vector + vector_place(unit));
    }
    // use(i, column, value of the vector there).
    template <class Vector, class Use>
    CLARY_DEVICE static void for_columns(Vector vector, const Use& use) {
        constexpr int kFours = kRun / 4;
        CLARY_UNROLL
        for (int j = 0; j < kColumns / 4; ++j) {
            const Bytes16 values = four(vector, chunk(j / kFours) * kFours + j % kFours);
            CLARY_UNROLL
            for (int n = 0; n < 4; ++n) {
                CLARY_UNROLL
                for (int i = 0; i < kRows; ++i) use(i, j * 4 + n, numerics::bit_cast<float>(values.word[n]));
            }
        }
    }

    // The wave's copy number k brings this unit to this lane's place. Quads copy what the lane will read; rows of few
    // lanes, whole rows: neighbouring lanes read neighbouring addresses.
    struct Unit {
        int row, column;  // in the slab; of 8 channels
    };
    static constexpr int kRowUnits = kDim / 8;
    CLARY_DEVICE static Unit unit_of(int k) {
        if constexpr (kIsQuad) {
            return {row(k / kChunks), chunk(k % kChunks)};
        } else {
            const int at = k * T::kLanes + T::lane(), row = at / kRowUnits;
            return {T::wave() * kWaveRows + row, at % kRowUnits ^ swizzle(row)};
        }
    }
    // 8 lanes that read 16 bytes at once meet different banks: members of a row differ in bits 1 .. of the column, rows
    // in what is left of 3 bits.
    CLARY_DEVICE static int swizzle(int row) {
        if constexpr (kRowUnits % 8 != 0) return row / 2 % 4;
        if constexpr (kLanesPerRow == 1) return row % 8;
        if constexpr (kLanesPerRow == 2) return row % 2 + row / 2 % 2 * 4;
        return row % 2;
    }
    CLARY_DEVICE static uint32_t place_of(int k) {
        if constexpr (kIsQuad) return static_cast<uint32_t>((k * T::kLanes + T::lane()) * 16);
        constexpr int kPerRow = kColumns / 8;
        const int row = T::lane() / kLanesPerRow, n = k % kPerRow;
        return static_cast<uint32_t>((row * kRowUnits + ((chunk(n / 2) * 2 + n % 2) ^ swizzle(row))) * 16);
    }

    template <Element kFrom>
    CLARY_DEVICE static void unpack(const Bytes16* run, float* to) {
        CLARY_UNROLL
        for (int i = 0; i < 8; ++i) to[i] = T::template unpack2<kFrom>(run->word[i / 2], i % 2);
    }

    template <Element kFrom>
    CLARY_DEVICE void unpack_units(const Bytes16* unit) {
        CLARY_UNROLL
        for (int k = 0; k < kUnits; ++k) unpack<kFrom>(&unit[k], &x[k * 8 / kColumns][k * 8 % kColumns]);
    }

    template <bool kBehind, class Address>
    CLARY_DEVICE void load_rows(const Operand& operand, int64_t head_dim, int64_t first, int64_t count,
                                const Address& address) {
        norm = 1;
        if (!loads_whole_runs(operand, head_dim)) {
            load_elements<kBehind>(operand, head_dim, first, count, address);
            return;
        }
        if (operand.dtype == DType::kF32) {
            load_runs<2, kBehind>(head_dim, first, count, address, [](const Bytes16* run, float* to) {
                CLARY_UNROLL
                for (int i = 0; i < 8; ++i) to[i] = numerics::bit_cast<float>(run[i / 4].word[i % 4]);
            });
        } else if (operand.dtype == DType::kBF16) {
            load_runs<1, kBehind>(head_dim, first, count, address, unpack<Element::kBf16>);
        } else {
            load_runs<1, kBehind>(head_dim, first, count, address, unpack<Element::kF16>);
        }
    }

    // All loads are on their way before the first is used. Units of 8 channels.
    template <int kLoads, bool kBehind, class Address, class Convert>
    CLARY_DEVICE void load_runs(int64_t head_dim, int64_t first, int64_t count, const Address& address,
                                const Convert& convert) {
        constexpr int kPerRow = kColumns / 8, kPerRun = kRun / 8;
        Bytes16 run[kRows][kPerRow][kLoads];
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            const bool exists = row(i) < count && (!kBehind || row(i) >= first);
            const auto* const from = static_cast<const Bytes16*>(exists ? address(row(i)) : nullptr);
            CLARY_UNROLL
            for (int j = 0; j < kPerRow; ++j) {
                const int unit = chunk(j / kPerRun) * kPerRun + j % kPerRun;
                CLARY_UNROLL
                for (int part = 0; part < kLoads; ++part)
                    run[i][j][part] = exists && unit * 8 < head_dim ? from[unit * kLoads + part] : Bytes16{};
            }
        }
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            if (kBehind && row(i) < first) continue;
            CLARY_UNROLL
            for (int j = 0; j < kPerRow; ++j) convert(run[i][j], &x[i][j * 8]);
        }
    }

    template <bool kBehind, class Address>
    CLARY_DEVICE void load_elements(const Operand& operand, int64_t head_dim, int64_t first, int64_t count,
                                    const Address& address) {
        const int64_t step = operand.dim_stride * dtype_size(operand.dtype);
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            if (kBehind && row(i) < first) continue;
            const bool exists = row(i) < count;
            const auto* const from = static_cast<const char*>(exists ? address(row(i)) : nullptr);
            CLARY_UNROLL
            for (int column = 0; column < kColumns; ++column)
                x[i][column] = exists && channel(column) < head_dim
                                   ? load_element(from + channel(column) * step, operand.dtype)
                                   : 0.0f;
        }
    }

    // Chunks that lie in the first of the blocks that are rotated: all, or two thirds of 3 * 2^n channels.
    static constexpr int kFirstChunks = kDim % 3 == 0 ? kChunks / 3 * 2 : kChunks;
    // Whether chunks j and j + stride meet in a butterfly.
    CLARY_HD static constexpr bool meet(int j, int stride) {
        return (j & stride) == 0 && stride < (j < kFirstChunks ? kFirstChunks : kChunks - kFirstChunks);
    }

    CLARY_DEVICE void rotate_whole() {
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            CLARY_UNROLL
            for (int stride = 1; stride < kRun; stride *= 2) {
                CLARY_UNROLL
                for (int column = 0; column < kColumns; ++column)
                    if ((column & stride) == 0) numerics::butterfly(x[i][column], x[i][column + stride]);
            }
            CLARY_UNROLL
            for (int mask = 1; mask < kLanesPerRow; mask *= 2) {
                const float sign = (T::lane() & mask) != 0 ? -1.0f : 1.0f;
                CLARY_UNROLL
                for (int column = 0; column < kColumns; ++column)
                    x[i][column] = T::fma(sign, x[i][column], T::shuffle_xor(x[i][column], mask));
            }
            CLARY_UNROLL
            for (int stride = 1; stride < kChunks; stride *= 2) {
                CLARY_UNROLL
                for (int column = 0; column < kColumns; ++column)
                    if (meet(column / kRun, stride)) numerics::butterfly(x[i][column], x[i][column + stride * kRun]);
            }
        }
        if constexpr (kDim % 3 != 0) {
            norm = numerics::hadamard_norm<float>(kDim);
        } else {
            constexpr float kLarge = numerics::hadamard_norm<float>(kDim / 3 * 2);
            constexpr float kSmall = numerics::hadamard_norm<float>(kDim / 3);
            CLARY_UNROLL
            for (int i = 0; i < kRows; ++i) {
                CLARY_UNROLL
                for (int column = 0; column < kColumns; ++column)
                    x[i][column] *= column / kRun < kFirstChunks ? kLarge : kSmall;
            }
        }
    }

    // Channels from n on are zeros and stay so.
    CLARY_DEVICE void rotate_part(int n) {
        CLARY_UNROLL
        for (int stride = 1; stride < kRun; stride *= 2) {
            CLARY_UNROLL
            for (int column = 0; column < kColumns; ++column) {
                if ((column & stride) != 0 || !numerics::hadamard_meets(channel(column), n, stride)) continue;
                CLARY_UNROLL
                for (int i = 0; i < kRows; ++i) numerics::butterfly(x[i][column], x[i][column + stride]);
            }
        }
        CLARY_UNROLL
        for (int mask = 1; mask < kLanesPerRow; mask *= 2) {
            const float sign = (T::lane() & mask) != 0 ? -1.0f : 1.0f;
            CLARY_UNROLL
            for (int column = 0; column < kColumns; ++column) {
                const bool within = numerics::hadamard_meets(channel(column), n, kRun * mask);
                CLARY_UNROLL
                for (int i = 0; i < kRows; ++i) {
                    const float mixed = T::fma(sign, x[i][column], T::shuffle_xor(x[i][column], mask));
                    x[i][column] = within ? mixed : x[i][column];
                }
            }
        }
        CLARY_UNROLL
        for (int stride = 1; stride < kChunks; stride *= 2) {
            CLARY_UNROLL
            for (int column = 0; column < kColumns; ++column) {
                if ((column / kRun & stride) != 0 || column / kRun + stride >= kChunks) continue;
                if (!numerics::hadamard_meets(channel(column), n, kRun * kLanesPerRow * stride)) continue;
                CLARY_UNROLL
                for (int i = 0; i < kRows; ++i) numerics::butterfly(x[i][column], x[i][column + stride * kRun]);
            }
        }
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column) {
            const float factor = numerics::hadamard_norm_at<float>(channel(column), n);
            CLARY_UNROLL
            for (int i = 0; i < kRows; ++i) x[i][column] *= factor;
        }
    }
};

// Rows first, first + 1, ... of one (sequence, head) for Rows::load. Only pages need a look-up per row.
struct RowsFrom {
    TokenAddress token;
    int64_t first;
    const char* base;
    int64_t step;  // bytes

    CLARY_DEVICE RowsFrom(const TokenAddress& token_, int64_t first_)
        : token(token_),
          first(first_),
          base(token.paged ? nullptr : static_cast<const char*>(token(first))),
          step(token.operand.token_stride * dtype_size(token.operand.dtype)) {}
    CLARY_DEVICE const void* operator()(int row) const {
        return token.paged ? token(first + row) : static_cast<const void*>(base + row * step);
    }
};

}  // namespace clary::gpu
