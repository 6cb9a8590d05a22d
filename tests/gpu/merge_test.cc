// SPDX-License-Identifier: Apache-2.0
// clary_merge's kernel on the simulator gives what the CPU's merge gives, to the bit.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "gpu/combine/merge_kernel.h"
#include "sim/sim.h"

namespace clary {
namespace {

TensorView view(void* data, DType dtype, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> stride) {
    TensorView t;
    t.data = data;
    t.dtype = dtype;
    t.ndim = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    std::copy(stride.begin(), stride.end(), t.stride);
    return t;
}

// 2 sequences of 3 heads and 5 tokens with 70 channels; out_a has gaps behind its rows, out_b lies token first.
struct Partial {
    static constexpr int64_t kBatch = 2, kHeads = 3, kTokens = 5, kDim = 70, kRow = 72;
    std::vector<char> out_a, out_b;
    std::vector<float> lse_a, lse_b;
    DType a, b;

    Partial(DType a_, DType b_) : a(a_), b(b_) {
        constexpr int64_t kRows = kBatch * kHeads * kTokens;
        out_a.assign(static_cast<size_t>(kRows * kRow * dtype_size(a)), char{0x7f});
        out_b.assign(static_cast<size_t>(kRows * kDim * dtype_size(b)), char{0x7f});
        uint32_t state = 1;
        const auto next = [&] {
            return static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
        };
        const MergeViews v = views();
        for (int64_t row = 0; row < kRows; ++row) {
            const int64_t at[3] = {row / kTokens / kHeads, row / kTokens % kHeads, row % kTokens};
            for (int64_t d = 0; d < kDim; ++d) {
                store_element(row_of(v.out_a, at) + d * dtype_size(a), a, next());
                store_element(row_of(v.out_b, at) + d * dtype_size(b), b, next());
            }
            lse_a.push_back(8 * next());
            lse_b.push_back(8 * next());
        }
        // Empty sides, both of them, a side that would poison, and one that does.
        constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
        lse_a[3] = -kInf;
        lse_b[7] = -kInf;
        lse_a[8] = lse_b[8] = -kInf;
        lse_b[11] = kNan;
        const int64_t at[3] = {0, 0, 3};
        store_element(row_of(v.out_a, at), a, kNan);
    }
    MergeViews views() {
        return {
            view(out_a.data(), a, {kBatch, kHeads, kTokens, kDim}, {kHeads * kTokens * kRow, kTokens * kRow, kRow, 1}),
            view(lse_a.data(), DType::kF32, {kBatch, kHeads, kTokens}, {kHeads * kTokens, kTokens, 1}),
            view(out_b.data(), b, {kBatch, kHeads, kTokens, kDim}, {kHeads * kTokens * kDim, kDim, kHeads * kDim, 1}),
            view(lse_b.data(), DType::kF32, {kBatch, kHeads, kTokens}, {kHeads * kTokens, kTokens, 1})};
    }
};

template <class T>
void check(DType a, DType b) {
    SCOPED_TRACE(std::string(dtype_name(a)) + " and " + dtype_name(b) + " on " + gpu::machine_name(T::kChip));
    Partial host(a, b), device(a, b);
    merge(host.views());
    const MergeViews views = device.views();
    const sim::Report report =
        sim::launch<T>({static_cast<int>(gpu::merge_blocks(views, T::kLanes))}, gpu::MergeKernel<T>::kThreads,
                       gpu::MergeKernel<T>::kSharedBytes, {}, [&] { gpu::MergeKernel<T>::run(views); });
    ASSERT_TRUE(report.ok()) << report.describe();
    EXPECT_EQ(device.out_a, host.out_a);
    EXPECT_EQ(device.out_b, host.out_b);
    EXPECT_EQ(std::memcmp(device.lse_a.data(), host.lse_a.data(), host.lse_a.size() * sizeof(float)), 0);
    // The host's merge did something: rows of equal weight lie between, an empty side leaves the other.
    EXPECT_NE(host.out_a, Partial(a, b).out_a);
    EXPECT_EQ(host.lse_a[3], Partial(a, b).lse_b[3]);
}

TEST(GpuMerge, AsTheCpus) {
    for (const DType a : {DType::kF32, DType::kF16, DType::kBF16})
        for (const DType b : {DType::kF32, DType::kBF16}) {
            check<sim::Sim<gpu::kSm80>>(a, b);
            check<sim::Sim<gpu::kXcore1000>>(a, b);
        }
}

}  // namespace
}  // namespace clary
