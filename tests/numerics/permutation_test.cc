// SPDX-License-Identifier: Apache-2.0
// V's token order against SageAttention 2's lists and against the MMA fragments that it serves.
#include "numerics/permutation.h"

#include <gtest/gtest.h>

namespace clary::numerics {
namespace {

TEST(Permutation, EqualsTheUpstreamLists) {
    const int token_at[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
    const int position_of[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
    for (int run = 0; run < 5; ++run) {
        for (int i = 0; i < 16; ++i) {
            EXPECT_EQ(kVTokenPermutation[i], token_at[i]);
            EXPECT_EQ(v_token(run * 16 + i), run * 16 + token_at[i]);
            EXPECT_EQ(v_position(run * 16 + i), run * 16 + position_of[i]);
        }
    }
}

TEST(Permutation, AThreadsScoresAreItsOperand) {
    // Two m16n8 accumulators cover 16 keys: thread t of a quad has columns 2t, 2t+1 of each. The 8-bit A operand
    // takes k positions 4t..4t+3 from the same thread, in this order.
    for (int t = 0; t < 4; ++t) {
        const int accumulator_keys[4] = {2 * t, 2 * t + 1, 8 + 2 * t, 8 + 2 * t + 1};
        for (int i = 0; i < 4; ++i) EXPECT_EQ(v_token(4 * t + i), accumulator_keys[i]);
    }
}

TEST(Permutation, LongSequencesStayWithinTheirRun) {
    const int64_t far = int64_t{1} << 40;
    EXPECT_EQ(v_token(far + 2), far + 8);
    EXPECT_EQ(v_position(far + 8), far + 2);
}

// Lane group g of MetaX's products of depth 32 multiplies positions 8g .. 8g + 7 and has the scores of keys 4g .. 4g + 3 of
// two runs of 16.
TEST(Permutation, RunsOf32SuitProductsOfDepth32) {
    for (const int64_t run : {0, 1, 5})
        for (int64_t g = 0; g < 4; ++g)
            for (int64_t i = 0; i < 8; ++i) {
                const int64_t key = 32 * run + 16 * (i / 4) + 4 * g + i % 4, position = 32 * run + 8 * g + i;
                EXPECT_EQ(v_token(VOrder::kRunsOf32, position), key);
                EXPECT_EQ(v_position(VOrder::kRunsOf32, key), position);
                EXPECT_EQ(v_token(VOrder::kAsTheyCome, position), position);
                EXPECT_EQ(v_token(VOrder::kRunsOf16, position), v_token(position));
            }
}

}  // namespace
}  // namespace clary::numerics
