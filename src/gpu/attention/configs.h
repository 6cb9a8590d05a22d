// SPDX-License-Identifier: Apache-2.0
// Which attention kernel serves a problem, and how it is launched: attention_blocks() blocks along x of kThreads threads
// with kSharedBytes bytes of shared memory; whether its keys are cut into pieces.
#pragma once

#include <algorithm>

#include "core/packed.h"
#include "gpu/attention/config.h"
#include "gpu/attention/params.h"
#include "gpu/target/machines.h"

namespace clary::gpu {

// What a problem asks of a kernel; the rest of an AttentionConfig follows from it.
struct AttentionNeeds {
    Element qk, v;
    int head_dim, head_dim_v;  // padded
    int tile_k;
    bool key_bias;
    KeyScales key_scales;
    bool biased;
    Sums sums = Sums::kWide;
};

// Keys of a step: the recipe's tile where results depend on it. Exact recipes have none of their own, and to a 16-bit P
// they are nothing (docs/decisions/0009-sixteen-bit-p.md): sums of fp16 are the more exact the shorter they are.
inline int tile_of(const Recipe& r) {
    const bool half_of_16_bits = sums_for(r.accumulator) != Sums::kWide && r.pv == Format::kFp16;
    return !r.quantized() || half_of_16_bits ? 64 : r.tile;
}

inline AttentionNeeds needs_of(const AttentionDesc& desc) {
    const Recipe& r = desc.recipe;
    const bool per_key = r.granularity == numerics::Granularity::kPerToken || desc.biased();
    const PaddedDims padded = padded_dims_mma(desc);
    return {.qk = element_of(r.qk),
            .v = element_of(r.pv),
            .head_dim = static_cast<int>(padded.qk),
            .head_dim_v = static_cast<int>(padded.v),
            .tile_k = tile_of(r),
            .key_bias = r.key_bias(),
            .key_scales = !r.quantized() ? KeyScales::kNone
                          : per_key      ? KeyScales::kKey
                                         : KeyScales::kLane,
            .biased = desc.biased(),
            .sums = sums_for(r.accumulator)};
}

// Four waves a block, with up to 255 registers a lane, so that eight waves fill a multiprocessor. Two blocks of four are
// faster than one of eight, because they do not wait for each other (H200: 9 % at D 128, S 16384); they need to fit into
// shared memory side by side.
//
// A wave has 32 rows, which halves the shared memory it reads for each product, where their O and S leave registers to
// work with and the larger block keeps no chip from the recipe; else one atom's 16. 16-bit V is taken in tiles of 64 keys
// where wider ones leave no room, whatever the recipe's are: they are nothing to its arithmetic.
constexpr AttentionConfig config_for(const AttentionNeeds& n) {
    constexpr int kHalf = 113 * 1024, kWhole = 163 * 1024;  // bytes of sm80 and later datacenter chips
    constexpr int kSmallChips[] = {64 * 1024, 99 * 1024};
    constexpr int kRegisters = 192;  // for O and S of 32 rows
    const bool exact = n.qk != Element::kS8, wide_v = element_bits(n.v) == 16;
    const int qk = n.head_dim * element_bits(n.qk) / 8, v = n.head_dim_v * element_bits(n.v) / 8;
    const int key = qk + (n.key_bias ? 32 : 0) + v + (exact ? 0 : 4) + (n.v == Element::kS8 ? 1 : 0);
    const auto bytes = [=](int tile_q, int tile_k) {
        const int tiles = tile_q * qk + 2 * tile_k * key, out = tile_q * (4 * n.head_dim_v + 32);
        return tile_q * (exact ? 16 : 24) + (tiles > out ? tiles : out) + 512;
    };

    const int narrower = wide_v && n.head_dim_v + n.tile_k > kRegisters ? 64 : n.tile_k;
    bool wide = n.head_dim_v + narrower <= kRegisters && bytes(128, narrower) <= kHalf;
    for (const int chip : kSmallChips) wide = wide && (bytes(64, n.tile_k) > chip || bytes(128, narrower) <= chip);
    const int rows = wide ? 32 : 16;
    const int tile_k = wide ? narrower : wide_v && bytes(64, n.tile_k) > kHalf ? 64 : n.tile_k;
    const bool two = bytes(4 * rows, tile_k) <= kHalf, eight = !two && bytes(8 * rows, tile_k) <= kWhole;
    return {.qk = n.qk,
            .v = n.v,
            .head_dim = n.head_dim,
            .head_dim_v = n.head_dim_v,
            .key_bias = n.key_bias,
            .key_scales = n.key_scales,
            .biased = n.biased,
            .tile_q = (eight ? 8 : 4) * rows,
            .tile_k = tile_k,
            .waves = eight ? 8 : 4,
            .blocks = two ? 2 : 1,
            .sums = n.sums};
}

// Whether a kernel computes what the problem asks for: it may be able to do more.
inline bool serves(const AttentionConfig& c, const AttentionDesc& desc) {
    const AttentionNeeds needs = needs_of(desc);
    if (c.qk != needs.qk || c.v != needs.v || c.sums != needs.sums) return false;
    if (c.head_dim != needs.head_dim || c.head_dim_v != needs.head_dim_v) return false;
    if (needs.biased && !c.biased) return false;
    if (!desc.recipe.quantized()) return true;  // tiles are no part of it
    const AttentionConfig own = config_for(needs);
    return c.key_bias == needs.key_bias && c.tile_q == own.tile_q && c.tile_k == own.tile_k &&
           (c.key_scales == needs.key_scales || c.key_scales == KeyScales::kKey);
}
// Of the kernels that serve a problem the least general is the fastest.
constexpr int generality(const AttentionConfig& c) { return 2 * c.biased + (c.key_scales == KeyScales::kKey); }

inline int64_t attention_blocks(const AttentionDesc& desc, int tile_q) {
    const int64_t rows = desc.q_len * desc.q_heads_per_kv();
    return desc.batch * desc.kv_heads * ((rows + tile_q - 1) / tile_q);
}
inline int64_t attention_blocks(const AttentionParams& p, int tile_q) {
    return attention_blocks(p.desc, tile_q) * p.split.pieces;
}

// Few queries for many keys: bound by memory, and by blocks too few to use all of it.
inline constexpr int64_t kPieceKeys = 256;  // of a piece at least
inline bool is_short(const AttentionDesc& desc) {
    return desc.q_len > 0 && desc.q_len <= kShortQuery && desc.kv_len >= 2 * kPieceKeys;
}

// Pieces that the keys of a short query are cut into. They fill a large chip once (an H200 runs 264 blocks side by side, and
// the start of another costs what 1 us brings), or twice where heads alone fill it once and a part. The number is the same
// on all chips, as are results, and where pieces begin depends on the keys that a sequence has at the time
// (TileRange::piece), so that a cache is cut evenly however full it is.
inline int pieces_of(const AttentionDesc& desc) {
    constexpr int64_t kFull = 256;  // blocks
    const int64_t blocks = attention_blocks(desc, config_for(needs_of(desc)).tile_q);
    if (!is_short(desc) || blocks == 0 || blocks >= 2 * kFull) return 1;
    const int64_t wanted = blocks > kFull ? 2 : kFull / blocks;
    return static_cast<int>(std::min({wanted, desc.kv_len / kPieceKeys, int64_t{kMaxPieces}}));
}

// Bytes of memory that the pieces leave their results in.
inline int64_t split_bytes(const AttentionDesc& desc, int pieces) {
    if (pieces == 1) return 0;
    const int64_t rows = desc.batch * desc.q_heads * desc.q_len * pieces;
    return round_up(rows * (int64_t{sizeof(RowSums)} + padded_dims_mma(desc).v * 4), 64);
}
// The problem with its keys in pieces; `memory` of split_bytes().
inline void split_into(AttentionParams* p, int pieces, void* memory) {
    const AttentionDesc& desc = p->desc;
    p->split.pieces = pieces;
    p->split.rows = static_cast<int>(desc.q_len * desc.q_heads_per_kv());
    p->split.channels = static_cast<int>(padded_dims_mma(desc).v);
    p->split.sums = static_cast<RowSums*>(memory);
    p->split.out = reinterpret_cast<float*>(p->split.sums + desc.batch * desc.q_heads * desc.q_len * pieces);
}

inline AttentionParams attention_params(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q,
                                        const void* packed_kv, const Arrangement& arrangement = kMmaArrangement) {
    const PackedLayout q = packed_q_layout(desc, arrangement);
    const PackedLayout kv = packed_kv_layout(desc, kv_capacity, arrangement);
    AttentionParams p;
    p.desc = desc;
    p.q_rows = packed_q_rows(desc);
    p.kv_rows = packed_kv_rows(desc, kv_capacity);
    p.headers.expected_q = expected_header(desc, q);
    p.headers.expected_kv = expected_header(desc, kv);
    p.headers.q = const_cast<PackedHeader*>(section<PackedHeader>(q, packed_q, "header"));
    p.headers.kv = const_cast<PackedHeader*>(section<PackedHeader>(kv, packed_kv, "header"));
    p.a = score_factor(desc);
    p.q_codes = section<void>(q, packed_q, "q_codes");
    p.q_scale = section<float>(q, packed_q, "q_scale");
    p.q_repeat = section<uint8_t>(q, packed_q, "q_repeat");
    p.q_shift = section<float>(q, packed_q, "q_shift");
    p.lengths = section<int64_t>(kv, packed_kv, "lengths");
    p.k_codes = section<void>(kv, packed_kv, "k_codes");
    p.k_scale = section<float>(kv, packed_kv, "k_scale");
    p.tile_base = section<float>(kv, packed_kv, "tile_base");
    p.q_base = section<float>(kv, packed_kv, "q_base");
    p.v_codes = section<void>(kv, packed_kv, "v_codes");
    p.v_sum = section<int32_t>(kv, packed_kv, "v_sum");
    p.v_scale = section<float>(kv, packed_kv, "v_scale");
    p.v_weight = section<uint8_t>(kv, packed_kv, "v_weight");
    p.v_mean = section<float>(kv, packed_kv, "v_mean");
    return p;
}

}  // namespace clary::gpu
