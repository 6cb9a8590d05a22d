// SPDX-License-Identifier: Apache-2.0
// The rows of Q that a block and its waves own, and the keys that each of them sees.
//
// The rows of a kv head are its queries times the q heads that share it: row = query * group + head within the group, so
// that a block's rows are neighbours in position and a cache is read once for all heads. Rows, queries and keys are
// counted in 32 bits: gpu/host/phases.h refuses more.
#pragma once

#include "core/desc.h"
#include "gpu/target/target.h"

namespace clary::gpu {

struct Row {
    int head, query;  // q head within all heads; query of its sequence

    CLARY_DEVICE static Row of(const AttentionDesc& desc, int kv_head, int row) {
        const auto group = static_cast<int>(desc.q_heads_per_kv());
        if (group == 1) return {kv_head, row};
        const int query = row / group;
        return {kv_head * group + (row - query * group), query};
    }
};

// The keys [begin, end) and [0, keep) that a query sees.
struct VisibleKeys {
    int begin, end, keep;

    CLARY_DEVICE static VisibleKeys of(const AttentionDesc& desc, const Sequence& sequence, int query) {
        const KeyRange range = key_range(desc, sequence, query + sequence.offset);
        return {static_cast<int>(range.begin), static_cast<int>(range.end), static_cast<int>(range.keep_end)};
    }
    CLARY_DEVICE bool sees(int key) const { return (key >= begin && key < end) || key < keep; }
};

// What the queries from `first` to `last` see: ranges move with the position, so these two say it for all between.
struct VisibleSpan {
    VisibleKeys low, high;

    CLARY_DEVICE static VisibleSpan of(const AttentionDesc& desc, const Sequence& sequence, int first, int last) {
        return {VisibleKeys::of(desc, sequence, first), VisibleKeys::of(desc, sequence, last)};
    }
};

// Tiles of keys: [0, keep) and [begin, end).
struct TileRange {
    int keep, begin, end;

    // Those of which some query of the span sees a key.
    CLARY_DEVICE static TileRange some(const VisibleSpan& span, int tile) {
        return joined((span.high.keep + tile - 1) / tile, span.low.begin / tile, (span.high.end + tile - 1) / tile);
    }
    // Those of which all queries see all keys.
    CLARY_DEVICE static TileRange all(const VisibleSpan& span, int tile) {
        return joined(span.low.keep / tile, (span.high.begin + tile - 1) / tile, span.low.end / tile);
    }
    // Number `index` of `pieces` > 1 pieces, all but the last of [0, keep) and of [begin, end) equally long. Some may be
    // empty.
    CLARY_DEVICE TileRange piece(int index, int pieces) const {
        const int rest = end > begin ? end - begin : 0;
        const int cuts = keep > 0 && rest > 0 ? pieces - 1 : pieces;  // of which one is shortened by keep's end
        const int length = (keep + rest + cuts - 1) / cuts, kept = length > 0 ? (keep + length - 1) / length : 0;
        const int from = index < kept ? 0 : begin, to = index < kept ? keep : end;
        const int first = from + (index < kept ? index : index - kept) * length;
        return {0, first, first + length < to ? first + length : to};
    }
    CLARY_DEVICE int first() const { return keep > 0 ? 0 : begin; }
    CLARY_DEVICE int after(int tile) const { return tile + 1 == keep ? begin : tile + 1; }
    CLARY_DEVICE bool has(int tile) const {  // without branches
        return (static_cast<int>(tile < keep) | (static_cast<int>(tile >= begin) & static_cast<int>(tile < end))) != 0;
    }

  private:
    CLARY_DEVICE static TileRange joined(int keep, int begin, int end) {
        if (keep < begin) return {keep, begin, end};
        return {0, keep > 0 ? 0 : begin, keep > end ? keep : end};
    }
};

}  // namespace clary::gpu
