// SPDX-License-Identifier: Apache-2.0
// Caches on the GPU: filled in pieces they hold the bytes of one that was quantized at once with the same frozen vectors;
// steps can be captured; what passes the capacity becomes NaN.
#include <cstring>
#include <string>

#include "core/packed.h"
#include "core/recipe.h"
#include "cuda/attention.h"

namespace clary::cases {
namespace {

const char* const kRecipes[] = {"int8_int8", "int8_int8+v_scale=channel_tile+tile=64", "int8_fp16+tile=64", "int8_bf16",
                                "fp16_fp16"};

// Tokens first .. first + count - 1 of K and V.
clary_attention_params slice(clary_attention_params params, int64_t first, int64_t count) {
    for (clary_tensor* t : {&params.k, &params.v}) {
        t->data = static_cast<char*>(t->data) + first * t->stride[2] * 2;
        t->shape[2] = count;
    }
    return params;
}

// A problem with room for packed Q, K and V.
struct Cached {
    clary_packed_layout q_layout{}, kv_layout{};
    std::unique_ptr<GpuMemory> q, kv;
    int64_t capacity;

    Cached(const clary_attention_params& params, int64_t capacity_) : capacity(capacity_) {
        q_layout.struct_size = kv_layout.struct_size = sizeof(clary_packed_layout);
        EXPECT_EQ(clary_packed_layouts(&params, capacity, &q_layout, &kv_layout), CLARY_OK) << clary_last_error();
        q = std::make_unique<GpuMemory>(static_cast<size_t>(q_layout.bytes));
        kv = std::make_unique<GpuMemory>(static_cast<size_t>(kv_layout.bytes));
    }
    clary_packed buffer(const GpuMemory& memory) const {
        clary_packed packed{};
        packed.struct_size = sizeof(packed);
        packed.data = memory.data();
        packed.bytes = memory.size();
        packed.kv_capacity = capacity;
        packed.device = CLARY_CUDA;
        return packed;
    }
    void quantize(const clary_attention_params& params) const {
        const clary_packed to_q = buffer(*q), to_kv = buffer(*kv);
        ASSERT_EQ(clary_quantize(&params, &to_q, &to_kv, nullptr), CLARY_OK) << clary_last_error();
    }
    void append(const clary_attention_params& params) const {
        const clary_packed to = buffer(*kv);
        ASSERT_EQ(clary_append_kv(&params, &to), CLARY_OK) << clary_last_error();
    }
    std::vector<float> attend(const GpuProblem& problem) const {
        const clary_packed from_q = buffer(*q), from_kv = buffer(*kv);
        EXPECT_EQ(clary_attend(&problem.params, &from_q, &from_kv), CLARY_OK) << clary_last_error();
        return problem.result();
    }
    // Its c_k, c_q and q_base as the frozen vectors of another call.
    clary_attention_params frozen(clary_attention_params params) const {
        Recipe recipe;
        EXPECT_TRUE(parse_recipe(params.recipe, &recipe).is_ok());
        const auto give = [&](bool wanted, const char* name, clary_tensor* tensor) {
            const clary_section* const s = wanted ? find_section(kv_layout, name) : nullptr;
            if (s == nullptr) return;
            const int64_t row = s->ndim > 2 ? s->shape[2] : 1;
            std::vector<int64_t> shape = {s->shape[0], s->shape[1]}, stride = {s->shape[1] * row, row};
            if (s->ndim > 2) shape.push_back(params.k.shape[3]), stride.push_back(1);
            *tensor = gpu_view(static_cast<char*>(kv->data()) + s->offset, CLARY_FP32, shape, stride);
        };
        give(recipe.smooth_k, "c_k", &params.c_k);
        give(recipe.smooth_q, "c_q", &params.c_q);
        give(recipe.key_bias(), "q_base", &params.q_base);
        return params;
    }
};

// Every section but the tails, which keep bytes of tokens that are gone.
void expect_same(const Cached& a, const Cached& b) {
    const std::vector<char> bytes_a = a.kv->read<char>(a.kv->size()), bytes_b = b.kv->read<char>(b.kv->size());
    for (int32_t i = 0; i < a.kv_layout.section_count; ++i) {
        const clary_section& s = a.kv_layout.sections[i];
        if (std::strncmp(s.name, "tail_", 5) == 0) continue;
        int64_t bytes = dtype_size(static_cast<DType>(s.dtype));
        for (int32_t axis = 0; axis < s.ndim; ++axis) bytes *= s.shape[axis];
        EXPECT_EQ(std::memcmp(bytes_a.data() + s.offset, bytes_b.data() + s.offset, static_cast<size_t>(bytes)), 0)
            << s.name;
    }
}

TEST(CudaAppend, InPiecesAsAtOnce) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes)
        for (const std::vector<int64_t>& pieces :
             {std::vector<int64_t>{100, 60, 3, 1, 1, 700}, {64, 64, 128, 609}, {864, 1}, {0, 865}}) {
            SCOPED_TRACE(recipe);
            const GpuProblem problem(2, 3, 865, 64, recipe);
            const Cached cache(problem.params, 1000), whole(problem.params, 1000);
            if (HasFailure()) return;  // (a build without the recipe)
            cache.quantize(slice(problem.params, 0, pieces[0]));
            whole.quantize(cache.frozen(problem.params));
            int64_t length = pieces[0];
            for (size_t i = 1; i < pieces.size(); length += pieces[i++])
                cache.append(slice(problem.params, length, pieces[i]));
            CLARY_CUDA_OK(cudaDeviceSynchronize());
            expect_same(cache, whole);
            const std::vector<float> expected = whole.attend(problem);
            for (const float x : expected) ASSERT_TRUE(std::isfinite(x));
            EXPECT_EQ(cache.attend(problem), expected);
        }
}

TEST(CudaAppend, AGraphReplaysAStep) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes) {
        SCOPED_TRACE(recipe);
        const GpuProblem problem(1, 2, 200, 128, recipe);
        const Cached by_hand(problem.params, 300), replayed(problem.params, 300);
        if (HasFailure()) return;  // (a build without the recipe)
        const Stream stream;
        for (const Cached* cache : {&by_hand, &replayed}) cache->quantize(slice(problem.params, 0, 126));
        clary_attention_params step = slice(problem.params, 126, 1);
        for (int i = 0; i < 5; ++i) by_hand.append(step);
        CLARY_CUDA_OK(cudaDeviceSynchronize());
        step.stream = stream.get();
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        CLARY_CUDA_OK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
        replayed.append(step);
        CLARY_CUDA_OK(cudaStreamEndCapture(stream.get(), &graph));
        CLARY_CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
        for (int i = 0; i < 5; ++i) CLARY_CUDA_OK(cudaGraphLaunch(executable, stream.get()));
        CLARY_CUDA_OK(cudaStreamSynchronize(stream.get()));
        expect_same(replayed, by_hand);
        const auto* const lengths = find_section(replayed.kv_layout, "lengths");
        int64_t length = 0;
        CLARY_CUDA_OK(cudaMemcpy(&length, static_cast<char*>(replayed.kv->data()) + lengths->offset, sizeof(length),
                                 cudaMemcpyDeviceToHost));
        EXPECT_EQ(length, 131);
        CLARY_CUDA_OK(cudaGraphExecDestroy(executable));
        CLARY_CUDA_OK(cudaGraphDestroy(graph));
    }
}

TEST(CudaAppend, BeyondTheCapacityIsNan) {
    CLARY_SKIP_WITHOUT_GPU();
    for (const char* recipe : kRecipes) {
        SCOPED_TRACE(recipe);
        const GpuProblem problem(2, 2, 200, 64, recipe);
        const Cached cache(problem.params, 250);
        if (HasFailure()) return;  // (a build without the recipe)
        cache.quantize(problem.params);
        clary_attention_params part = slice(problem.params, 0, 51);
        GpuMemory lengths(2 * sizeof(int32_t));
        lengths.write<int32_t>({50, 51});
        part.kv_lengths = gpu_view(lengths.data(), CLARY_INT32, {2}, {1});
        cache.append(part);
        const std::vector<float> out = cache.attend(problem);
        for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i >= out.size() / 2) << "element " << i;
    }
}

TEST(CudaAppend, ChannelScalesCannotGrow) {
    CLARY_SKIP_WITHOUT_GPU();
    const GpuProblem problem(1, 1, 100, 64, "int8_int8:fast");
    const Cached cache(problem.params, 300);
    if (HasFailure()) return;  // (a build without the recipe)
    cache.quantize(problem.params);
    const clary_packed kv = cache.buffer(*cache.kv);
    EXPECT_EQ(clary_append_kv(&problem.params, &kv), CLARY_UNSUPPORTED);
}

}  // namespace
}  // namespace clary::cases
