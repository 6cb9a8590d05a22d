// SPDX-License-Identifier: Apache-2.0
// The smallest complete kernel: causal INT8 scores of one head and the maximum of each row.
//
//   s[i][j] = (q_i . k_j) * q_scale[i] * k_scale[j]   where j <= i + k_len - q_len, else -infinity
//   row_max[i] = max over j of s[i][j]
//
// A block computes tile_q rows, a wave tile_q / waves of them. Keys come in tiles of tile_k, two stages in turn:
//
//   copies     Q, K0 | K1        | K2        | ...
//   products         | S = Q K0  | S = Q K1  | ...        (each bar is a wait and a block_sync)
//
// Shared memory: Q, two K tiles, two rows of key scales. The kernel speaks to the machine through T alone (see
// src/gpu/target/target.h), so this text runs on NVIDIA, on MetaX and in the simulator.
#pragma once

#include <cstdint>

#include "gpu/target/products.h"
#include "gpu/target/target.h"
#include "gpu/target/tile.h"

namespace clary::examples {

// What is known when the kernel is compiled: one value, the kernel's only parameter besides the machine.
struct SkeletonConfig {
    int tile_q;    // rows of a block
    int tile_k;    // keys of a step
    int head_dim;  // bytes of a row of Q and K
    int waves;     // of a block
};

// What is known when it is launched. All in global memory, rows contiguous and aligned to 16 bytes.
struct SkeletonParams {
    const int8_t* q;       // (q_len, head_dim)
    const int8_t* k;       // (k_len, head_dim)
    const float* q_scale;  // (q_len)
    const float* k_scale;  // (k_len)
    float* s;              // (q_len, k_len)
    float* row_max;        // (q_len)
    int q_len, k_len;
};

template <class T, SkeletonConfig kConfig>
struct SkeletonKernel {
    // The machine's product of signed bytes: 16 x 8 x 32 on sm80, 16 x 16 x 16 on xcore1000, ...
    using Atom = gpu::Product<T::kChip, gpu::Element::kS8, gpu::Element::kS8, gpu::Element::kS32>;
    using QueryTile = gpu::Tile<kConfig.tile_q, kConfig.head_dim>;
    using KeyTile = gpu::Tile<kConfig.tile_k, kConfig.head_dim>;
    static constexpr int kThreads = kConfig.waves * T::kLanes;
    using CopyQueries = gpu::CopyTile<T, QueryTile, kThreads>;
    using CopyKeys = gpu::CopyTile<T, KeyTile, kThreads>;

    static constexpr int kWaveRows = kConfig.tile_q / kConfig.waves;
    static constexpr int kQueryAtoms = kWaveRows / Atom::kQueries;    // atoms down a wave's rows,
    static constexpr int kKeyAtoms = kConfig.tile_k / Atom::kOthers;  // along a tile's keys
    static constexpr int kSteps = kConfig.head_dim / Atom::kDepth;    // and along the depth
    static_assert(kConfig.tile_q % kConfig.waves == 0 && kWaveRows % Atom::kQueries == 0, "whole atoms in every wave");
    static_assert(kConfig.tile_k % Atom::kOthers == 0 && kConfig.head_dim % Atom::kDepth == 0, "whole atoms in a tile");
    static_assert(kConfig.tile_k <= kThreads, "a thread fetches at most one key scale");

    // Byte offsets into shared memory.
    static constexpr uint32_t kQueriesAt = 0;
    static constexpr uint32_t kKeysAt = kQueriesAt + QueryTile::kBytes;
    static constexpr uint32_t kScalesAt = kKeysAt + 2 * KeyTile::kBytes;
    static constexpr uint32_t kSharedBytes = kScalesAt + 2 * kConfig.tile_k * 4;
    static_assert(kSharedBytes <= T::kSharedBytes, "fits the machine");

    CLARY_DEVICE static KeyTile key_tile(int step) {
        return {{kKeysAt + static_cast<uint32_t>(step % 2 * KeyTile::kBytes)}};
    }
    CLARY_DEVICE static gpu::SharedAddress scale_of(int step, int key) {
        return {kScalesAt + static_cast<uint32_t>((step % 2 * kConfig.tile_k + key) * 4)};
    }

    // Sets off the copy of one tile of keys (one group of copies) and stores its scales. Past the last key both are zeros.
    CLARY_DEVICE static void fetch_keys(const SkeletonParams& p, int step) {
        const int first = step * kConfig.tile_k;
        CopyKeys::issue(key_tile(step), p.k + static_cast<int64_t>(first) * kConfig.head_dim, kConfig.head_dim,
                        p.k_len - first);
        T::commit();
        const int thread = T::wave() * T::kLanes + T::lane();
        if (thread < kConfig.tile_k)
            T::store(scale_of(step, thread), first + thread < p.k_len ? p.k_scale[first + thread] : 0.0f);
    }

    CLARY_DEVICE static void run(const SkeletonParams& p) {
        const int block_row = T::block(0) * kConfig.tile_q;  // first row of the block
        const int tile_row = T::wave() * kWaveRows;          // first row of the wave within the block's tile
        const QueryTile queries{{kQueriesAt}};
        const int steps = (p.k_len + kConfig.tile_k - 1) / kConfig.tile_k;
        const float minus_infinity = -__builtin_huge_valf();

        // Q travels in the same group as the first keys.
        CopyQueries::issue(queries, p.q + static_cast<int64_t>(block_row) * kConfig.head_dim, kConfig.head_dim,
                           p.q_len - block_row);
        fetch_keys(p, 0);

        gpu::Fragment<float, kQueryAtoms * gpu::kResultRows<Atom>> row_max;  // of this lane's columns
        row_max.fill(minus_infinity);

        for (int step = 0; step < steps; ++step) {
            // The next tile is on its way while this one is used.
            if (step + 1 < steps) {
                fetch_keys(p, step + 1);
                T::template wait<1, CopyKeys::kCopies>();
            } else {
                T::template wait<0, CopyKeys::kCopies>();
            }
            T::block_sync();  // this tile's bytes and scales are there for all waves

            CLARY_UNROLL
            for (int n = 0; n < kKeyAtoms; ++n) {
                // -- products: S = Q K^T, exact --
                gpu::Fragment<int32_t, Atom::kResults> scores[kQueryAtoms];
                for (int m = 0; m < kQueryAtoms; ++m) scores[m].fill(0);
                CLARY_UNROLL
                for (int d = 0; d < kSteps; ++d) {
                    const auto key = T::template load_other<Atom>(key_tile(step), n * Atom::kOthers, d * Atom::kDepth);
                    CLARY_UNROLL
                    for (int m = 0; m < kQueryAtoms; ++m) {
                        const auto query =
                            T::template load_query<Atom>(queries, tile_row + m * Atom::kQueries, d * Atom::kDepth);
                        T::template mma<Atom>(query, key, scores[m]);
                    }
                }
                // -- scale, mask, maximum, store: the atom's table says which score each register holds --
                CLARY_UNROLL
                for (int m = 0; m < kQueryAtoms; ++m) {
                    CLARY_UNROLL
                    for (int i = 0; i < Atom::kResults; ++i) {
                        const gpu::Coord at = Atom::result_at(T::lane(), i);
                        const int row = block_row + tile_row + m * Atom::kQueries + at.row;
                        const int tile_key = n * Atom::kOthers + at.col;
                        const int key = step * kConfig.tile_k + tile_key;
                        const float k_scale = T::template load<float>(scale_of(step, tile_key));
                        if (row >= p.q_len || key >= p.k_len) continue;
                        const bool visible = key <= row + p.k_len - p.q_len;
                        const float score = static_cast<float>(scores[m][i]) * (p.q_scale[row] * k_scale);
                        p.s[static_cast<int64_t>(row) * p.k_len + key] = visible ? score : minus_infinity;
                        float& max = row_max[m * gpu::kResultRows<Atom> + gpu::row_slot<Atom>(i)];
                        max = visible && score > max ? score : max;
                    }
                }
            }
            T::block_sync();  // nobody reads this tile any more: the step after the next may overwrite it
        }

        // The lanes that share a row join their maxima; the one with the row's first column stores it.
        CLARY_UNROLL
        for (int m = 0; m < kQueryAtoms; ++m) {
            CLARY_UNROLL
            for (int i = 0; i < Atom::kResults; ++i) {
                if (i > 0 && gpu::row_slot<Atom>(i) == gpu::row_slot<Atom>(i - 1)) continue;  // one result of each row
                const float max = T::row_max(row_max[m * gpu::kResultRows<Atom> + gpu::row_slot<Atom>(i)]);
                const gpu::Coord at = Atom::result_at(T::lane(), i);
                const int row = block_row + tile_row + m * Atom::kQueries + at.row;
                if (at.col == 0 && row < p.q_len) p.row_max[row] = max;
            }
        }
    }
};

}  // namespace clary::examples
