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

using T = gpu::Nvidia<gpu::kSm89>;  // whose conversions to FP8 sm_90 has
using gpu::SharedAddress;
using gpu::TileRange;

// Rows of one kv head against their keys: what a block does between two loads of Q. At least one tile of keys.
struct Work {
    int b, kv_head;              // b < 0: no more work
    int first_row, rows;         // among the rows of the kv head; those that exist
    int tile;                    // first of the sequence, among all tiles of K and V
    int q_begin;                 // of the sequence
    bool valid;                  // packed for this call
    bool reads;                  // valid, and some row sees a key; else its one tile is of nothing
    bool loud;                   // some row has repeat 0
    TileRange range;             // tiles of keys that some row sees
    TileRange all[kWarpgroups];  // by warpgroup: of which all rows see all keys

    // Of those behind the last, the last.
    CLARY_DEVICE gpu::Row row(const AttentionDesc& desc, int row) const {
        return gpu::Row::of(desc, kv_head, first_row + (row < rows ? row : rows - 1));
    }
};

struct RowConstants {
    float factor;           // base-2 score per unit of Q's codes times K's values
    float loud;             // bias per digit of a row whose repeat is 0, in units of S; else 0
    float shift;            // q . c_k in natural units
    gpu::VisibleKeys keys;  // that it sees
    int64_t out;            // where its O begins, in elements
};

// What a tile of keys needs beside its codes.
struct TileConstants {
    // Flags. The first and the last tile of a work; the first of the block; behind the last of all, a tile of nothing.
    static constexpr uint32_t kFirst = 1, kLast = 2, kVeryFirst = 4, kEnd = 8;
    static constexpr uint32_t kLoud = 16;                                                 // some row has repeat 0
    CLARY_HD static constexpr uint32_t plain(int warpgroup) { return 32u << warpgroup; }  // all rows see all keys
    struct alignas(8) Marks {
        float base;
        uint32_t flags;
    };

    float key_scale[8];  // [64 keys][key % 8 / 2], where keys have none of their own
    Marks marks;
    float value_scale;
    int index;  // within the sequence
};

// A stage of a ring in shared memory, and the parity of its phase, in one register.
template <uint32_t kBegin, int kSize, uint32_t kBytes>
struct Ring {
    static constexpr uint32_t kRound = kSize * kBytes;
    uint32_t place = 0;  // bytes from the ring's begin, in a second round more
    CLARY_DEVICE uint32_t at() const { return kBegin + (place < kRound ? place : place - kRound); }
    CLARY_DEVICE uint32_t parity() const { return place < kRound ? 0 : 1; }
    CLARY_DEVICE Ring next() const { return {place == 2 * kRound - kBytes ? 0 : place + kBytes}; }
    CLARY_DEVICE Ring before() const { return {place == 0 ? 2 * kRound - kBytes : place - kBytes}; }
};

constexpr uint32_t aligned(size_t bytes, uint32_t to) { return (static_cast<uint32_t>(bytes) + to - 1) / to * to; }

template <Config kConfig>
struct Layout {
    static constexpr Config c = kConfig;
    static constexpr int kD = c.head_dim, kDv = c.head_dim_v;
    static constexpr int kConsumers = kWarpgroups * 128, kStages = c.stages(), kWorks = c.works();
    static constexpr int kRowBytes = kD + (c.key_bias ? numerics::kDigitColumns : 0);  // of Q and K in global memory
    // The accumulators of wgmma lie in a warp's lanes as those of mma.sync.
    using Atom = gpu::Product<T::kChip, gpu::Element::kU8, gpu::Element::kS8, gpu::Element::kS32>;
    using Output = gpu::OutputRows<T, Atom, 1, kDv / 8, c.output_channels() / 8>;

    // A stage of the ring of tiles, and where it holds what. Swizzled tiles begin at multiples of 1024.
    static constexpr uint32_t kKeyBytes = kTileK * kRowBytes;  // by box: (tile_k, width)
    // 8 bit: (head_dim_v, tile_k); 16 bit: (head_dim_v / 64, tile_k, 64)
    static constexpr int kValueBoxes = c.direct() ? (kDv + 63) / 64 : 1;
    static constexpr uint32_t kValueBytes = kTileK * (c.direct() ? kValueBoxes * 128 : kDv);
    // FP8: behind V's channels 8 more, of which each is 1 at 16 of the keys, so that T has sums of P too. (Of few keys: a product
    // drops what lies 2^-13 below its largest term, so a key of nearly all the weight would take others from its sum.)
    static constexpr uint32_t kOnesBytes = c.fp8() ? 8 * kTileK : 0;
    static constexpr uint32_t kWeightBytes = c.key_bias && c.v == gpu::Element::kS8 ? kTileK : 0;
    static constexpr uint32_t kScaleBytes = c.scales_keys() ? kTileK * 4 : 0;
    static constexpr uint32_t kValues = kKeyBytes, kOnes = kValues + kValueBytes, kWeights = kOnes + kOnesBytes,
                              kScales = kWeights + kWeightBytes, kConstants = kScales + kScaleBytes,
                              kTileBarriers = kConstants + sizeof(TileConstants);
    static constexpr uint32_t kTileBytes = aligned(kTileBarriers + 2 * 8, 1024);
    // The same of the ring of works.
    static constexpr uint32_t kQueryBytes = kTileQ * kRowBytes;  // by box: (tile_q, width)
    static constexpr uint32_t kRows = kQueryBytes;
    static constexpr uint32_t kWorkBytes = aligned(kRows + kTileQ * sizeof(RowConstants), 1024);

    static constexpr uint32_t kWorksAt = kStages * kTileBytes;
    // A list of what the works are, and their barriers.
    static constexpr uint32_t kWorkListAt = kWorksAt + kWorks * kWorkBytes;
    static constexpr uint32_t kWorkBarriers = aligned(sizeof(Work), 8), kListed = kWorkBarriers + 3 * 8;
    static constexpr uint32_t kOutputAt = aligned(kWorkListAt + kWorks * kListed, 128);
    using Tiles = Ring<0, kStages, kTileBytes>;
    using Works = Ring<kWorksAt, kWorks, kWorkBytes>;
    static constexpr uint32_t kBytes = kOutputAt + (c.stores_directly() ? 0 : kWarpgroups * 4 * Output::kBytes);
    static_assert(kBytes <= 227 * 1024, "fits the machine");

    // The first address of shared memory in PTX's numbers.
    CLARY_DEVICE static uint32_t base() {
        return static_cast<uint32_t>(__cvta_generic_to_shared(gpu::clary_shared_memory));
    }

    // -- by the stage's first byte. Barriers: a stage is full when its copies and constants are there, and empty when every
    // warp has left it; so are works, of which a warp first tells the others what they are --
    CLARY_DEVICE static uint32_t full(uint32_t tile) { return base() + tile + kTileBarriers; }
    CLARY_DEVICE static uint32_t empty(uint32_t tile) { return full(tile) + 8; }
    CLARY_DEVICE static uint32_t work_known(uint32_t work) { return base() + listed(work) + kWorkBarriers; }
    CLARY_DEVICE static uint32_t work_full(uint32_t work) { return work_known(work) + 8; }
    CLARY_DEVICE static uint32_t work_empty(uint32_t work) { return work_known(work) + 16; }
    CLARY_DEVICE static void init_barriers() {
        Tiles tiles;
        for (int i = 0; i < kStages; ++i, tiles = tiles.next()) {
            ptx::barrier_init(full(tiles.at()), 2);  // the warp that copies, and the one that looks up constants
            ptx::barrier_init(empty(tiles.at()), kWarpgroups * 4);
        }
        Works works;
        for (int i = 0; i < kWorks; ++i, works = works.next()) {
            ptx::barrier_init(work_known(works.at()), 1);
            ptx::barrier_init(work_full(works.at()), 2);  // the warp that copies, and the one that looks up rows
            ptx::barrier_init(work_empty(works.at()),
                              kWarpgroups * 4 + 2);  // those that compute, copy, and look up constants
        }
        ptx::barrier_init_done();
    }

    CLARY_DEVICE static Work& work(uint32_t work) { return at<Work>(listed(work)); }
    CLARY_DEVICE static RowConstants& row(uint32_t work, int row) { return (&at<RowConstants>(work + kRows))[row]; }
    CLARY_DEVICE static TileConstants& tile(uint32_t tile) { return at<TileConstants>(tile + kConstants); }

  private:
    CLARY_DEVICE static uint32_t listed(uint32_t work) {
        return kWorkListAt + (work - kWorksAt) / kWorkBytes * kListed;
    }
    template <class X>
    CLARY_DEVICE static X& at(uint32_t byte) {
        return *reinterpret_cast<X*>(gpu::clary_shared_memory + byte);
    }
};

}  // namespace clary::cuda::sm90
