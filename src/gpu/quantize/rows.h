// SPDX-License-Identifier: Apache-2.0
// Rows of Q, K or V in the registers of a block: loading, smoothing, rotation, magnitudes, codes.
//
// A lane holds 4 rows of kChunks runs of 8 channels. kLanesPerRow neighbouring lanes (a quad of rows) hold whole rows:
//
//   row(i)       = 16 (quad / 4) + 2 (quad % 4) + {0, 1, 8, 9}[i]       lane = quad kLanesPerRow + member
//   channel(c)   = 8 (member + kLanesPerRow (c / 8)) + c % 8             c = 0 .. 8 kChunks - 1
//
// so that the four rows are neighbours in V's permuted order (numerics/permutation.h), a 16-bit run is one load of 16
// bytes, and lanes of a quad read whole sectors. Of the butterflies of a rotation only those of 8 .. 4 kLanesPerRow
// channels cross lanes. Head dims of 3 * 2^n have 3 runs per lane, others 2, which keeps kLanesPerRow a power of two.
#pragma once

#include <cmath>

#include "core/element.h"
#include "gpu/quantize/configs.h"
#include "gpu/target/atoms.h"
#include "gpu/target/target.h"
#include "numerics/hadamard.h"

namespace clary::gpu {

// 16-byte loads of a row: runs of 8 channels that exist as a whole, all aligned.
CLARY_DEVICE bool loads_whole_runs(const Operand& operand, int64_t head_dim) {
    const int64_t size = dtype_size(operand.dtype);
    const int64_t strides = operand.batch_stride | operand.head_stride | operand.token_stride;
    return operand.dim_stride == 1 && head_dim % 8 == 0 && strides * size % 16 == 0 &&
           reinterpret_cast<uintptr_t>(operand.data) % 16 == 0;
}

template <class T, int kDim>
struct Rows {
    static constexpr int kRows = 4;  // of a lane
    static constexpr int kChunks = kDim % 3 == 0 ? 3 : 2;
    static constexpr int kColumns = 8 * kChunks;  // of a lane
    static constexpr int kLanesPerRow = kDim / kColumns;
    static constexpr int kSlabThreads = kSlab / kRows * kLanesPerRow;  // that hold a slab
    static_assert(kDim % kColumns == 0 && (kLanesPerRow & (kLanesPerRow - 1)) == 0 && kLanesPerRow <= 32);

    float x[kRows][kColumns];
    float norm = 1;  // what x still has to be multiplied by after a rotation

    CLARY_DEVICE static int thread() { return T::wave() * T::kLanes + T::lane(); }
    CLARY_DEVICE static int quad() { return thread() / kLanesPerRow; }
    CLARY_DEVICE static int member() { return T::lane() % kLanesPerRow; }
    CLARY_DEVICE static int first_row() { return quad() / 4 * 16 + quad() % 4 * 2; }
    CLARY_DEVICE static int row(int i) { return first_row() + i / 2 * 8 + i % 2; }
    CLARY_DEVICE static int chunk(int j) { return member() + kLanesPerRow * j; }
    CLARY_DEVICE static int channel(int column) { return chunk(column / 8) * 8 + column % 8; }

    // A vector over channels, fp32, padded to kDim.
    struct Columns {
        float value[kColumns];

        CLARY_DEVICE explicit Columns(const float* vector) {
            CLARY_UNROLL
            for (int j = 0; j < kChunks * 2; ++j) {
                const Bytes16 four = reinterpret_cast<const Bytes16*>(vector)[chunk(j / 2) * 2 + j % 2];
                CLARY_UNROLL
                for (int i = 0; i < 4; ++i) value[j * 4 + i] = numerics::bit_cast<float>(four.word[i]);
            }
        }
    };

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

    // sign (x - c)
    CLARY_DEVICE void subtract(const Columns& c, float sign) {
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column) {
            const float minus = -sign * c.value[column];
            CLARY_UNROLL
            for (int i = 0; i < kRows; ++i) x[i][column] = T::fma(sign, x[i][column], minus);
        }
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
        float top = 0;
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column) top = T::max(top, fabsf(x[i][column]));
        CLARY_UNROLL
        for (int mask = 1; mask < kLanesPerRow; mask *= 2) top = T::max(top, T::shuffle_xor(top, mask));
        return top * norm;
    }
    CLARY_DEVICE float dot(int i, const Columns& c) const {
        float sum = 0;
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column) sum = T::fma(x[i][column], c.value[column], sum);
        CLARY_UNROLL
        for (int mask = 1; mask < kLanesPerRow; mask *= 2) sum += T::shuffle_xor(sum, mask);
        return sum;
    }

    // A float of each row of the slab in shared memory, [128]: put() by the first lane of a quad.
    CLARY_DEVICE static void put(uint32_t array, const float* value) {
        if (member() != 0 || first_row() >= kSlab) return;
        const SharedAddress to{array + static_cast<uint32_t>(first_row() * 4)};
        // Every other 8 quads begin with the second pair: 16 quads of a wave then meet 32 banks.
        const bool second = quad() / 8 % 2 != 0;
        const Pair low{value[0], value[1]}, high{value[2], value[3]};
        T::store(to + (second ? 32 : 0), second ? high : low);
        T::store(to + (second ? 0 : 32), second ? low : high);
    }
    CLARY_DEVICE static void get(uint32_t array, float* value) {
        Pair low{0, 0}, high{0, 0};
        if (first_row() < kSlab) {
            const SharedAddress from{array + static_cast<uint32_t>(first_row() * 4)};
            const bool second = quad() / 8 % 2 != 0;
            low = T::template load<Pair>(from + (second ? 32 : 0));
            high = T::template load<Pair>(from + (second ? 0 : 32));
            if (second) {
                const Pair other = low;
                low = high;
                high = other;
            }
        }
        value[0] = low.a;
        value[1] = low.b;
        value[2] = high.a;
        value[3] = high.b;
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
    struct alignas(8) Pair {
        float a, b;
    };

    template <Element kFrom>
    CLARY_DEVICE static void unpack(const Bytes16* run, float* to) {
        CLARY_UNROLL
        for (int i = 0; i < 8; ++i) to[i] = T::template unpack2<kFrom>(run->word[i / 2], i % 2);
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

    // All loads are on their way before the first is used.
    template <int kLoads, bool kBehind, class Address, class Convert>
    CLARY_DEVICE void load_runs(int64_t head_dim, int64_t first, int64_t count, const Address& address,
                                const Convert& convert) {
        Bytes16 run[kRows][kChunks][kLoads];
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            const bool exists = row(i) < count && (!kBehind || row(i) >= first);
            const auto* const from = static_cast<const Bytes16*>(exists ? address(row(i)) : nullptr);
            CLARY_UNROLL
            for (int j = 0; j < kChunks; ++j) {
                CLARY_UNROLL
                for (int part = 0; part < kLoads; ++part)
                    run[i][j][part] = exists && chunk(j) * 8 < head_dim ? from[chunk(j) * kLoads + part] : Bytes16{};
            }
        }
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            if (kBehind && row(i) < first) continue;
            CLARY_UNROLL
            for (int j = 0; j < kChunks; ++j) convert(run[i][j], &x[i][j * 8]);
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

    CLARY_DEVICE static void butterfly(float& a, float& b) {
        const float sum = a + b;
        b = a - b;
        a = sum;
    }

    // Blocks of whole lanes: kDim, or two thirds and one third of it.
    CLARY_DEVICE void rotate_whole() {
        CLARY_UNROLL
        for (int i = 0; i < kRows; ++i) {
            CLARY_UNROLL
            for (int stride = 1; stride < 8; stride *= 2) {
                CLARY_UNROLL
                for (int column = 0; column < kColumns; ++column)
                    if ((column & stride) == 0) butterfly(x[i][column], x[i][column + stride]);
            }
            CLARY_UNROLL
            for (int mask = 1; mask < kLanesPerRow; mask *= 2) {
                const float sign = (T::lane() & mask) != 0 ? -1.0f : 1.0f;
                CLARY_UNROLL
                for (int column = 0; column < kColumns; ++column)
                    x[i][column] = T::fma(sign, x[i][column], T::shuffle_xor(x[i][column], mask));
            }
            CLARY_UNROLL
            for (int column = 0; column < 8; ++column) butterfly(x[i][column], x[i][column + 8]);
        }
        if constexpr (kChunks == 2) {
            norm = numerics::hadamard_norm<float>(kDim);
        } else {
            constexpr float kLarge = numerics::hadamard_norm<float>(kDim / 3 * 2);
            constexpr float kSmall = numerics::hadamard_norm<float>(kDim / 3);
            CLARY_UNROLL
            for (int i = 0; i < kRows; ++i) {
                CLARY_UNROLL
                for (int column = 0; column < kColumns; ++column) x[i][column] *= column < 16 ? kLarge : kSmall;
            }
        }
    }

    // Channel i of n lies in the block whose size is the highest bit of i ^ n (there n has a one and i has none), and i's
    // bits below it count within the block. Channels from n on are zeros and stay so.
    CLARY_DEVICE void rotate_part(int n) {
        CLARY_UNROLL
        for (int stride = 1; stride < 8; stride *= 2) {
            CLARY_UNROLL
            for (int column = 0; column < kColumns; ++column) {
                if ((column & stride) != 0 || (channel(column) ^ n) < 2 * stride) continue;
                CLARY_UNROLL
                for (int i = 0; i < kRows; ++i) butterfly(x[i][column], x[i][column + stride]);
            }
        }
        CLARY_UNROLL
        for (int mask = 1; mask < kLanesPerRow; mask *= 2) {
            const float sign = (T::lane() & mask) != 0 ? -1.0f : 1.0f;
            CLARY_UNROLL
            for (int column = 0; column < kColumns; ++column) {
                const bool within = (channel(column) ^ n) >= 16 * mask;
                CLARY_UNROLL
                for (int i = 0; i < kRows; ++i) {
                    const float mixed = T::fma(sign, x[i][column], T::shuffle_xor(x[i][column], mask));
                    x[i][column] = within ? mixed : x[i][column];
                }
            }
        }
        CLARY_UNROLL
        for (int column = 0; column < 8; ++column) {
            if ((channel(column) ^ n) < 16 * kLanesPerRow) continue;
            CLARY_UNROLL
            for (int i = 0; i < kRows; ++i) butterfly(x[i][column], x[i][column + 8]);
        }
        CLARY_UNROLL
        for (int column = 0; column < kColumns; ++column) {
            const float factor = numerics::hadamard_norm<float>(numerics::hadamard_block(channel(column) ^ n));
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
