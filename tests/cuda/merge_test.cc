// SPDX-License-Identifier: Apache-2.0
// clary_merge in device memory: halves of the keys join to the answer over all of them.
#include "cuda/attention.h"

namespace clary::cases {
namespace {

TEST(CudaMerge, HalvesOfTheKeysAreTheWhole) {
    CLARY_SKIP_WITHOUT_GPU();
    constexpr int64_t kHeads = 3, kTokens = 300, kDim = 64;
    GpuProblem whole(2, kHeads, kTokens, kDim, "bf16_bf16");
    ASSERT_EQ(clary_attention(&whole.params), CLARY_OK) << clary_last_error();
    const std::vector<float> expected = whole.result();

    const size_t rows = 2 * kHeads * kTokens;
    const GpuMemory other(whole.elements() * 4), lse_a(rows * 4), lse_b(rows * 4);
    const auto lse_of = [&](const GpuMemory& memory) {
        return gpu_view(memory.data(), CLARY_FP32, {2, kHeads, kTokens}, {kHeads * kTokens, kTokens, 1});
    };
    clary_attention_params first = whole.params, second = whole.params;
    first.lse = lse_of(lse_a);
    second.lse = lse_of(lse_b);
    second.out.data = other.data();
    first.k.shape[2] = first.v.shape[2] = 200;
    for (clary_tensor* t : {&second.k, &second.v}) {
        t->data = static_cast<char*>(t->data) + 200 * kDim * 2;
        t->shape[2] = kTokens - 200;
    }
    ASSERT_EQ(clary_attention(&first), CLARY_OK) << clary_last_error();
    ASSERT_EQ(clary_attention(&second), CLARY_OK) << clary_last_error();

    clary_merge_params merge{};
    merge.struct_size = sizeof(merge);
    merge.out_a = first.out;
    merge.lse_a = first.lse;
    merge.out_b = second.out;
    merge.lse_b = second.lse;
    ASSERT_EQ(clary_merge(&merge), CLARY_OK) << clary_last_error();
    const std::vector<float> got = whole.result();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 4e-3) << i;  // P is bf16

    // An empty side leaves the other as it is.
    std::vector<float> nothing(rows, -INFINITY);
    const std::vector<float> lse = lse_a.read<float>(rows);
    GpuMemory empty(rows * 4);
    empty.write(nothing);
    merge.lse_b = lse_of(empty);
    ASSERT_EQ(clary_merge(&merge), CLARY_OK) << clary_last_error();
    EXPECT_EQ(whole.result(), got);
    EXPECT_EQ(lse_a.read<float>(rows), lse);

    merge.out_b.device = CLARY_CPU;
    EXPECT_EQ(clary_merge(&merge), CLARY_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace clary::cases
