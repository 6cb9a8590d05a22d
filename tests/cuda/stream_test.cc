// SPDX-License-Identifier: Apache-2.0
// Streams and graphs: calls run where they are told to, in their order, and can be captured.
#include "cuda/attention.h"

namespace clary::cases {
namespace {

const char* const kRecipes[] = {"int8_int8", "int8_int8:fast", "int8_fp16", "bf16_bf16"};

TEST(CudaStreams, CallsAreRepeatableToTheBit) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes) {
        GpuProblem problem(2, 3, 700, 128, recipe);
        ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
        const std::vector<float> first = problem.result();
        for (const float x : first) ASSERT_TRUE(std::isfinite(x)) << recipe;
        for (const int poison : {0xff, 0x00, 0x5a}) {  // what the workspace holds before is of no interest
            CLARY_CUDA_OK(cudaMemset(problem.workspace->data(), poison, problem.workspace->size()));
            CLARY_CUDA_OK(cudaMemset(problem.out.data(), 0xff, problem.out.size()));
            ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
            EXPECT_EQ(problem.result(), first) << recipe;
        }
    }
}

TEST(CudaStreams, AGraphReplaysACall) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes) {
        GpuProblem problem(1, 4, 500, 64, recipe), other(1, 4, 500, 64, recipe, 2);
        ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();  // loads the kernels
        ASSERT_EQ(clary_attention(&other.params), CLARY_OK) << clary_last_error();
        const std::vector<float> expected = problem.result(), expected_other = other.result();
        const Stream stream;
        problem.params.stream = stream.get();
        const Graph graph(stream, [&] { return clary_attention(&problem.params); });
        const auto replay = [&] {
            problem.poison();
            graph.replay();
        };
        replay();
        EXPECT_EQ(problem.result(), expected) << recipe;
        // The same graph on other contents.
        for (const auto& [to, from] : {std::pair{&problem.q, &other.q}, {&problem.k, &other.k}, {&problem.v, &other.v}})
            CLARY_CUDA_OK(cudaMemcpy(to->data(), from->data(), to->size(), cudaMemcpyDeviceToDevice));
        replay();
        EXPECT_EQ(problem.result(), expected_other) << recipe;
    }
}

TEST(CudaStreams, TwoStreamsFromTwoThreads) {
    CLARY_SKIP_WITHOUT_GPU();
    GpuProblem a(2, 4, 900, 128, "int8_int8"), b(2, 4, 900, 128, "int8_fp16", 2);
    expect_independent(a, b, 50);
}

// A call returns before its kernels ran: it waits for nothing, and its stream alone orders it.
TEST(CudaStreams, ACallDoesNotWait) {
    CLARY_SKIP_WITHOUT_GPU();
    GpuProblem problem(4, 16, 4096, 128, "int8_int8");
    ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
    CLARY_CUDA_OK(cudaDeviceSynchronize());
    const Stream stream;
    problem.params.stream = stream.get();
    for (int i = 0; i < 20; ++i) ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
    EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
    CLARY_CUDA_OK(cudaStreamSynchronize(stream.get()));
}

}  // namespace
}  // namespace clary::cases
