// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "failure.h"
#include "synthetic/generator.h"
#include "values.h"

namespace clary::cli {
namespace {

using Metadata = std::map<std::string, std::string>;

std::string sizes_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// The option where it is given, else the metadata's value, else `fallback`. *where names the origin for messages.
std::string option_or_metadata(const std::string& option, const char* name, const Metadata& metadata,
                               const std::string& path, const std::string& fallback, std::string* where) {
    *where = fmt::format("--{}", name);
    if (!option.empty()) return option;
    *where = fmt::format("{}: metadata {}", path, name);
    const auto found = metadata.find(name);
    return found == metadata.end() ? fallback : found->second;
}

MemoryLayout parse_layout(const std::string& text, const std::string& where) {
    if (text == "hnd" || text == "HND") return MemoryLayout::kHnd;
    if (text == "nhd" || text == "NHD") return MemoryLayout::kNhd;
    fail("{} '{}' is not allowed; allowed: hnd, nhd", where, text);
}

double parse_scale(const std::string& text, const std::string& where) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
        fail("{} '{}' is not allowed; allowed: a finite number", where, text);
    return value;
}

// The tensor `name` with four dimensions and a type that attention takes.
io::Tensor take_operand(const io::TensorFile& file, const std::string& path, const std::string& name, bool* batchless) {
    const io::Tensor* found = file.find(name);
    if (found == nullptr) fail("{}: tensor '{}' is missing; a capture holds q, k and v of each layer", path, name);
    if (found->dtype != DType::kF32 && found->dtype != DType::kF16 && found->dtype != DType::kBF16)
        fail("{}: tensor '{}' is {}; allowed: fp32, fp16, bf16", path, name, dtype_name(found->dtype));
    if (found->shape.size() != 3 && found->shape.size() != 4)
        fail("{}: tensor '{}' has the shape {}; allowed: 4 dimensions, or 3 without the batch", path, name,
             sizes_text(found->shape));
    io::Tensor tensor = *found;
    *batchless = tensor.shape.size() == 3;
    if (*batchless) tensor.shape.insert(tensor.shape.begin(), 1);
    return tensor;
}

io::Tensor take_mask(const io::Tensor& found, const std::string& path) {
    const DType t = found.dtype;
    if (t != DType::kBool && t != DType::kF32 && t != DType::kF16 && t != DType::kBF16)
        fail("{}: tensor '{}' is {}; allowed: bool, fp32, fp16, bf16", path, found.name, dtype_name(t));
    if (found.shape.size() < 2 || found.shape.size() > 4)
        fail("{}: tensor '{}' has the shape {}; allowed: [Lq, Lk], [H, Lq, Lk], [B, H, Lq, Lk], any of them 1", path,
             found.name, sizes_text(found.shape));
    io::Tensor mask = found;
    mask.shape.insert(mask.shape.begin(), 4 - mask.shape.size(), 1);
    return mask;
}

std::vector<std::string> layer_names(const io::TensorFile& file, const std::string& path, const std::string& wanted) {
    std::vector<std::string> names;
    for (const io::Tensor& tensor : file.tensors) {
        if (tensor.name == "q") names.emplace_back();
        if (tensor.name.ends_with(".q")) names.push_back(tensor.name.substr(0, tensor.name.size() - 2));
    }
    std::sort(names.begin(), names.end());
    if (names.empty()) fail("{}: no tensor 'q' and none '<layer>.q'; a capture holds q, k and v of each layer", path);
    if (wanted.empty()) return names;
    if (std::find(names.begin(), names.end(), wanted) == names.end())
        fail("--layer '{}' is not in {}; allowed: {}", wanted, path, fmt::join(names, ", "));
    return {wanted};
}

// Generators take what makes sense as attention, and no more than fits a usual memory.
void check_generated(const Shape& s) {
    constexpr int64_t kMaxElements = int64_t{1} << 32;
    if (s.kv_heads < 1 || s.q_heads < 1 || s.q_heads % s.kv_heads != 0)
        fail("{} query heads are not a multiple of {} kv heads; allowed: a positive multiple", s.q_heads, s.kv_heads);
    int64_t elements = 1;
    for (const int64_t size : {s.batch, s.q_heads, std::max(s.q_len, s.kv_len), std::max(s.head_dim, s.head_dim_v)}) {
        if (size > kMaxElements / elements)
            fail("shape {} is too large to generate; allowed: 2^32 values", shape_text(s));
        elements *= std::max<int64_t>(size, 1);
    }
    if (std::min({s.batch, s.q_len, s.kv_len, s.head_dim, s.head_dim_v}) < 1)
        fail("shape {} is empty; allowed: sizes from 1 on", shape_text(s));
}

void describe(clary_attention_params* params, int32_t causal, std::optional<double> scale) {
    params->struct_size = sizeof(*params);
    params->causal = causal;
    params->has_scale = scale.has_value();
    params->scale = scale.value_or(0);
}

}  // namespace

std::string shape_text(const Shape& s) {
    std::string text =
        fmt::format("B{} H{}/{} L{}x{} D{}", s.batch, s.q_heads, s.kv_heads, s.q_len, s.kv_len, s.head_dim);
    return s.head_dim_v == s.head_dim ? text : fmt::format("{}/{}", text, s.head_dim_v);
}

int32_t parse_causal(const std::string& text, const std::string& where, int64_t q_len, int64_t kv_len) {
    if (text == "false") return CLARY_CAUSAL_NONE;
    if (text == "top_left") return CLARY_CAUSAL_TOP_LEFT;
    if (text == "bottom_right") return CLARY_CAUSAL_BOTTOM_RIGHT;
    if (text != "true") fail("{} '{}' is not allowed; allowed: true, false, top_left, bottom_right", where, text);
    if (q_len != kv_len)
        fail("{} 'true' has two meanings where q_len ({}) and kv_len ({}) differ; allowed: top_left, bottom_right",
             where, q_len, kv_len);
    return CLARY_CAUSAL_TOP_LEFT;
}

std::vector<Problem> load_problems(const std::string& path, const ProblemOptions& options, Metadata* metadata) {
    io::TensorFile file;
    require_ok(io::load(path, &file));
    if (metadata != nullptr) *metadata = file.metadata;
    std::string layout_where, causal_where, scale_where;
    const std::string layout_word =
        option_or_metadata(options.layout, "layout", file.metadata, path, "hnd", &layout_where);
    const MemoryLayout layout = parse_layout(layout_word, layout_where);
    const std::string causal =
        option_or_metadata(options.causal, "causal", file.metadata, path, "false", &causal_where);
    const std::string scale = option_or_metadata("", "scale", file.metadata, path, "", &scale_where);

    std::vector<Problem> problems;
    for (const std::string& layer : layer_names(file, path, options.layer)) {
        Problem p;
        p.layer = layer;
        p.layout = layout;
        bool kv_batchless = false;
        p.q = take_operand(file, path, p.in_layer("q"), &p.batchless);
        p.k = take_operand(file, path, p.in_layer("k"), &kv_batchless);
        p.v = take_operand(file, path, p.in_layer("v"), &kv_batchless);
        if (const io::Tensor* mask = file.find(p.in_layer("mask"))) {
            p.mask = take_mask(*mask, path);
            p.has_mask = true;
        }
        const clary_tensor q = logical_view(p.q, layout), k = logical_view(p.k, layout), v = logical_view(p.v, layout);
        p.shape = {q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
        p.causal = parse_causal(causal, causal_where, p.shape.q_len, p.shape.kv_len);
        if (options.scale)
            p.scale = options.scale;
        else if (!scale.empty())
            p.scale = parse_scale(scale, scale_where);
        problems.push_back(std::move(p));
    }
    return problems;
}

Problem synthetic_problem(const std::string& preset, const Shape& shape, const std::string& causal, uint64_t seed) {
    check_generated(shape);
    Problem p;
    p.shape = shape;
    p.causal = parse_causal(causal, "--causal", shape.q_len, shape.kv_len);
    const auto generate = [&](int64_t dim) {
        synthetic::Tensors tensors;
        const synthetic::Dims dims = {shape.batch, shape.q_heads, shape.kv_heads, shape.q_len, shape.kv_len, dim};
        require_ok(synthetic::generate(preset == "normal" ? "gauss" : preset, dims, seed, &tensors));
        return tensors;
    };
    const auto take = [&](const std::vector<float>& values, const char* name, int64_t heads, int64_t length,
                          int64_t dim) {
        io::Tensor tensor;
        require_ok(io::make_tensor(name, DType::kF32, {shape.batch, heads, length, dim}, &tensor));
        std::copy(values.begin(), values.end(), tensor.as<float>().begin());
        return tensor;
    };
    const synthetic::Tensors tensors = generate(shape.head_dim);
    p.q = take(tensors.q, "q", shape.q_heads, shape.q_len, shape.head_dim);
    p.k = take(tensors.k, "k", shape.kv_heads, shape.kv_len, shape.head_dim);
    // The generators know one head dim; V of another one is that of a second run.
    const bool same = shape.head_dim_v == shape.head_dim;
    p.v = take(same ? tensors.v : generate(shape.head_dim_v).v, "v", shape.kv_heads, shape.kv_len, shape.head_dim_v);
    return p;
}

std::string synthetic_presets() {
    std::string text = "normal";
    for (const synthetic::PresetInfo& preset : synthetic::presets())
        if (preset.name != "gauss") text += ", " + preset.name;
    return text;
}

clary_tensor shape_view(std::initializer_list<int64_t> shape, clary_dtype dtype) {
    clary_tensor view{};
    view.dtype = dtype;
    view.ndim = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape);
    int64_t stride = 1;
    for (int32_t i = view.ndim - 1; i >= 0; --i) {
        view.stride[i] = stride;
        stride *= view.shape[i];
    }
    return view;
}

clary_tensor logical_view(const io::Tensor& tensor, MemoryLayout layout) {
    const std::vector<int64_t>& s = tensor.shape;
    clary_tensor view = shape_view({s[0], s[1], s[2], s[3]}, static_cast<clary_dtype>(tensor.dtype));
    view.data = const_cast<std::byte*>(tensor.bytes.data());
    if (layout == MemoryLayout::kNhd) {
        std::swap(view.shape[1], view.shape[2]);
        std::swap(view.stride[1], view.stride[2]);
    }
    return view;
}

clary_attention_params params_of(const Problem& problem) {
    clary_attention_params params{};
    describe(&params, problem.causal, problem.scale);
    params.q = logical_view(problem.q, problem.layout);
    params.k = logical_view(problem.k, problem.layout);
    params.v = logical_view(problem.v, problem.layout);
    if (problem.has_mask) params.mask = logical_view(problem.mask, MemoryLayout::kHnd);
    return params;
}

clary_attention_params params_of(const Shape& s, clary_dtype dtype, int32_t causal) {
    clary_attention_params params{};
    describe(&params, causal, std::nullopt);
    params.q = shape_view({s.batch, s.q_heads, s.q_len, s.head_dim}, dtype);
    params.k = shape_view({s.batch, s.kv_heads, s.kv_len, s.head_dim}, dtype);
    params.v = shape_view({s.batch, s.kv_heads, s.kv_len, s.head_dim_v}, dtype);
    return params;
}

int64_t count_non_finite(const io::Tensor& tensor) {
    int64_t count = 0;
    for_each_value(tensor, [&](double x) { count += !std::isfinite(x); });
    return count;
}

void warn_of_non_finite(const std::vector<Problem>& problems) {
    std::vector<std::string> counts;
    for (const Problem& p : problems) {
        for (const auto& [tensor, name] : {std::pair{&p.q, "q"}, {&p.k, "k"}, {&p.v, "v"}}) {
            const int64_t count = count_non_finite(*tensor);
            if (count > 0)
                counts.push_back(fmt::format("{} of {} in {}", count, tensor->element_count(), p.in_layer(name)));
        }
    }
    if (counts.empty()) return;
    fmt::print(stderr, "clary: warning: values that are not finite: {}; every row that sees one comes out NaN\n",
               fmt::join(counts, ", "));
}

}  // namespace clary::cli
