// SPDX-License-Identifier: Apache-2.0
// Sizes at which 32-bit arithmetic fails: element offsets past 2^31 and 2^32, more heads than a grid has rows.
#include <thread>

#include "cases/tolerances.h"
#include "cuda/attention.h"

namespace clary::cases {
namespace {

// The values have the spread of N(0, 1), for which cases/tolerances.h derives what a recipe may differ from exact.
double allowed(const char* recipe) {
    const Case normal{.name = "normal"};
    AttentionDesc desc;
    EXPECT_TRUE(parse_recipe(recipe, &desc.recipe).is_ok());
    return error_against_exact(desc.recipe, normal) + output_rounding(DType::kBF16);
}

double relative(const std::vector<double>& expected, const float* row) {
    double difference = 0, sum = 0;
    for (size_t d = 0; d < expected.size(); ++d) {
        difference += std::isfinite(row[d]) ? std::fabs(expected[d] - static_cast<double>(row[d])) : INFINITY;
        sum += std::fabs(expected[d]);
    }
    return difference / sum;
}

// The last two of 56 heads of a fused QKV projection's output [tokens, 3, 56, 128] in bf16: at 99,866 tokens element
// offsets pass 2^31, at 199,730 they pass 2^32. What is no operand is NaN.
void fused_view(int64_t tokens, const char* recipe) {
    constexpr int64_t kHeads = 56, kDim = 128, kUsed = 2, kStride = 3 * kHeads * kDim;
    size_t free = 0, total = 0;
    CLARY_CUDA_OK(cudaMemGetInfo(&free, &total));
    const auto elements = static_cast<size_t>(tokens * kStride);
    if (free < elements * 4 + (size_t{2} << 30)) GTEST_SKIP() << "needs " << (elements * 4 >> 30) + 2 << " GiB";
    const GpuMemory fused(elements * 2), out(elements * 2);
    const auto at = [&](const GpuMemory& memory, int64_t part, int64_t head) {
        return static_cast<char*>(memory.data()) + (part * kHeads + head) * kDim * 2;
    };
    std::vector<float> operands[3][kUsed];
    std::vector<std::thread> threads;
    for (int64_t part = 0; part < 3; ++part)
        for (int64_t h = 0; h < kUsed; ++h)
            threads.emplace_back([&, part, h] {
                std::vector<float>& values = operands[part][h];
                values.resize(static_cast<size_t>(tokens * kDim));
                for (size_t i = 0; i < values.size(); ++i)
                    values[i] = numerics::Bf16::from_float(value_at(i, static_cast<uint64_t>(part * 7 + h))).to_float();
            });
    for (std::thread& thread : threads) thread.join();
    for (int64_t part = 0; part < 3; ++part)
        for (int64_t h = 0; h < kUsed; ++h) {
            std::vector<numerics::Bf16> bits;
            for (const float x : operands[part][h]) bits.push_back(numerics::Bf16::from_float(x));
            CLARY_CUDA_OK(cudaMemcpy2D(at(fused, part, kHeads - kUsed + h), kStride * 2, bits.data(), kDim * 2,
                                       kDim * 2, static_cast<size_t>(tokens), cudaMemcpyHostToDevice));
        }
    clary_attention_params params{};
    params.struct_size = sizeof(params);
    const std::vector<int64_t> shape = {1, kUsed, tokens, kDim}, stride = {tokens * kStride, kDim, kStride, 1};
    params.q = gpu_view(at(fused, 0, kHeads - kUsed), CLARY_BF16, shape, stride);
    params.k = gpu_view(at(fused, 1, kHeads - kUsed), CLARY_BF16, shape, stride);
    params.v = gpu_view(at(fused, 2, kHeads - kUsed), CLARY_BF16, shape, stride);
    params.out = gpu_view(at(out, 0, kHeads - kUsed), CLARY_BF16, shape, stride);
    params.recipe = recipe;
    params.backend = "cuda";
    size_t bytes = 0;
    ASSERT_EQ(clary_workspace_size(&params, 1, &bytes), CLARY_OK) << clary_last_error();
    const GpuMemory workspace(bytes);
    params.workspace = workspace.data();
    params.workspace_size = bytes;
    ASSERT_EQ(clary_attention(&params), CLARY_OK) << clary_last_error();
    CLARY_CUDA_OK(cudaDeviceSynchronize());

    for (int64_t h = 0; h < kUsed; ++h) {
        std::vector<numerics::Bf16> bits(static_cast<size_t>(tokens * kDim));
        CLARY_CUDA_OK(cudaMemcpy2D(bits.data(), kDim * 2, at(out, 0, kHeads - kUsed + h), kStride * 2, kDim * 2,
                                   static_cast<size_t>(tokens), cudaMemcpyDeviceToHost));
        for (const numerics::Bf16 x : bits) ASSERT_TRUE(std::isfinite(x.to_float()));
        for (const int64_t row : {int64_t{0}, tokens / 2, tokens - 1}) {
            const std::vector<double> expected = exact_row(&operands[0][h][static_cast<size_t>(row * kDim)],
                                                           operands[1][h].data(), operands[2][h].data(), tokens, kDim);
            float got[kDim];
            for (int64_t d = 0; d < kDim; ++d) got[d] = bits[static_cast<size_t>(row * kDim + d)].to_float();
            EXPECT_LE(relative(expected, got), allowed(recipe)) << recipe << ", head " << h << ", row " << row;
        }
    }
    // Its neighbours were not written.
    std::vector<uint16_t> before(kDim);
    CLARY_CUDA_OK(cudaMemcpy(before.data(), at(out, 0, kHeads - kUsed - 1) + (tokens - 1) * kStride * 2, kDim * 2,
                             cudaMemcpyDeviceToHost));
    for (const uint16_t x : before) ASSERT_EQ(x, 0xffff);
}

TEST(CudaLarge, ElementOffsetsPast31Bits) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : {"int8_int8", "bf16_bf16"}) fused_view(99866 + 2, recipe);
}

TEST(CudaLarge, ElementOffsetsPast32Bits) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : {"int8_int8", "bf16_bf16"}) fused_view(199730 + 2, recipe);
}

TEST(CudaLarge, MoreHeadsThanAGridHasRows) {
    CLARY_SKIP_WITHOUT_GPU();
    constexpr int64_t kBatch = 1100, kHeads = 61, kTokens = 40, kDim = 64;
    static_assert(kBatch * kHeads > 65535);
    for (const char* recipe : {"int8_int8", "int8_fp16"}) {
        GpuProblem problem(kBatch, kHeads, kTokens, kDim, recipe);
        ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
        const std::vector<float> out = problem.result();
        for (const float x : out) ASSERT_TRUE(std::isfinite(x)) << recipe;
        const auto q = problem.q.read<numerics::Bf16>(out.size()), k = problem.k.read<numerics::Bf16>(out.size()),
                   v = problem.v.read<numerics::Bf16>(out.size());
        for (const int64_t head : {int64_t{0}, int64_t{65535}, int64_t{65536}, kBatch * kHeads - 1}) {
            std::vector<float> head_q, head_k, head_v;
            for (auto i = static_cast<size_t>(head * kTokens * kDim); head_q.size() < kTokens * kDim; ++i) {
                head_q.push_back(q[i].to_float());
                head_k.push_back(k[i].to_float());
                head_v.push_back(v[i].to_float());
            }
            double sum = 0;
            for (int64_t row = 0; row < kTokens; ++row)
                sum += relative(
                    exact_row(&head_q[static_cast<size_t>(row * kDim)], head_k.data(), head_v.data(), kTokens, kDim),
                    &out[static_cast<size_t>((head * kTokens + row) * kDim)]);
            EXPECT_LE(sum / kTokens, allowed(recipe)) << recipe << ", head " << head;
        }
    }
}

}  // namespace
}  // namespace clary::cases
