// SPDX-License-Identifier: Apache-2.0
#include "metrics.h"

#include <cmath>
#include <limits>

#include "program.h"
#include "timer.h"

namespace clary::cli {
namespace {

// [1, 2, 3, 4] with given values.
io::Tensor tensor_of(const std::vector<float>& values) {
    io::Tensor tensor;
    EXPECT_TRUE(io::make_tensor("out", DType::kF32, {1, 2, 3, 4}, &tensor).is_ok());
    std::copy(values.begin(), values.end(), tensor.as<float>().begin());
    return tensor;
}

TEST(Metrics, EqualTensorsHaveNoError) {
    const io::Tensor a = tensor_of(std::vector<float>(24, 0.5f));
    const Metrics m = compare(a, a, MemoryLayout::kHnd);
    EXPECT_EQ(m.cosine, 1);
    EXPECT_EQ(m.relative_l1, 0);
    EXPECT_EQ(m.rmse, 0);
    EXPECT_EQ(m.max_abs, 0);
    EXPECT_EQ(m.heads.size(), 2u);
}

TEST(Metrics, FiguresByHand) {
    std::vector<float> exact(24, 1), result(24, 1);
    exact[13] = -1;   // head 1, row 0
    result[13] = -3;  // differs by 2
    const Metrics m = compare(tensor_of(exact), tensor_of(result), MemoryLayout::kHnd);
    EXPECT_DOUBLE_EQ(m.relative_l1, 2.0 / 24);
    EXPECT_DOUBLE_EQ(m.worst_head_l1, 2.0 / 12);
    EXPECT_DOUBLE_EQ(m.p999_row_l1, 2.0 / 4);
    EXPECT_DOUBLE_EQ(m.rmse, std::sqrt(4.0 / 24));
    EXPECT_DOUBLE_EQ(m.max_abs, 2);
    EXPECT_DOUBLE_EQ(m.cosine, (23 + 3) / std::sqrt(24.0 * (23 + 9)));
    EXPECT_EQ(m.heads[0].relative_l1, 0);
    EXPECT_DOUBLE_EQ(m.heads[1].relative_l1, 2.0 / 12);
}

// The same memory read as [B, L, H, D]: value 13 then is token 1, head 1 of [1, 2, 3, 4].
TEST(Metrics, LayoutDecidesWhatAHeadIs) {
    std::vector<float> exact(24, 1), result(24, 1);
    result[13] = 3;
    const Metrics m = compare(tensor_of(exact), tensor_of(result), MemoryLayout::kNhd);
    ASSERT_EQ(m.heads.size(), 3u);
    EXPECT_EQ(m.heads[0].relative_l1, 2.0 / 8);
    EXPECT_EQ(m.heads[1].relative_l1, 0);
}

TEST(Metrics, RowsWithoutExactResultAreCountedNotCompared) {
    std::vector<float> exact(24, 1), result(24, 1);
    exact[0] = result[0] = std::numeric_limits<float>::quiet_NaN();
    const Metrics m = compare(tensor_of(exact), tensor_of(result), MemoryLayout::kHnd);
    EXPECT_EQ(m.skipped_rows, 1);
    EXPECT_EQ(m.relative_l1, 0);
}

TEST(Metrics, NaNWhereTheExactResultIsFiniteIsNeverHidden) {
    std::vector<float> exact(24, 1), result(24, 1);
    result[20] = std::numeric_limits<float>::quiet_NaN();
    const Metrics m = compare(tensor_of(exact), tensor_of(result), MemoryLayout::kHnd);
    for (const double figure : {m.cosine, m.relative_l1, m.worst_head_l1, m.p999_row_l1, m.rmse, m.max_abs})
        EXPECT_TRUE(std::isnan(figure));
}

TEST(Metrics, AllZeroRows) {
    const std::vector<float> zeros(24, 0);
    std::vector<float> wrong = zeros;
    EXPECT_EQ(compare(tensor_of(zeros), tensor_of(zeros), MemoryLayout::kHnd).cosine, 1);
    wrong[2] = 1;
    EXPECT_TRUE(std::isinf(compare(tensor_of(zeros), tensor_of(wrong), MemoryLayout::kHnd).relative_l1));
}

TEST(Statistics, MedianAndPercentile) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
    EXPECT_EQ(median({}), 0);
    std::vector<double> thousand;
    for (int i = 1; i <= 1000; ++i) thousand.push_back(i);
    EXPECT_EQ(percentile(thousand, 0.999), 999);
    EXPECT_EQ(interquartile_range(thousand), 500);
    EXPECT_TRUE(std::isnan(percentile({1, std::nan(""), 2}, 1)));
}

TEST(Timer, CandidatesTakeTurns) {
    std::string order;
    const std::vector<Timing> timings = time_in_turns({[&] { order += 'a'; }, [&] { order += 'b'; }}, 2);
    EXPECT_EQ(order, "ababab");  // one warm-up round
    EXPECT_EQ(timings[0].ms.size(), 2u);
}

}  // namespace
}  // namespace clary::cli
