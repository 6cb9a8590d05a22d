// SPDX-License-Identifier: Apache-2.0
// A wave's rows of O in its accumulators: from sums to results, rotated back along the channels, and stored in the caller's
// type and layout by way of shared memory, so that lanes write runs of channels. What a block does once and a tile of keys
// does not pay for: every instruction counts where rows see few keys.
#pragma once

#include "core/desc.h"
#include "core/element.h"
#include "gpu/attention/params.h"
#include "gpu/target/products.h"
#include "gpu/target/target.h"
#include "numerics/hadamard.h"

namespace clary::gpu {

// kM x kN results of Atom; of fp32, kStaged x kOthers channels of them are in shared memory at once.
template <class T, class Atom, int kM, int kN, int kStaged = kN>
struct OutputRows {
    using Registers = Fragment<float, Atom::kResults>[kM][kN];
    static constexpr int kWaveRows = kM * Atom::kQueries, kChannels = kN * Atom::kOthers;
    static constexpr int kRun = Atom::kOthers / 4;  // channels that a lane holds side by side
    static_assert(Atom::result_at(0, kRun - 1) == Coord{0, kRun - 1}, "a row of an atom lies in four lanes");

    CLARY_HD static constexpr int row_of(int m, int i) { return m * kResultRows<Atom> + row_slot<Atom>(i); }
    CLARY_DEVICE static int channel_of(int n, int i) { return n * Atom::kOthers + Atom::result_at(T::lane(), i).col; }

    // From sums to results. Of each row, by slot: what its sums are multiplied by, and the mean's share of it.
    template <int kRows>
    CLARY_DEVICE static void finish(Registers& out, const float (&inverse)[kRows], const float (&share)[kRows],
                                    const ValueChannels& channels) {
        for_all([&](auto m, auto n, auto i) { out[m][n][i] *= inverse[row_of(m, i)]; });
        if (channels.scale != nullptr) {
            const float* const scale = channels.scale + channel_of(0, 0);
            for_all([&](auto m, auto n, auto i) { out[m][n][i] *= scale[channels_from_first(n, i)]; });
        }
        if (channels.rotated) rotate(out, channels.dim);
        if (channels.mean != nullptr) {
            const float* const mean = channels.mean + channel_of(0, 0);
            for_all([&](auto m, auto n, auto i) {
                out[m][n][i] = T::fma(mean[channels_from_first(n, i)], share[row_of(m, i)], out[m][n][i]);
            });
        }
    }

    // -- Hadamard rotation of channels 0 .. dim - 1 (numerics/hadamard.h) --
    CLARY_DEVICE static void rotate(Registers& out, int dim) {
        if (dim == kChannels)
            rotate_blocks<true>(out, dim);
        else
            rotate_blocks<false>(out, dim);
    }

    // -- shared memory: rows of results, then where each begins in the caller's tensor. Results of 16 bits are packed on their
    // way in, twice as many channels at once --
    static constexpr int kPacked = 2 * kStaged < kN ? 2 * kStaged : kN;  // atoms
    static_assert(kN % kStaged == 0 && kN % kPacked == 0);
    // The gap between rows is what lanes with neighbouring numbers write of one, so that they spread over the banks.
    static constexpr int kRowBytes = (kStaged * Atom::kOthers + (Atom::result_at(1, 0).row == 0 ? 4 * kRun : kRun)) * 4;
    static constexpr int kPackedRowBytes = kPacked * Atom::kOthers * 2 + 16;
    static constexpr int kOffsetsAt = kWaveRows * (kRowBytes > kPackedRowBytes ? kRowBytes : kPackedRowBytes);
    static constexpr int kBytes = kOffsetsAt + kWaveRows * static_cast<int>(sizeof(int64_t));

    // Rows 0 .. rows - 1, row r to element row_offset(r) of `to`. (Head dims that are no multiples of 8 are rare: by element.)
    template <class RowOffset>
    CLARY_DEVICE static void store(const Registers& out, SharedAddress scratch, const Operand& to, int dim, int rows,
                                   const RowOffset& row_offset) {
        if (to.dtype == DType::kBF16 && in_runs_of<8>(to, dim))
            store_packed<Element::kBf16>(out, scratch, to, dim, rows, row_offset);
        else if (to.dtype == DType::kF16 && in_runs_of<8>(to, dim))
            store_packed<Element::kF16>(out, scratch, to, dim, rows, row_offset);
        else
            store_any(out, scratch, to, dim, rows, row_offset);
    }

    // Results of 16 bits, straight from the accumulators: for more channels than shared memory has room for.
    template <class RowOffset>
    CLARY_DEVICE static void store_directly(const Registers& out, const Operand& to, int dim, int rows,
                                            const RowOffset& row_offset) {
        static_assert(kRun == 2);
        const bool in_pairs = in_runs_of<2>(to, dim);
        static_for<kM, Atom::kResults / 2>([&](auto m, auto pair) {
            const Coord at = Atom::result_at(T::lane(), 2 * pair);
            const int row = m * Atom::kQueries + at.row;
            if (row >= rows) return;
            uint32_t words[kN];
            static_for<kN>([&](auto n) {
                const float a = out[m][n][2 * pair], b = out[m][n][2 * pair + 1];
                words[n] = to.dtype == DType::kBF16 ? T::template pack2<Element::kBf16>(a, b)
                                                    : T::template pack2<Element::kF16>(a, b);
            });
            auto* first = static_cast<uint16_t*>(to.data) + row_offset(row) + at.col * to.dim_stride;
            if (in_pairs) {
                static_for<kN>([&](auto n) {
                    constexpr int kChannel = n * Atom::kOthers;
                    if (kChannel + at.col < dim) reinterpret_cast<uint32_t*>(first)[kChannel / 2] = words[n];
                });
                return;
            }
            static_for<kN>([&](auto n) {
                const int channel = n * Atom::kOthers + at.col;
                if (channel < dim) *first = static_cast<uint16_t>(words[n]);
                if (channel + 1 < dim) first[to.dim_stride] = static_cast<uint16_t>(words[n] >> 16);
                first += Atom::kOthers * to.dim_stride;
            });
        });
    }

  private:
    // channel_of(n, i) - channel_of(0, 0), in every lane.
    CLARY_HD static constexpr int channels_from_first(int n, int i) {
        return n * Atom::kOthers + Atom::result_at(0, i).col - Atom::result_at(0, 0).col;
    }
    CLARY_HD static constexpr bool steps_are_alike() {
        for (int lane = 0; lane < T::kLanes; ++lane)
            for (int i = 0; i < Atom::kResults; ++i)
                if (Atom::result_at(lane, i).col - Atom::result_at(lane, 0).col != channels_from_first(0, i))
                    return false;
        return true;
    }
    static_assert(steps_are_alike());

    struct alignas(4 * kRun) Run {
        float x[kRun];
    };
    struct alignas(2 * kRun) PackedRun {
        uint32_t pairs[kRun / 2];
    };
    struct alignas(16) Four {
        float x[4];
    };
    struct alignas(16) Eight {  // of 16 bits
        uint32_t pairs[4];
    };
    struct alignas(8) Offset {
        int64_t elements;
    };
    CLARY_DEVICE static SharedAddress offset_at(SharedAddress scratch, int row) {
        return scratch + static_cast<uint32_t>(kOffsetsAt + row * static_cast<int>(sizeof(Offset)));
    }
    template <class RowOffset>
    CLARY_DEVICE static void store_offsets(SharedAddress scratch, int rows, const RowOffset& row_offset) {
        CLARY_UNROLL
        for (int row = T::lane(); row < kWaveRows; row += T::kLanes)
            T::store(offset_at(scratch, row), Offset{row < rows ? row_offset(row) : 0});
    }
    CLARY_DEVICE static int64_t offset_of(SharedAddress scratch, int row) {
        return T::template load<Offset>(offset_at(scratch, row)).elements;
    }
    // The lane's runs of channels in kAtoms atoms, and where they lie in rows of those.
    template <int kAtoms, int row_bytes, int bytes, class Visit>
    CLARY_DEVICE static void for_runs(SharedAddress scratch, const Visit& visit) {
        static_for<kM, kAtoms, Atom::kResults / kRun>([&](auto m, auto n, auto run) {
            const Coord at = Atom::result_at(T::lane(), run * kRun);
            visit(m, n, run,
                  scratch + static_cast<uint32_t>((m * Atom::kQueries + at.row) * row_bytes +
                                                  (n * Atom::kOthers + at.col) * bytes));
        });
    }

    // Whether so many channels of 16 bits can be written at once, wherever they lie.
    template <int kCount>
    CLARY_DEVICE static bool in_runs_of(const Operand& to, int dim) {
        return to.dim_stride == 1 && dim % kCount == 0 && reinterpret_cast<uintptr_t>(to.data) % (2 * kCount) == 0 &&
               (to.batch_stride | to.head_stride | to.token_stride) % kCount == 0;
    }
    // Steps are unrolled, up to eight, so that their loads are under way at once. (Of more, all of them take longer to fetch
    // than to run.)
    template <Element kTo, class RowOffset>
    CLARY_DEVICE static void store_packed(const Registers& out, SharedAddress scratch, const Operand& to, int dim,
                                          int rows, const RowOffset& row_offset) {
        constexpr int kPerRow = kPacked * Atom::kOthers / 8;  // lanes that take a row, eight channels each
        constexpr int kSteps = kWaveRows * kPerRow / T::kLanes, kRounds = (kSteps + 7) / 8, kAtOnce = kSteps / kRounds;
        static_assert(kWaveRows * kPerRow % T::kLanes == 0 && kSteps % kRounds == 0);
        static_for<kN / kPacked>([&](auto part) {
            if constexpr (part > 0) T::wave_sync();
            for_runs<kPacked, kPackedRowBytes, 2>(scratch, [&](auto m, auto n, auto run, SharedAddress at) {
                const auto& x = out[m][part * kPacked + n];
                PackedRun packed;
                static_for<kRun / 2>([&](auto j) {
                    constexpr int i = run * kRun + 2 * j;
                    packed.pairs[j] = T::template pack2<kTo>(x[i], x[i + 1]);
                });
                T::store(at, packed);
            });
            if constexpr (part == 0) store_offsets(scratch, rows, row_offset);
            T::wave_sync();
            CLARY_NO_UNROLL
            for (int first = 0; first < kSteps; first += kAtOnce) {
                CLARY_UNROLL
                for (int step = 0; step < kAtOnce; ++step) {
                    const int i = (first + step) * T::kLanes + T::lane(), row = spread(i / kPerRow),
                              channel = i % kPerRow * 8;
                    const Eight value =
                        T::template load<Eight>(scratch + static_cast<uint32_t>(row * kPackedRowBytes + channel * 2));
                    const int64_t offset = offset_of(scratch, row);
                    const int at = part * kPacked * Atom::kOthers + channel;
                    if (row < rows && at < dim)
                        *reinterpret_cast<Eight*>(static_cast<char*>(to.data) + (offset + at) * 2) = value;
                }
            }
        });
    }
    // Rows in an order in which neighbours lie four apart: halves of the banks, where a row fills one.
    static_assert(kWaveRows % 8 == 0);
    CLARY_HD static constexpr int spread(int i) { return i / 8 * 8 + i % 2 * 4 + i / 2 % 4; }

    template <class RowOffset>
    CLARY_DEVICE static void store_any(const Registers& out, SharedAddress scratch, const Operand& to, int dim,
                                       int rows, const RowOffset& row_offset) {
        constexpr int kPerRow = kStaged * Atom::kOthers / 4;  // lanes that take a row, four channels each
        const int64_t size = dtype_size(to.dtype);
        static_for<kN / kStaged>([&](auto part) {
            if constexpr (part > 0) T::wave_sync();
            for_runs<kStaged, kRowBytes, 4>(scratch, [&](auto m, auto n, auto run, SharedAddress at) {
                Run values;
                static_for<kRun>([&](auto j) { values.x[j] = out[m][part * kStaged + n][run * kRun + j]; });
                T::store(at, values);
            });
            if constexpr (part == 0) store_offsets(scratch, rows, row_offset);
            T::wave_sync();
            for (int i = T::lane(); i < kWaveRows * kPerRow; i += T::kLanes) {
                const int row = i / kPerRow, channel = i % kPerRow * 4;
                const Four value =
                    T::template load<Four>(scratch + static_cast<uint32_t>(row * kRowBytes + channel * 4));
                const int64_t offset = offset_of(scratch, row);
                if (row >= rows) continue;
                CLARY_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const int at = part * kStaged * Atom::kOthers + channel + j;
                    if (at < dim)
                        store_element(static_cast<char*>(to.data) + (offset + at * to.dim_stride) * size, to.dtype,
                                      value.x[j]);
                }
            }
        });
    }

    template <class Visit>
    CLARY_DEVICE static void for_all(const Visit& visit) {
        static_for<kM, kN, Atom::kResults>(visit);
    }

    // Partners lie in the lane's own result, in another lane, or in another atom. Of `whole` rows the blocks begin and end with
    // atoms, so that nothing depends on the lane.
    template <bool whole>
    CLARY_DEVICE static void rotate_blocks(Registers& out, int dim) {
        static_for<8>([&](auto bit) {
            constexpr int h = 1 << bit;
            if constexpr (h >= kChannels) return;
            const auto meets = [&](int n, int i) {
                return whole ? numerics::hadamard_meets(n * Atom::kOthers, kChannels, h)
                             : numerics::hadamard_meets(channel_of(n, i), dim, h);
            };
            if constexpr (h >= Atom::kOthers) {
                for_all([&](auto m, auto n, auto i) {
                    constexpr int other = n ^ (h / Atom::kOthers);
                    if constexpr (n < other && other < kN)
                        if (meets(n, i)) numerics::butterfly(out[m][n][i], out[m][other][i]);
                });
            } else if constexpr (h >= kRun) {
                constexpr int mask = Atom::kRowMasks[h / kRun / 2];
                const float sign = (T::lane() & mask) != 0 ? -1.0f : 1.0f;
                for_all([&](auto m, auto n, auto i) {
                    const float mine = out[m][n][i], theirs = T::shuffle_xor(mine, mask);
                    if (meets(n, i)) out[m][n][i] = T::fma(sign, mine, theirs);
                });
            } else {
                for_all([&](auto m, auto n, auto i) {
                    if constexpr ((i & h) == 0)
                        if (meets(n, i)) numerics::butterfly(out[m][n][i], out[m][n][i + h]);
                });
            }
        });
        for_all([&](auto m, auto n, auto i) {
            out[m][n][i] *= whole ? numerics::hadamard_norm_at<float>(n * Atom::kOthers, kChannels)
                                  : numerics::hadamard_norm_at<float>(channel_of(n, i), dim);
        });
    }
};

}  // namespace clary::gpu
