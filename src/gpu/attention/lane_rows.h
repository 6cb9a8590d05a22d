// SPDX-License-Identifier: Apache-2.0
// The rows of Q that a lane's results belong to, and the keys that each of them sees.
//
// The rows of a kv head are its queries times the q heads that share it: row = query * group + head within the group, so
// that a block's rows are neighbours in position and a cache is read once for all heads.
#pragma once

#include "core/desc.h"
#include "gpu/target/products.h"
#include "gpu/target/target.h"

namespace clary::gpu {

// Head, query and place of a row.
struct Row {
    int64_t head, query;  // q head within all heads; query of its sequence

    CLARY_DEVICE static Row of(const AttentionDesc& desc, int64_t kv_head, int64_t row) {
        const auto group = static_cast<int>(desc.q_heads_per_kv());
        if (group == 1) return {kv_head, row};
        const int64_t query = row / group;
        return {kv_head * group + (row - query * group), query};
    }
};

// The keys [begin, end) and [0, keep_end) that a row sees.
struct VisibleKeys {
    int begin, end, keep_end;

    CLARY_DEVICE static VisibleKeys of(const AttentionDesc& desc, const Sequence& sequence, int64_t query) {
        const KeyRange range = key_range(desc, sequence, query + sequence.offset);
        return {static_cast<int>(range.begin), static_cast<int>(range.end), static_cast<int>(range.keep_end)};
    }
    CLARY_DEVICE bool sees(int key) const { return (key >= begin && key < end) || key < keep_end; }
    CLARY_DEVICE bool sees_all(int first, int last) const {  // of [first, last)
        return (first >= begin && last <= end) || last <= keep_end;
    }
    CLARY_DEVICE bool sees_any(int first, int last) const { return (last > begin && first < end) || first < keep_end; }
};

// The key tiles that rows [first, last] of a block need: [0, keep) and [begin, end).
struct TileRange {
    int keep, begin, end;

    CLARY_DEVICE static TileRange of(const AttentionDesc& desc, const Sequence& sequence, int64_t first_query,
                                     int64_t last_query, int tile) {
        // Ranges move with the position, so the first query has the lowest begin and the last one the highest end.
        const VisibleKeys low = VisibleKeys::of(desc, sequence, first_query);
        const VisibleKeys high = VisibleKeys::of(desc, sequence, last_query);
        TileRange range{(high.keep_end + tile - 1) / tile, low.begin / tile, (high.end + tile - 1) / tile};
        if (range.keep >= range.begin) range = {0, range.keep > 0 ? 0 : range.begin, max(range.keep, range.end)};
        return range;
    }
    CLARY_DEVICE int first() const { return keep > 0 ? 0 : begin; }
    CLARY_DEVICE int after(int tile) const { return tile + 1 == keep ? max(begin, keep) : tile + 1; }
    CLARY_DEVICE bool has(int tile) const { return tile < keep || (tile >= begin && tile < end); }

  private:
    CLARY_DEVICE static int max(int a, int b) { return a > b ? a : b; }
};

}  // namespace clary::gpu
