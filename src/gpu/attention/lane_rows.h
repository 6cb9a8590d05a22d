// SPDX-License-Identifier: Apache-2.0
// The rows of Q that a block and its waves own, and the keys that each of them sees.
//
// The rows of a kv head are its queries times the q heads that share it: row = query * group + head within the group, so
// that a block's rows are neighbours in position and a cache is read once for all heads. Rows, queries and keys are
// counted in 32 bits: configs.h refuses more.
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
    // Whether every query sees all keys of [first, last), and whether some sees one.
    CLARY_DEVICE bool all_see_all(int first, int last) const {
        return (first >= high.begin && last <= low.end) || last <= low.keep;
    }
    CLARY_DEVICE bool some_see_some(int first, int last) const {
        return (last > low.begin && first < high.end) || first < high.keep;
    }
};

// The key tiles that a block needs: [0, keep) and [begin, end).
struct TileRange {
    int keep, begin, end;

    CLARY_DEVICE static TileRange of(const VisibleSpan& span, int tile) {
        TileRange range{(span.high.keep + tile - 1) / tile, span.low.begin / tile, (span.high.end + tile - 1) / tile};
        if (range.keep < range.begin) return range;
        return {0, range.keep > 0 ? 0 : range.begin, range.keep > range.end ? range.keep : range.end};
    }
    CLARY_DEVICE int first() const { return keep > 0 ? 0 : begin; }
    CLARY_DEVICE int after(int tile) const { return tile + 1 == keep ? begin : tile + 1; }
    CLARY_DEVICE bool has(int tile) const { return tile < keep || (tile >= begin && tile < end); }
};

}  // namespace clary::gpu
