// SPDX-License-Identifier: Apache-2.0
#include "api.h"

#include "failure.h"

namespace clary::cli {

void print_json(const Json& json) { fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace)); }

void require_ok(clary_status status, const std::string& what) {
    if (status == CLARY_OK) return;
    const std::string text = clary_last_error();
    require_ok(Status(static_cast<StatusCode>(status), what.empty() ? text : fmt::format("{}: {}", what, text)));
}

std::vector<clary_kernel_info> all_kernels() {
    std::vector<clary_kernel_info> kernels(static_cast<size_t>(clary_kernel_count()));
    for (size_t i = 0; i < kernels.size(); ++i) {
        kernels[i].struct_size = sizeof(clary_kernel_info);
        require_ok(clary_kernel_get(static_cast<int32_t>(i), &kernels[i]));
    }
    return kernels;
}

Json explain(clary_attention_params params, const std::string& recipe, const std::string& backend) {
    params.recipe = recipe.c_str();
    params.backend = backend.c_str();
    const char* text = nullptr;
    require_ok(clary_explain(&params, &text));
    return Json::parse(text);
}

Attention::Attention(const Problem& problem, std::string recipe, std::string backend, clary_context* context,
                     DType out_dtype, bool want_lse)
    : layer_(problem.layer), recipe_(std::move(recipe)), backend_(std::move(backend)), params_(params_of(problem)) {
    const Shape& s = problem.shape;
    std::vector<int64_t> shape = {s.batch, s.q_heads, s.q_len, s.head_dim_v};
    if (problem.layout == MemoryLayout::kNhd) std::swap(shape[1], shape[2]);
    require_ok(io::make_tensor("out", out_dtype, shape, &out_));
    params_.out = logical_view(out_, problem.layout);
    if (want_lse) {
        require_ok(io::make_tensor("lse", DType::kF32, {s.batch, s.q_heads, s.q_len}, &lse_));
        params_.lse = shape_view({s.batch, s.q_heads, s.q_len}, CLARY_FP32);
        params_.lse.data = lse_.bytes.data();
    }
    params_.recipe = recipe_.c_str();
    params_.backend = backend_.c_str();
    params_.context = context;
}

// Once, of the size of the whole call, which covers attending alone.
void Attention::give_workspace() {
    if (params_.workspace != nullptr) return;
    size_t bytes = 0;
    require_ok(clary_workspace_size(&params_, 1, &bytes), layer_);
    workspace_.resize(std::max<size_t>(bytes, 1));
    params_.workspace = workspace_.data();
    params_.workspace_size = workspace_.size();
}

void Attention::run() {
    give_workspace();
    require_ok(clary_attention(&params_), layer_);
    kernel_ = clary_last_kernel();
}

clary_packed Attention::packed(io::Bytes& bytes) {
    clary_packed buffer{};
    buffer.struct_size = sizeof(buffer);
    buffer.data = bytes.data();
    buffer.bytes = bytes.size();
    return buffer;
}

void Attention::quantize() {
    if (packed_kv_.empty()) {
        q_layout_.struct_size = kv_layout_.struct_size = sizeof(clary_packed_layout);
        require_ok(clary_packed_layouts(&params_, 0, &q_layout_, &kv_layout_), layer_);
        packed_q_.assign(static_cast<size_t>(q_layout_.bytes), std::byte{0});
        packed_kv_.assign(static_cast<size_t>(kv_layout_.bytes), std::byte{0});
    }
    const clary_packed q = packed(packed_q_), kv = packed(packed_kv_);
    require_ok(clary_quantize(&params_, &q, &kv, nullptr), layer_);
}

void Attention::attend() {
    give_workspace();
    const clary_packed q = packed(packed_q_), kv = packed(packed_kv_);
    require_ok(clary_attend(&params_, &q, &kv), layer_);
    kernel_ = clary_last_kernel();
}

io::Tensor exact_output(const Problem& problem) {
    Attention exact(problem, "fp32_fp32", "reference", nullptr);
    exact.run();
    return exact.take_out();
}

}  // namespace clary::cli
