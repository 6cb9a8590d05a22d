// SPDX-License-Identifier: Apache-2.0
// Short queries, whose keys the GPU works on in pieces: results, the memory between the two kernels, streams and graphs.
#include "cases/tolerances.h"
#include "cuda/attention.h"

namespace clary::cases {
namespace {

const char* const kRecipes[] = {"int8_int8", "int8_int8:fast", "int8_fp16", "bf16_bf16"};
constexpr int64_t kGroup = 4, kKeys = 5000, kDim = 128;

// A decode step, or some queries more.
GpuProblem decode(const char* recipe, int64_t queries = 1, int64_t batch = 2, uint64_t seed = 1) {
    return {batch, 2, kKeys, kDim, recipe, seed, queries, kGroup};
}

size_t phase_bytes(const clary_attention_params& params) {
    size_t bytes = 0;
    EXPECT_EQ(clary_workspace_size(&params, 0, &bytes), CLARY_OK) << clary_last_error();
    return bytes;
}

double error_of(const GpuProblem& problem) {
    const auto q = problem.q.read<numerics::Bf16>(problem.results()),
               k = problem.k.read<numerics::Bf16>(problem.elements()),
               v = problem.v.read<numerics::Bf16>(problem.elements());
    const auto floats = [](const std::vector<numerics::Bf16>& from, size_t first, size_t count) {
        std::vector<float> to;
        for (size_t i = first; i < first + count; ++i) to.push_back(from[i].to_float());
        return to;
    };
    const std::vector<float> out = problem.result();
    constexpr size_t kRow = kDim, kHead = kKeys * kDim;
    double difference = 0, sum = 0;
    for (size_t row = 0; row < out.size() / kRow; ++row) {
        const size_t head = row / static_cast<size_t>(problem.queries) / kGroup;
        const std::vector<double> exact =
            exact_row(floats(q, row * kRow, kRow).data(), floats(k, head * kHead, kHead).data(),
                      floats(v, head * kHead, kHead).data(), kKeys, kDim);
        for (size_t d = 0; d < kRow; ++d) {
            const float x = out[row * kRow + d];
            difference += std::isfinite(x) ? std::fabs(exact[d] - static_cast<double>(x)) : INFINITY;
            sum += std::fabs(exact[d]);
        }
    }
    return difference / sum;
}

// Known without a GPU too, of the head dims that a build has.
TEST(CudaSplit, ExplainTellsThePieces) {
    int told = 0;
    for (const int64_t dim : {64, 128})
        for (const auto& [queries, pieces] : {std::pair{int64_t{1}, "\"key_pieces\":32,"}, {17, "\"key_pieces\":1,"}}) {
            const auto view = [dim = dim](int64_t heads, int64_t tokens) {
                return gpu_view(nullptr, CLARY_BF16, {1, heads, tokens, dim},
                                {heads * tokens * dim, tokens * dim, dim, 1});
            };
            clary_attention_params params{};
            params.struct_size = sizeof(params);
            params.recipe = "int8_int8";
            params.backend = "cuda";
            params.q = params.out = view(32, queries);
            params.k = params.v = view(8, 131072);
            const char* text = nullptr;
            ASSERT_EQ(clary_explain(&params, &text), CLARY_OK) << clary_last_error();
            const std::string json = text;
            if (json.find("\"packed_bytes\"") == std::string::npos) continue;  // no kernel that would run
            EXPECT_NE(json.find(pieces), std::string::npos) << json;
            ++told;
        }
    EXPECT_GE(told, 2);
}

TEST(CudaSplit, AsExact) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes)
        for (const int64_t queries : {1, 3, 16}) {
            GpuProblem problem = decode(recipe, queries);
            EXPECT_GT(phase_bytes(problem.params), 0u);
            ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
            Recipe parsed;
            ASSERT_TRUE(parse_recipe(recipe, &parsed).is_ok());
            EXPECT_LE(error_of(problem), error_against_exact(parsed, Case{.name = "normal"})) << recipe << queries;
        }
}

TEST(CudaSplit, RepeatableToTheBitWhateverTheWorkspaceHeld) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes) {
        GpuProblem problem = decode(recipe, 2);
        ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
        const std::vector<float> first = problem.result();
        for (const int poison : {0xff, 0x00, 0x5a})
            for (int again = 0; again < 5; ++again) {
                CLARY_CUDA_OK(cudaMemset(problem.workspace->data(), poison, problem.workspace->size()));
                CLARY_CUDA_OK(cudaMemset(problem.out.data(), 0xff, problem.out.size()));
                ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
                ASSERT_EQ(problem.result(), first) << recipe;
            }
    }
}

TEST(CudaSplit, AttendNeedsItsWorkspace) {
    CLARY_SKIP_WITHOUT_GPU();
    GpuProblem problem = decode("int8_int8");
    clary_packed_layout q_layout{}, kv_layout{};
    q_layout.struct_size = kv_layout.struct_size = sizeof(clary_packed_layout);
    ASSERT_EQ(clary_packed_layouts(&problem.params, 0, &q_layout, &kv_layout), CLARY_OK);
    const GpuMemory q(static_cast<size_t>(q_layout.bytes)), kv(static_cast<size_t>(kv_layout.bytes));
    const auto packed = [](const GpuMemory& memory) {
        clary_packed p{};
        p.struct_size = sizeof(p);
        p.device = CLARY_CUDA;
        p.data = memory.data();
        p.bytes = memory.size();
        return p;
    };
    const clary_packed packed_q = packed(q), packed_kv = packed(kv);
    ASSERT_EQ(clary_quantize(&problem.params, &packed_q, &packed_kv, nullptr), CLARY_OK) << clary_last_error();
    clary_attention_params params = problem.params;
    const size_t bytes = phase_bytes(params);
    const GpuMemory workspace(bytes);
    params.workspace = nullptr;
    EXPECT_EQ(clary_attend(&params, &packed_q, &packed_kv), CLARY_WORKSPACE_TOO_SMALL);
    params.workspace = workspace.data();
    params.workspace_size = bytes - 1;
    EXPECT_EQ(clary_attend(&params, &packed_q, &packed_kv), CLARY_WORKSPACE_TOO_SMALL);
    params.workspace_size = bytes;
    ASSERT_EQ(clary_attend(&params, &packed_q, &packed_kv), CLARY_OK) << clary_last_error();
    const std::vector<float> two_phase = problem.result();
    ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
    EXPECT_EQ(problem.result(), two_phase);
}

TEST(CudaSplit, AGraphReplaysASteps) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes) {
        GpuProblem problem = decode(recipe);
        ASSERT_EQ(clary_attention(&problem.params), CLARY_OK) << clary_last_error();
        const std::vector<float> expected = problem.result();
        const Stream stream;
        problem.params.stream = stream.get();
        const Graph graph(stream, [&] { return clary_attention(&problem.params); });
        for (int again = 0; again < 3; ++again) {
            problem.poison();
            graph.replay();
            EXPECT_EQ(problem.result(), expected) << recipe;
        }
    }
}

// Calls that follow each other on a stream share a workspace: the next one's first kernel waits for the combining one.
TEST(CudaSplit, TwoStreamsWithAWorkspaceEach) {
    CLARY_SKIP_WITHOUT_GPU();
    GpuProblem a = decode("int8_int8", 1, 8), b = decode("int8_int8:fast", 4, 1, 2);
    expect_independent(a, b, 200);
}

}  // namespace
}  // namespace clary::cases
