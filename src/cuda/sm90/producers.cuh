// SPDX-License-Identifier: Apache-2.0
// Warps that find a block's work and bring everything that it needs into shared memory, ahead of the warpgroups that compute
// by as many tiles and works as the rings hold. Warp 0 sets off copies, warp 1 looks up what tiles of keys need beside their
// codes, warp 2 finds the works and looks up what their rows need; the fourth of their warpgroup has nothing to do.
#pragma once

#include "cuda/sm90/layout.cuh"
#include "gpu/attention/row_result.h"
#include "gpu/header.h"

namespace clary::cuda::sm90 {

template <Config kConfig>
class Producers {
    using L = Layout<kConfig>;
    static constexpr Config c = kConfig;

  public:
    CLARY_DEVICE explicit Producers(const Params& params)
        : params_(params), p_(params.attention), warp_(T::wave() - L::kConsumers / 32) {}

    CLARY_DEVICE void run() {
        if (warp_ == 2)
            find_works();
        else if (warp_ < 2)
            feed();
    }

  private:
    // -- warp 2 --
    CLARY_DEVICE void find_works() {
        for (int round = 0, item = 0; item >= 0; ++round) {
            item = item_of(round);
            const uint32_t slot = works_.at();
            ptx::barrier_wait(L::work_empty(slot), works_.parity() ^ 1);
            Work& work = L::work(slot);
            T::wave_sync();
            if (T::lane() == 0) {
                if (item >= 0)
                    find_work(item, work);
                else
                    work.b = -1;
            }
            T::wave_sync();
            if (item >= 0 && work.rows <= 0) continue;
            if (item >= 0) look_up_rows(work, slot);
            T::wave_sync();
            if (T::lane() == 0) {
                ptx::barrier_arrive(L::work_known(slot));
                ptx::barrier_arrive(L::work_full(slot));
            }
            works_ = works_.next();
        }
    }
    // -- warps 0 and 1 --
    CLARY_DEVICE void feed() {
        for (bool more = true; more; works_ = works_.next()) {
            const uint32_t slot = works_.at();
            ptx::barrier_wait(L::work_known(slot), works_.parity());
            const Work& work = L::work(slot);
            more = work.b >= 0;
            if (warp_ == 1)
                look_up_tiles(work);
            else if (T::lane() == 0)
                copy(work, slot);
            T::wave_sync();
            if (T::lane() == 0) ptx::barrier_arrive(L::work_empty(slot));
        }
    }

    // Item of the block's round; -1: none left.
    CLARY_DEVICE int item_of(int round) const {
        const Schedule& s = params_.schedule;
        const int block = static_cast<int>(blockIdx.x), chunk = round / s.chunk_rounds;
        const bool backwards = (round - chunk * s.chunk_rounds + chunk) % 2 != 0;
        const int item = round * s.blocks + (backwards ? s.blocks - 1 - block : block);
        return item < s.items ? item : -1;
    }

    CLARY_DEVICE void find_work(int item, Work& w) const {
        const AttentionDesc& desc = p_.desc;
        const Schedule& s = params_.schedule;
        const int chunk = item / s.chunk_items, within = item - chunk * s.chunk_items;
        const int left = s.heads - chunk * s.chunk_heads, heads = left < s.chunk_heads ? left : s.chunk_heads;
        const int order = within / heads, head = chunk * s.chunk_heads + within - order * heads;
        const auto group = static_cast<int>(desc.q_heads_per_kv()), kv_heads = static_cast<int>(desc.kv_heads);
        w.b = head / kv_heads;
        w.kv_head = head - w.b * kv_heads;
        const Sequence sequence = gpu::packed_sequence(p_, w.b);
        w.q_begin = static_cast<int>(sequence.q_begin);
        w.first_row = (s.q_tiles - 1 - order) * s.tile_rows;  // causal: the longest first
        const int rows = order < s.q_tiles ? static_cast<int>(sequence.q_len) * group - w.first_row : 0;
        w.rows = rows < s.tile_rows ? rows : s.tile_rows;
        w.tile = static_cast<int>(p_.kv_rows.begin(w.b, w.kv_head, kv_heads, sequence.kv_begin) / kTileK);
        w.loud = false;
        // Buffers that were packed for something else are not read.
        w.valid = gpu::headers_match(p_.headers);
        w.range = {0, 0, 0};
        for (TileRange& all : w.all) all = {0, 0, 0};
        if (w.rows > 0 && w.valid) {
            const auto span = [&](int first, int last) {
                return gpu::VisibleSpan::of(desc, sequence, w.row(desc, first).query, w.row(desc, last).query);
            };
            w.range = TileRange::some(span(0, kTileQ - 1), kTileK);
            for (int g = 0; g < kWarpgroups; ++g)
                w.all[g] = TileRange::all(span(g * kGroupRows, (g + 1) * kGroupRows - 1), kTileK);
        }
        w.reads = w.range.has(w.range.first());
        if (!w.reads) w.range = {0, 0, 1};
    }

    // Of a row of Q or K.
    template <int kByte = 0, class Visit>
    CLARY_DEVICE static void for_boxes(const Visit& visit) {
        if constexpr (kByte < L::kRowBytes) {
            constexpr RowBox kBox = row_box(L::kRowBytes, kByte);
            visit(kBox);
            for_boxes<kByte + kBox.width()>(visit);
        }
    }

    // -- warp 0, one lane: Q, and K and V of every tile. An end of work, or one that must not be read, brings nothing --
    CLARY_DEVICE void copy(const Work& work, uint32_t slot) {
        const bool reads = work.b >= 0 && work.reads;
        if (reads)
            copy_queries(work, slot);
        else
            ptx::barrier_arrive(L::work_full(slot));
        const TileRange range = work.b < 0 ? TileRange{0, 0, 1} : work.range;
        for (int tile = range.first(); range.has(tile); tile = range.after(tile)) {
            const uint32_t stage = tiles_.at();
            ptx::barrier_wait(L::empty(stage), tiles_.parity() ^ 1);
            if (reads)
                copy_tile(work.tile + tile, stage);
            else
                ptx::barrier_arrive(L::full(stage));
            tiles_ = tiles_.next();
        }
    }
    CLARY_DEVICE void copy_queries(const Work& work, uint32_t slot) const {
        const auto group = static_cast<int>(p_.desc.q_heads_per_kv()), heads = static_cast<int>(p_.desc.q_heads);
        const int head = (p_.q_rows.varlen ? 0 : work.b * heads) + work.kv_head * group;
        const int query = work.q_begin + work.first_row / group;
        const uint32_t full = L::work_full(slot), at = L::base() + slot;
        ptx::barrier_expect(full, static_cast<uint32_t>(params_.schedule.tile_rows * L::kRowBytes));
        for_boxes([&](const RowBox& box) {
            ptx::copy_box(at + static_cast<uint32_t>(kTileQ * box.begin), &params_.queries[box.kind], box.begin, head,
                          query, full);
        });
    }
    CLARY_DEVICE void copy_tile(int tile, uint32_t stage) const {
        const uint32_t full = L::full(stage), at = L::base() + stage;
        const bool weights = L::kWeightBytes > 0 && p_.v_weight != nullptr;
        ptx::barrier_expect(full, L::kKeyBytes + L::kValueBytes + L::kScaleBytes + (weights ? L::kWeightBytes : 0));
        for_boxes([&](const RowBox& box) {
            ptx::copy_box(at + static_cast<uint32_t>(kTileK * box.begin), &params_.keys[box.kind], box.begin,
                          tile * kTileK, full);
        });
        if constexpr (c.direct()) {
            for (int box = 0; box < L::kValueBoxes; ++box)
                ptx::copy_box(at + L::kValues + static_cast<uint32_t>(box * kTileK * 128), &params_.values, 128 * box,
                              tile * kTileK, full);
        } else {
            ptx::copy_box(at + L::kValues, &params_.values, 0, tile * L::kDv, full);
        }
        if constexpr (c.scales_keys())
            ptx::copy_bytes(at + L::kScales, p_.k_scale + int64_t{tile} * kTileK, L::kScaleBytes, full);
        if (weights) ptx::copy_bytes(at + L::kWeights, p_.v_weight + int64_t{tile} * kTileK, L::kWeightBytes, full);
    }

    // -- warp 1 --
    CLARY_DEVICE void look_up_tiles(const Work& work) {
        const bool reads = work.b >= 0 && work.reads;
        const TileRange range = work.b < 0 ? TileRange{0, 0, 1} : work.range;
        for (int tile = range.first(); range.has(tile); tile = range.after(tile)) {
            const uint32_t stage = tiles_.at();
            const int lane = T::lane();
            const float value = reads ? tile_value(work.tile + tile, lane) : 1.0f;
            ptx::barrier_wait(L::empty(stage), tiles_.parity() ^ 1);
            TileConstants& constants = L::tile(stage);
            if (lane < 8) constants.key_scale[lane] = value;
            if (lane == 8) constants.marks.base = value;
            if (lane == 9) constants.value_scale = value;
            if (lane == 10) {
                constants.index = tile;
                uint32_t flags = begun_ ? 0 : TileConstants::kVeryFirst;
                if (tile == range.first()) flags |= TileConstants::kFirst;
                if (!range.has(range.after(tile))) flags |= TileConstants::kLast;
                if (work.b < 0) flags |= TileConstants::kEnd;
                if (work.loud) flags |= TileConstants::kLoud;
                for (int g = 0; g < kWarpgroups; ++g)
                    if (work.all[g].has(tile)) flags |= TileConstants::plain(g);
                constants.marks.flags = flags;
            }
            begun_ = true;
            T::wave_sync();
            if (lane == 0) ptx::barrier_arrive(L::full(stage));
            tiles_ = tiles_.next();
        }
    }
    CLARY_DEVICE float tile_value(int tile, int lane) const {
        if (lane < 8) return p_.k_scale[int64_t{tile} * kTileK + lane / 4 * 64 + lane % 4 * 2];
        if (lane == 8) return p_.tile_base ? p_.tile_base[tile] : 0.0f;
        return p_.v_scale && p_.desc.recipe.v_scale != VScale::kChannel ? p_.v_scale[tile] : 1.0f;
    }

    CLARY_DEVICE void look_up_rows(Work& work, uint32_t slot) const {
        const Sequence sequence = gpu::packed_sequence(p_, work.b);
        for (int i = T::lane(); i < kTileQ; i += 32) {
            const gpu::Row row = work.row(p_.desc, i);
            const int64_t at = p_.q_rows.begin(work.b, row.head, p_.desc.q_heads, sequence.q_begin) + row.query;
            RowConstants constants{.factor = work.valid ? p_.q_scale[at] * p_.a : 0.0f,
                                   .loud = 0,
                                   .shift = work.valid && p_.q_shift ? p_.q_shift[at] : 0.0f,
                                   .keys = gpu::VisibleKeys::of(p_.desc, sequence, row.query),
                                   .out = gpu::output_offset(p_.desc, work.b, row, work.q_begin)};
            if constexpr (c.key_bias) {
                if (work.valid && p_.q_repeat[at] == 0) {
                    work.loud = true;
                    constants.loud = p_.q_base[work.b * p_.desc.kv_heads + work.kv_head] * p_.a / constants.factor;
                }
            }
            L::row(slot, i) = constants;
        }
    }

    const Params& params_;
    const gpu::AttentionParams& p_;
    const int warp_;
    bool begun_ = false;
    typename L::Tiles tiles_;
    typename L::Works works_;
};

}  // namespace clary::cuda::sm90
