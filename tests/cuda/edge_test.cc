// SPDX-License-Identifier: Apache-2.0
// What is refused on the host, and what the kernels themselves notice about buffers that the host cannot read.
#include <cstring>

#include "core/packed.h"
#include "cpu/run.h"
#include "cuda/attention.h"

namespace clary::cases {
namespace {

std::string error() { return clary_last_error(); }
bool says(const char* text) { return error().find(text) != std::string::npos; }

TEST(CudaEdges, RefusedBeforeALaunch) {
    CLARY_SKIP_WITHOUT_GPU();
    GpuProblem problem(1, 2, 100, 64, "int8_int8");
    clary_attention_params params = problem.params;
    params.workspace = nullptr;
    EXPECT_EQ(clary_attention(&params), CLARY_WORKSPACE_TOO_SMALL);
    EXPECT_TRUE(says("workspace: null")) << error();
    params = problem.params;
    params.workspace_size -= 1;
    EXPECT_EQ(clary_attention(&params), CLARY_WORKSPACE_TOO_SMALL);
    params = problem.params;
    params.k.device = CLARY_CPU;
    EXPECT_EQ(clary_attention(&params), CLARY_INVALID_ARGUMENT);
    EXPECT_TRUE(says("k: on device 0:0, but q is on 1:0")) << error();
    params = problem.params;
    for (clary_tensor* tensor : {&params.q, &params.k, &params.v, &params.out}) tensor->device_index = 63;
    EXPECT_EQ(clary_attention(&params), CLARY_UNSUPPORTED);
    EXPECT_TRUE(says("q: on CUDA device 63; allowed: 0..")) << error();
    params = problem.params;
    params.backend = "cpu";
    EXPECT_EQ(clary_attention(&params), CLARY_UNSUPPORTED);
    EXPECT_TRUE(says("q: in CUDA memory; allowed: tensors in CPU memory")) << error();
    params.backend = "cuda";
    params.recipe = "fp32_fp32";
    EXPECT_EQ(clary_attention(&params), CLARY_UNSUPPORTED);
}

// A buffer that was packed as something else gives NaN, never numbers.
TEST(CudaEdges, ForeignPackedBuffersGiveNan) {
    CLARY_SKIP_WITHOUT_GPU();
    Case c{.name = "foreign", .q_heads = 2, .kv_heads = 1, .q_len = 70, .kv_len = 200, .dim = 64};
    Problem problem(c);
    for (const char* recipe : {"int8_int8", "int8_fp16", "bf16_bf16"}) {
        const clary_attention_params params = with(problem, recipe, "cuda");
        const Packed packed = pack(&problem, params);
        const PackedHeader header = header_of(packed.q_layout, packed.q->data());
        EXPECT_EQ(header.format, kPackedFormat) << recipe;
        ASSERT_NO_FATAL_FAILURE(attend(&problem, params, packed));
        for (const float x : problem.output().out) ASSERT_TRUE(std::isfinite(x)) << recipe;
        const auto all_nan = [&] {
            attend(&problem, params, packed);
            const Output output = problem.output();
            const auto nan = [](float x) { return std::isnan(x); };
            return std::all_of(output.out.begin(), output.out.end(), nan) &&
                   std::all_of(output.lse.begin(), output.lse.end(), nan);
        };
        for (Guarded* buffer : {packed.q.get(), packed.kv.get()}) {
            auto* const words = static_cast<uint64_t*>(buffer->data());  // the header is the first section
            for (size_t field : {offsetof(PackedHeader, format), offsetof(PackedHeader, layout),
                                 offsetof(PackedHeader, sequences), offsetof(PackedHeader, scale)}) {
                uint64_t& word = words[field / 8];
                word ^= 1;
                EXPECT_TRUE(all_nan()) << recipe << ", header byte " << field;
                word ^= 1;
            }
        }
        EXPECT_FALSE(all_nan()) << recipe;
    }
}

// More work than a GPU has multiprocessors: a block that goes on to another head takes nothing along.
TEST(CudaEdges, NanStaysInItsHead) {
    CLARY_SKIP_WITHOUT_GPU();
    const Case c{
        .name = "nan_stays", .batch = 20, .q_heads = 16, .kv_heads = 16, .q_len = 100, .kv_len = 200, .dim = 128};
    Problem problem(c);
    const auto poisoned = [](int64_t b, int64_t h) { return (b + h) % 2 == 0; };
    for (int64_t b = 0; b < c.batch; ++b)
        for (int64_t h = 0; h < c.kv_heads; ++h)
            if (poisoned(b, h)) problem.set(problem.params.v, {b, h, 9, 7}, std::numeric_limits<float>::quiet_NaN());
    problem.freeze_inputs();
    for (const char* recipe : {"int8_int8", "int8_int8:fast", "int8_fp8", "int8_fp8:fast", "int8_fp16", "bf16_bf16"}) {
        SCOPED_TRACE(recipe);
        run_one_shot(&problem, with(problem, recipe, "cuda"));
        const Output result = problem.output();
        const auto row = static_cast<size_t>(c.dim);
        for (size_t i = 0; i < result.out.size(); ++i) {
            const auto head = static_cast<int64_t>(i / row) / c.q_len;
            ASSERT_EQ(std::isnan(result.out[i]), poisoned(head / c.q_heads, head % c.q_heads)) << "element " << i;
        }
    }
}

// kv_lengths in device memory may be longer than what is packed: they are clamped.
TEST(CudaEdges, LengthsAreClamped) {
    CLARY_SKIP_WITHOUT_GPU();
    Case c{.name = "lengths", .batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 40, .kv_len = 200, .dim = 64};
    c.kv_lengths = {150, 200};
    Problem problem(c);
    const clary_attention_params params = with(problem, "int8_int8", "cuda");
    const Packed packed = pack(&problem, params);
    ASSERT_NO_FATAL_FAILURE(attend(&problem, params, packed));
    const std::vector<unsigned char> expected = problem.output_bytes();
    static_cast<int32_t*>(problem.params.kv_lengths.data)[0] = 190;
    problem.freeze_inputs();
    ASSERT_NO_FATAL_FAILURE(attend(&problem, params, packed));
    EXPECT_EQ(problem.output_bytes(), expected);
}

}  // namespace
}  // namespace clary::cases
