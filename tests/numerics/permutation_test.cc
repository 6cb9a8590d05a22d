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

}  // namespace
}  // namespace clary::numerics
