// SPDX-License-Identifier: Apache-2.0
// Shared memory of a Hopper attention block, and the barriers by which its producers hand it to the warpgroups that compute.
#pragma once

#include <cstddef>

#include "cuda/ptx/copies.cuh"
#include "cuda/sm90/config.h"
#include "gpu/attention/lane_rows.h"
#include "gpu/attention/output_rows.h"
#include "gpu/target/nvidia.h"
#include "gpu/target/products.h"
#include "numerics/digits.h"

namespace clary::cuda::sm90 {

using T = gpu::Nvidia<gpu::kSm80>;
using gpu::SharedAddress;
using gpu::TileRange;

// Rows of one kv head against their keys: what a block does between two loads of Q. At least one tile of keys.
struct Work {
    int b, kv_head;              // b < 0: no more work
    int first_row, rows;         // among the rows of the kv head; those that exist
    int tile;                    // first of the sequence, among all tiles of K and V
    int q_begin;                 // of the sequence
    bool valid;                  // packed for this call
    bool loud;                   // some row has repeat 0
    TileRange range;             // tiles of keys that some row sees
    TileRange all[kWarpgroups];  // by warpgroup: of which all rows see all keys
};

struct RowConstants {
    float factor;           // base-2 score per unit of Q's codes times K's values
    float loud;             // bias per digit of a row whose repeat is 0, in units of S; else 0
    float shift;            // q . c_k in natural units
    gpu::VisibleKeys keys;  // that it sees
    gpu::Row row;
};

// What begins with a tile of keys.
enum class Begins : uint8_t { kNothing, kWork, kBlock };  // kBlock: its first work

// What a tile of keys needs beside its codes.
struct alignas(16) TileConstants {
    float key_scale[8];  // [64 keys][key % 8 / 2]
    float base, value_scale;
    int index;  // within the sequence
    Begins begins;
    bool plain[kWarpgroups];  // by warpgroup: no mask
};

// A place in a ring of stages, and the parity of its phase, in one register.
template <int kSize>
struct Ring {
    int at = 0;
    CLARY_DEVICE int stage() const { return at < kSize ? at : at - kSize; }
    CLARY_DEVICE uint32_t parity() const { return at < kSize ? 0 : 1; }
    CLARY_DEVICE Ring next() const { return {at == 2 * kSize - 1 ? 0 : at + 1}; }
    CLARY_DEVICE Ring before() const { return {at == 0 ? 2 * kSize - 1 : at - 1}; }
};

template <Config kConfig>
struct Layout {
    static constexpr Config c = kConfig;
    static constexpr int kD = c.head_dim;
    static constexpr int kConsumers = kWarpgroups * 128, kProducers = kThreads - kConsumers;
    static constexpr int kRowBytes = kD + (c.key_bias ? numerics::kDigitColumns : 0);  // of Q and K in global memory
    // The accumulators of wgmma lie in a warp's lanes as those of mma.sync.
    using Atom = gpu::Product<T::kChip, gpu::Element::kU8, gpu::Element::kS8, gpu::Element::kS32>;
    using Output = gpu::OutputRows<T, Atom, 1, kD / 8>;

    // Bytes of a stage, and where the stages begin. Swizzled tiles begin at multiples of 1024.
    static constexpr uint32_t kQueryBytes = kTileQ * kD;  // (tile_q, head_dim)
    static constexpr uint32_t kKeyBytes = kTileK * kD;    // (tile_k, head_dim)
    static constexpr uint32_t kValueBytes = kD * kTileK;  // (head_dim, tile_k)
    static constexpr uint32_t kRepeatBytes = c.key_bias ? kTileQ * numerics::kDigitColumns : 0;
    static constexpr uint32_t kDigitBytes = c.key_bias ? kTileK * numerics::kDigitColumns : 0;
    static constexpr uint32_t kWeightBytes = c.key_bias ? kTileK : 0;
    static constexpr int kQueryStages = 2;
    static constexpr uint32_t kQueriesAt = 0;
    static constexpr uint32_t kKeysAt = kQueriesAt + kQueryStages * kQueryBytes;
    static constexpr uint32_t kValuesAt = kKeysAt + kStages * kKeyBytes;
    static constexpr uint32_t kRepeatsAt = kValuesAt + kStages * kValueBytes;
    static constexpr uint32_t kDigitsAt = kRepeatsAt + kQueryStages * kRepeatBytes;
    static constexpr uint32_t kWeightsAt = kDigitsAt + kStages * kDigitBytes;
    static constexpr uint32_t kTilesAt = kWeightsAt + kStages * kWeightBytes;        // TileConstants
    static constexpr uint32_t kWorkAt = kTilesAt + kStages * sizeof(TileConstants);  // Work
    static constexpr uint32_t kRowsAt = kWorkAt + kQueryStages * sizeof(Work);       // RowConstants
    static constexpr uint32_t kBarriersAt =
        (kRowsAt + kQueryStages * kTileQ * static_cast<uint32_t>(sizeof(RowConstants)) + 7) / 8 * 8;
    static constexpr uint32_t kOutputAt = (kBarriersAt + (2 * kStages + 2 * kQueryStages) * 8 + 127) / 128 * 128;
    static constexpr uint32_t kBytes = kOutputAt + kWarpgroups * 4 * Output::kBytes;
    static_assert(kBytes <= 227 * 1024, "fits the machine");

    // The first address of shared memory in PTX's numbers.
    CLARY_DEVICE static uint32_t base() {
        return static_cast<uint32_t>(__cvta_generic_to_shared(gpu::clary_shared_memory));
    }

    // -- barriers: a stage is full when its copies and constants are there, and empty when every warp has left it --
    CLARY_DEVICE static uint32_t full(int stage) { return barrier(stage); }
    CLARY_DEVICE static uint32_t empty(int stage) { return barrier(kStages + stage); }
    CLARY_DEVICE static uint32_t query_full(int stage) { return barrier(2 * kStages + stage); }
    CLARY_DEVICE static uint32_t query_empty(int stage) { return barrier(2 * kStages + kQueryStages + stage); }
    CLARY_DEVICE static void init_barriers() {
        for (int stage = 0; stage < kStages; ++stage) {
            ptx::barrier_init(full(stage), 2);  // the warp that copies, and the one that looks up constants
            ptx::barrier_init(empty(stage), kWarpgroups * 4);
        }
        for (int stage = 0; stage < kQueryStages; ++stage) {
            ptx::barrier_init(query_full(stage), 3);  // the warp that copies, and two that look up rows
            ptx::barrier_init(query_empty(stage), kWarpgroups * 4);
        }
        ptx::barrier_init_done();
    }

    CLARY_DEVICE static Work& work(int stage) { return at<Work>(kWorkAt, stage); }
    CLARY_DEVICE static TileConstants& tile(int stage) { return at<TileConstants>(kTilesAt, stage); }
    CLARY_DEVICE static RowConstants& row(int stage, int row) {
        return at<RowConstants>(kRowsAt, stage * kTileQ + row);
    }

  private:
    CLARY_DEVICE static uint32_t barrier(int index) { return base() + kBarriersAt + static_cast<uint32_t>(index) * 8; }
    template <class X>
    CLARY_DEVICE static X& at(uint32_t begin, int index) {
        return reinterpret_cast<X*>(gpu::clary_shared_memory + begin)[index];
    }
};

}  // namespace clary::cuda::sm90
