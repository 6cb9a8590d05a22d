// SPDX-License-Identifier: Apache-2.0
// The work of a block: 128 rows of a head of Q, or 128 keys of a head of K and V; K and V come first in the grid. Or a
// run of such slabs, one after the other.
//
// Appending: the first slab of a head begins with the tile that new keys go on, whose old keys lie in the tail; exact
// recipes keep no tail, there it begins with the first new key.
#pragma once

#include "gpu/quantize/configs.h"
#include "gpu/target/target.h"

namespace clary::gpu {

struct Slab {
    bool exists = false, is_q = false;
    int64_t b = 0, h = 0;     // sequence; head of Q, or of K and V
    int64_t first = 0;        // row or key within the sequence
    int count = 0;            // rows or keys that exist, 0..128
    int old = 0;              // of these, the first so many come from the tail
    int64_t from = 0;         // token of the input that is row `old`
    int tiles = 0;            // of K and V that are to be written
    int64_t packed_row = 0;   // of `first`, over the whole section
    int64_t packed_tile = 0;  // likewise, of K and V
    int left = 0, room = 0;   // from `first` on: rows or keys that exist; of K and V, that are to be written
    Sequence sequence;

    CLARY_DEVICE void measure(const QuantizeParams& p) {
        const auto up_to_slab = [](int rows) { return rows < 0 ? 0 : rows < kSlab ? rows : kSlab; };
        count = up_to_slab(left);
        tiles = (up_to_slab(room) + p.kv_rows.tile - 1) >> p.tile_shift;
        exists = is_q ? count > 0 : tiles > 0;
    }
    // Number n of a run that begins with this one.
    CLARY_DEVICE Slab at(const QuantizeParams& p, int n) const {
        Slab slab = *this;
        slab.first += n * kSlab;
        slab.from += n * kSlab;
        slab.packed_row += n * kSlab;
        slab.packed_tile += n * kSlab >> p.tile_shift;
        slab.left -= n * kSlab;
        slab.room -= n * kSlab;
        slab.measure(p);
        return slab;
    }
};

// A cache before new keys come.
struct Cache {
    bool known = false;  // it was packed for this call
    bool fits = false;   // what is added; if not, nothing is
    int64_t length = 0, added = 0;
};
CLARY_DEVICE Cache cache_of(const QuantizeParams& p, int64_t b) {
    Cache cache;
    cache.known = is_packed_as(*p.headers.kv, p.headers.expected_kv);
    cache.length = clamp(p.lengths[b], 0, p.kv_capacity);
    cache.added = sequence_of(p.desc, b).kv_len;
    cache.fits = cache.known && cache.added <= p.kv_capacity - cache.length;
    return cache;
}

// The first slab of a block with `run` of them.
CLARY_DEVICE Slab slab_of(const QuantizeParams& p, int block, int run = 1) {
    const AttentionDesc& desc = p.desc;
    const auto kv = static_cast<uint32_t>(runs(kv_slabs(p), run)), q = static_cast<uint32_t>(runs(q_slabs(p), run));
    const auto kv_heads = static_cast<uint32_t>(desc.kv_heads), q_heads = static_cast<uint32_t>(desc.q_heads);
    const uint32_t kv_blocks = static_cast<uint32_t>(desc.batch) * kv_heads * kv;
    auto index = static_cast<uint32_t>(block);
    Slab slab;
    slab.is_q = index >= kv_blocks;
    if (slab.is_q) index -= kv_blocks;
    const uint32_t slabs = slab.is_q ? q : kv, heads = slab.is_q ? q_heads : kv_heads;
    if (slabs == 0 || heads == 0) return slab;  // nothing is wanted, and this block is the only one
    const uint32_t item = index / slabs;
    slab.b = item / heads;
    slab.h = item % heads;
    if (slab.b >= desc.batch) return slab;
    slab.first = slab.from = int64_t{index % slabs} * run * kSlab;
    slab.sequence = sequence_of(desc, slab.b);
    const Sequence& s = slab.sequence;
    if (p.append) {
        const Cache cache = cache_of(p, slab.b);
        const int64_t tail = p.tail_k != nullptr ? cache.length & (p.kv_rows.tile - 1) : 0;
        const int64_t left = cache.fits ? tail + cache.added - slab.first : 0;
        slab.old = slab.first == 0 ? static_cast<int>(tail) : 0;
        slab.from += slab.old - tail;
        slab.first += cache.length - tail;
        slab.count = static_cast<int>(clamp(left, 0, kSlab));
        slab.tiles = (slab.count + p.kv_rows.tile - 1) >> p.tile_shift;
        slab.packed_row = slab.first + p.kv_rows.begin(slab.b, slab.h, desc.kv_heads, 0);
        slab.packed_tile = slab.packed_row >> p.tile_shift;
        slab.exists = slab.count > 0 && cache.added > 0;
        return slab;
    }
    slab.left = static_cast<int>((slab.is_q ? s.q_len : s.kv_len) - slab.first);
    // Dense problems and caches have whole tiles of zeros up to their capacity, packed sequences only what they need.
    slab.room = p.kv_rows.varlen ? slab.left : static_cast<int>(p.kv_rows.rows - slab.first);
    slab.packed_row = slab.first + (slab.is_q ? p.q_rows.begin(slab.b, slab.h, desc.q_heads, s.q_begin)
                                              : p.kv_rows.begin(slab.b, slab.h, desc.kv_heads, s.kv_begin));
    slab.packed_tile = slab.packed_row >> p.tile_shift;
    slab.measure(p);
    return slab;
}

// By the first block of every grid that packs.
template <class T>
CLARY_DEVICE void write_heads(const QuantizeParams& p, int threads) {
    if (T::block(0) != 0 || p.append) return;
    const int thread = T::wave() * T::kLanes + T::lane();
    if (thread == 0) write_headers(p.headers, p.desc);
    for (int64_t b = thread; p.lengths != nullptr && b < p.desc.batch; b += threads)
        p.lengths[b] = sequence_of(p.desc, b).kv_len;
}

}  // namespace clary::gpu
