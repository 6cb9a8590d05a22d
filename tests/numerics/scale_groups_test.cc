// SPDX-License-Identifier: Apache-2.0
// Scale groups against a walk over the tiles, warps and lanes of a kernel, and against the published table sizes.
#include "numerics/scale_groups.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace clary::numerics {
namespace {

using enum Granularity;

constexpr Granularity kAll[] = {kPerTensor, kPerBlock, kPerWarp, kPerThread, kPerToken, kFine};
constexpr TileFamily kFamilies[] = {kMmaFamily, kMmaFamily16, kSm90Family};
constexpr int kBlocks = 5;

// Scales are numbered in the order in which a walk over blocks, warp tiles and lane groups first needs them.
class Walk {
  public:
    explicit Walk(int length) : group_(static_cast<size_t>(length), -1) {}
    void give(int row) { group_.at(static_cast<size_t>(row)) = next_; }
    void next_scale() { ++next_; }
    const std::vector<int>& groups() const { return group_; }

  private:
    std::vector<int> group_;
    int next_ = 0;
};

std::vector<int> walk_q(Granularity granularity, TileFamily tile) {
    Walk walk(kBlocks * tile.block_q);
    for (int block = 0; block < kBlocks * tile.block_q; block += tile.block_q) {
        for (int warp = block; warp < block + tile.block_q; warp += tile.warp_q) {
            if (granularity == kPerThread) {
                for (int lane = 0; lane < 32; lane += 4) {  // the four lanes of a quad hold the same rows
                    for (int row = warp + lane / 4; row < warp + tile.warp_q; row += 8) walk.give(row);
                    walk.next_scale();
                }
                continue;
            }
            for (int row = warp; row < warp + tile.warp_q; ++row) {
                walk.give(row);
                if (granularity == kPerToken || granularity == kFine) walk.next_scale();
            }
            if (granularity == kPerWarp) walk.next_scale();
        }
        if (granularity == kPerBlock) walk.next_scale();
    }
    return walk.groups();
}

std::vector<int> walk_k(Granularity granularity, TileFamily tile) {
    Walk walk(kBlocks * tile.block_k);
    for (int block = 0; block < kBlocks * tile.block_k; block += tile.block_k) {
        if (granularity == kPerThread || granularity == kFine) {
            for (int lane = 0; lane < 4; ++lane) {  // of a quad: accumulator columns 2 lane, 2 lane + 1 of every n8
                for (int n8 = block; n8 < block + tile.block_k; n8 += 8) {
                    walk.give(n8 + 2 * lane);
                    walk.give(n8 + 2 * lane + 1);
                }
                walk.next_scale();
            }
            continue;
        }
        for (int key = block; key < block + tile.block_k; ++key) {
            walk.give(key);
            if (granularity == kPerToken) walk.next_scale();
        }
        if (granularity == kPerBlock || granularity == kPerWarp) walk.next_scale();
    }
    return walk.groups();
}

TEST(ScaleGroups, EqualTheWalkOverTiles) {
    for (const TileFamily tile : kFamilies) {
        for (const Granularity granularity : kAll) {
            const std::vector<int> q = walk_q(granularity, tile), k = walk_k(granularity, tile);
            for (size_t row = 0; row < q.size(); ++row) {
                ASSERT_EQ(q_group(granularity, tile, static_cast<int64_t>(row)), q[row]) << row;
            }
            for (size_t key = 0; key < k.size(); ++key) {
                ASSERT_EQ(k_group(granularity, tile, static_cast<int64_t>(key)), k[key]) << key;
            }
        }
    }
}

TEST(ScaleGroups, GroupSizes) {
    struct Case {
        Granularity granularity;
        TileFamily tile;
        int rows, keys;  // in each group
    };
    const Case cases[] = {
        {kPerBlock, kMmaFamily, 128, 64}, {kPerBlock, kMmaFamily16, 128, 64}, {kPerBlock, kSm90Family, 64, 128},
        {kPerWarp, kMmaFamily, 32, 64},   {kPerWarp, kMmaFamily16, 16, 64},   {kPerWarp, kSm90Family, 16, 128},
        {kPerThread, kMmaFamily, 4, 16},  {kPerThread, kMmaFamily16, 2, 16},  {kPerThread, kSm90Family, 2, 32},
        {kPerToken, kMmaFamily, 1, 1},    {kPerToken, kSm90Family, 1, 1},     {kFine, kMmaFamily, 1, 16},
        {kFine, kMmaFamily16, 1, 16},     {kFine, kSm90Family, 1, 32},
    };
    for (const Case& c : cases) {
        std::map<int64_t, int> rows, keys;
        for (int i = 0; i < 4 * 128; ++i) {
            ++rows[q_group(c.granularity, c.tile, i)];
            ++keys[k_group(c.granularity, c.tile, i)];
        }
        for (const auto& [group, size] : rows) EXPECT_EQ(size, c.rows) << group;
        for (const auto& [group, size] : keys) EXPECT_EQ(size, c.keys) << group;
    }
}

TEST(ScaleGroups, KGroupsStayWithinABlockOfKeys) {
    for (const TileFamily tile : kFamilies) {
        for (const Granularity granularity : {kPerBlock, kPerWarp, kPerThread, kPerToken, kFine}) {
            std::map<int64_t, std::set<int>> blocks;
            for (int key = 0; key < kBlocks * tile.block_k; ++key) {
                blocks[k_group(granularity, tile, key)].insert(key / tile.block_k);
            }
            for (const auto& [group, where] : blocks) EXPECT_EQ(where.size(), 1u) << group;
        }
    }
}

TEST(ScaleGroups, TableSizesAreTheUpstreamFormulas) {
    for (const TileFamily tile : kFamilies) {
        for (int64_t length = 0; length <= 1000; ++length) {
            int64_t q_blocks = 0, k_blocks = 0;
            while (q_blocks * tile.block_q < length) ++q_blocks;
            while (k_blocks * tile.block_k < length) ++k_blocks;
            const int64_t q_warps = q_blocks * (tile.block_q / tile.warp_q);
            const int64_t k_warps = k_blocks * (tile.block_k / tile.warp_k);
            ASSERT_EQ(q_group_count(kPerTensor, tile, length), 1);
            ASSERT_EQ(k_group_count(kPerTensor, tile, length), 1);
            ASSERT_EQ(q_group_count(kPerBlock, tile, length), q_blocks);
            ASSERT_EQ(k_group_count(kPerBlock, tile, length), k_blocks);
            ASSERT_EQ(q_group_count(kPerWarp, tile, length), q_warps);
            ASSERT_EQ(k_group_count(kPerWarp, tile, length), k_blocks);
            ASSERT_EQ(q_group_count(kPerThread, tile, length), q_warps * 8);
            ASSERT_EQ(k_group_count(kPerThread, tile, length), k_warps * 4);
            ASSERT_EQ(q_group_count(kPerToken, tile, length), q_blocks * tile.block_q);
            ASSERT_EQ(k_group_count(kPerToken, tile, length), k_blocks * tile.block_k);
            ASSERT_EQ(q_group_count(kFine, tile, length), q_blocks * tile.block_q);
            ASSERT_EQ(k_group_count(kFine, tile, length), k_blocks * 4);
        }
    }
}

TEST(ScaleGroups, EveryGroupOfASequenceIsInTheTable) {
    for (const TileFamily tile : kFamilies) {
        for (const Granularity granularity : kAll) {
            for (const int64_t length : {1, 7, 8, 63, 64, 65, 127, 128, 129, 300}) {
                for (int64_t i = 0; i < length; ++i) {
                    ASSERT_LT(q_group(granularity, tile, i), q_group_count(granularity, tile, length));
                    ASSERT_LT(k_group(granularity, tile, i), k_group_count(granularity, tile, length));
                }
            }
        }
    }
}

}  // namespace
}  // namespace clary::numerics
