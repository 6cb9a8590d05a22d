// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "failure.h"

namespace clary::cli {
namespace {

// Far above what a working kernel shows on the data of `clary bench`, far below what a broken one does. How accurate a
// recipe is: `clary accuracy`.
double sanity_limit(const std::string& recipe) {
    if (recipe.starts_with("fp32_")) return 1e-4;
    if (recipe.starts_with("fp16_") || recipe.starts_with("bf16_")) return 0.02;
    return recipe.starts_with("int8_") ? 0.15 : 0.5;
}

// The last rows of the first kv head's query heads against float64: a slice, so that long problems stay affordable.
double error_of_slice(const Problem& problem, const io::Tensor& out) {
    const Shape& s = problem.shape;
    Shape slice = s;
    slice.batch = slice.kv_heads = 1;
    slice.q_heads = s.q_heads / s.kv_heads;
    slice.q_len = std::min<int64_t>(s.q_len, 256);
    const int64_t first = s.q_len - slice.q_len;
    io::Tensor exact, ours;
    for (io::Tensor* tensor : {&exact, &ours})
        require_ok(io::make_tensor("out", DType::kF32, {1, slice.q_heads, slice.q_len, slice.head_dim_v}, tensor));
    clary_attention_params params = params_of(problem);
    params.q.shape[0] = params.k.shape[0] = params.v.shape[0] = params.k.shape[1] = params.v.shape[1] = 1;
    params.q.shape[1] = slice.q_heads;
    params.q.shape[2] = slice.q_len;
    params.q.data = static_cast<std::byte*>(params.q.data) + first * params.q.stride[2] * dtype_size(problem.q.dtype);
    if (problem.causal != CLARY_CAUSAL_NONE) {
        params.causal_offset = first + (problem.causal == CLARY_CAUSAL_BOTTOM_RIGHT ? s.kv_len - s.q_len : 0);
        params.causal = CLARY_CAUSAL_OFFSET;
    }
    params.recipe = "fp32_fp32";
    params.backend = "reference";
    params.out = logical_view(exact, MemoryLayout::kHnd);
    require_ok(clary_attention(&params));
    for (int64_t h = 0; h < slice.q_heads; ++h) {
        const int64_t row_bytes = s.head_dim_v * static_cast<int64_t>(sizeof(float));
        std::memcpy(ours.bytes.data() + h * slice.q_len * row_bytes,
                    out.bytes.data() + (h * s.q_len + first) * row_bytes, static_cast<size_t>(slice.q_len * row_bytes));
    }
    return compare(exact, ours, MemoryLayout::kHnd).relative_l1;
}

}  // namespace

double operations(const Problem& problem) {
    const Shape& s = problem.shape;
    const auto count = static_cast<double>(2 * s.batch * s.q_heads * s.q_len * s.kv_len * (s.head_dim + s.head_dim_v));
    return problem.causal == CLARY_CAUSAL_NONE ? count : count / 2;
}

std::vector<BenchResult> bench_problem(const Problem& problem, const BenchRequest& request, const Context& context) {
    Attention baseline(problem, request.baseline, request.backend, context.get());
    std::vector<std::unique_ptr<Attention>> attentions;
    std::vector<BenchResult> results;
    std::vector<std::function<void()>> candidates = {[&baseline] { baseline.run(); }};
    for (const std::string& recipe : request.recipes) {
        attentions.push_back(std::make_unique<Attention>(problem, recipe, request.backend, context.get()));
        Attention& attention = *attentions.back();
        attention.run();
        BenchResult result;
        result.problem = &problem;
        const Json plan = explain(params_of(problem), recipe, request.backend);
        result.recipe = plan.at("recipe");
        result.backend = plan.at("backend");
        result.kernel = attention.kernel();
        result.limit = sanity_limit(result.recipe);
        if (request.check) result.rel_l1 = error_of_slice(problem, attention.out());
        results.push_back(std::move(result));
        if (!request.time || !results.back().matches()) continue;
        attention.quantize();
        results.back().tile = attention.kv_layout().tile;
        candidates.emplace_back([&attention] { attention.run(); });
        candidates.emplace_back([&attention] { attention.attend(); });
        candidates.emplace_back([&attention] { attention.quantize(); });
    }
    if (!request.time) return results;
    const std::vector<Timing> timings = time_in_turns(candidates, request.rounds);
    size_t next = 1;
    for (BenchResult& result : results) {
        if (!result.matches()) continue;
        result.baseline = timings[0];
        result.call = timings[next++];
        result.attend = timings[next++];
        result.quantize = timings[next++];
    }
    return results;
}

}  // namespace clary::cli
