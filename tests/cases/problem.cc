// SPDX-License-Identifier: Apache-2.0
#include "cases/problem.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/element.h"
#include "core/validate.h"
#include "reference/exact.h"
#include "synthetic/random.h"

namespace clary::cases {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t offset_of(const clary_tensor& t, const int64_t* index) {
    int64_t sum = 0;
    for (int i = 0; i < t.ndim; ++i) sum += index[i] * t.stride[i];
    return sum;
}

// Calls f(index, element) for every element in C order.
template <typename Function>
void each_element(const clary_tensor& t, Function&& f) {
    int64_t index[CLARY_MAX_DIMS] = {}, count = 1;
    for (int i = 0; i < t.ndim; ++i) count *= t.shape[i];
    for (int64_t n = 0; n < count; ++n) {
        f(index, static_cast<char*>(t.data) + offset_of(t, index) * dtype_size(static_cast<DType>(t.dtype)));
        for (int i = t.ndim; i-- > 0;) {
            if (++index[i] < t.shape[i]) break;
            index[i] = 0;
        }
    }
}

std::vector<float> read(const clary_tensor& t) {
    std::vector<float> values;
    each_element(
        t, [&](const int64_t*, const char* at) { values.push_back(load_element(at, static_cast<DType>(t.dtype))); });
    return values;
}

struct Strides {
    int64_t batch, head, token, dim, elements, offset;  // offset: of element [0, 0, 0, 0]
};

Strides strides_of(Layout layout, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
    switch (layout) {
        case Layout::kNhd:
            return {tokens * heads * dim, dim, heads * dim, 1, batch * tokens * heads * dim, 0};
        case Layout::kFused:
            return {tokens * heads * 3 * dim, dim, heads * 3 * dim, 1, batch * tokens * heads * 3 * dim, heads * dim};
        case Layout::kGaps: {
            const int64_t token = dim + 3, head = tokens * token + 5;
            return {heads * head, head, token, 1, batch * heads * head, 0};
        }
        case Layout::kEverySecond:
            return {heads * tokens * dim * 2, tokens * dim * 2, dim * 2, 2, batch * heads * tokens * dim * 2, 0};
        case Layout::kTransposed:
            return {heads * tokens * dim, tokens * dim, 1, tokens, batch * heads * tokens * dim, 0};
        case Layout::kBroadcastBatch:
            return {0, tokens * dim, dim, 1, heads * tokens * dim, 0};
        case Layout::kBroadcastHeads:
            return {tokens * dim, 0, dim, 1, batch * tokens * dim, 0};
        case Layout::kReversed:
            return {heads * tokens * dim,
                    tokens * dim,
                    -dim,
                    1,
                    batch * heads * tokens * dim,
                    tokens > 0 ? (tokens - 1) * dim : 0};
        case Layout::kHnd:
            break;
    }
    return {heads * tokens * dim, tokens * dim, dim, 1, batch * heads * tokens * dim, 0};
}

}  // namespace

void Guarded::Free::operator()(unsigned char* p) const { std::free(p); }

Guarded::Guarded(size_t bytes, size_t offset) : bytes_(bytes) {
    whole_ = (bytes + offset + 2 * kCanary + 63) / 64 * 64;
    memory_.reset(static_cast<unsigned char*>(std::aligned_alloc(64, whole_)));
    if (!memory_) throw std::bad_alloc();
    begin_ = memory_.get() + kCanary + offset;
    poison();
}

void Guarded::poison() { std::memset(memory_.get(), 0xff, whole_); }

bool Guarded::canaries_intact() const {
    const auto intact = [](const unsigned char* from, const unsigned char* to) {
        return std::all_of(from, to, [](unsigned char byte) { return byte == 0xff; });
    };
    return intact(memory_.get(), begin_) && intact(begin_ + bytes_, memory_.get() + whole_);
}

Problem::Problem(const Case& wanted, uint64_t seed) : case_(wanted) {
    const Case& c = case_;
    params.struct_size = sizeof(params);
    const auto total = [](const std::vector<int64_t>& lengths) {
        int64_t sum = 0;
        for (const int64_t length : lengths) sum += length;
        return sum;
    };
    const int64_t batch = c.varlen() ? 1 : c.batch;
    const int64_t q_tokens = c.varlen() ? total(c.seqlens_q) : c.q_len;
    const int64_t k_tokens = c.varlen() ? total(c.seqlens_k) : c.kv_len;
    const int64_t pages = c.page_size > 0 ? (c.kv_len + c.page_size - 1) / c.page_size : 0;
    const int64_t kv_batch = c.page_size > 0 ? batch * pages + 2 : batch;  // two pages that nobody uses
    const int64_t kv_tokens = c.page_size > 0 ? c.page_size : k_tokens;
    make_tensor(c.q, c.q_layout, batch, c.q_heads, q_tokens, c.dim, false, &params.q);
    make_tensor(c.k, c.kv_layout, kv_batch, c.kv_heads, kv_tokens, c.dim, false, &params.k);
    make_tensor(c.v, c.kv_layout, kv_batch, c.kv_heads, kv_tokens, c.v_dim(), false, &params.v);
    make_tensor(c.out, c.out_layout, batch, c.q_heads, q_tokens, c.v_dim(), true, &params.out);
    if (c.lse) make_lse();
    make_sequences();
    params.has_scale = c.has_scale;
    params.scale = c.scale;
    params.causal = static_cast<int32_t>(c.causal);
    params.causal_offset = c.causal_offset;
    params.has_window = c.window.enabled;
    if (c.window.enabled) {
        params.window_left = c.window.left;
        params.window_right = c.window.right;
        params.window_keep = c.window.keep;
    }
    fill_inputs(seed);
    if (c.mask != MaskForm::kNone) make_mask(seed);
    std::vector<float> per_head(static_cast<size_t>(c.q_heads));
    if (c.alibi) {
        for (size_t h = 0; h < per_head.size(); ++h) per_head[h] = 0.25f / static_cast<float>(h + 1);
        make_vector(DType::kF32, per_head, &params.alibi_slopes);
    }
    if (c.sinks) {
        synthetic::Random random(seed, 77);
        for (float& sink : per_head) sink = static_cast<float>(2 * random.normal());
        per_head.back() = -kInfinity;
        make_vector(DType::kF32, per_head, &params.sinks);
    }
    freeze_inputs();
}

void Problem::make_tensor(DType dtype, Layout layout, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                          bool is_output, clary_tensor* tensor) {
    const Strides s = strides_of(layout, batch, heads, tokens, dim);
    const auto size = static_cast<size_t>(dtype_size(dtype));
    // An odd offset: aligned to the element and to nothing more.
    const size_t offset = layout == Layout::kGaps ? size : 0;
    const size_t bytes = static_cast<size_t>(s.elements) * size;
    Guarded& memory = is_output ? outputs_.emplace_back(bytes, offset) : inputs_.emplace_back(bytes, offset).memory;
    tensor->data = static_cast<char*>(memory.data()) + static_cast<size_t>(s.offset) * size;
    tensor->dtype = static_cast<int32_t>(dtype);
    const int64_t dense_shape[] = {batch, heads, tokens, dim}, dense_stride[] = {s.batch, s.head, s.token, s.dim};
    const int64_t packed_shape[] = {tokens, heads, dim}, packed_stride[] = {s.token, s.head, s.dim};
    tensor->ndim = case_.varlen() ? 3 : 4;
    for (int i = 0; i < tensor->ndim; ++i) {
        tensor->shape[i] = case_.varlen() ? packed_shape[i] : dense_shape[i];
        tensor->stride[i] = case_.varlen() ? packed_stride[i] : dense_stride[i];
    }
}

void Problem::make_lse() {
    const clary_tensor& q = params.q;
    const int64_t batch = case_.varlen() ? 1 : q.shape[0], heads = q.shape[1];
    const int64_t tokens = case_.varlen() ? q.shape[0] : q.shape[2];
    // One unused element behind each head's rows.
    Guarded& memory = outputs_.emplace_back(static_cast<size_t>(batch * heads * (tokens + 1)) * sizeof(float));
    clary_tensor& lse = params.lse;
    lse.data = memory.data();
    lse.dtype = CLARY_FP32;
    lse.ndim = case_.varlen() ? 2 : 3;
    const int64_t shape[] = {batch, heads, tokens}, stride[] = {heads * (tokens + 1), tokens + 1, 1};
    for (int i = 0; i < lse.ndim; ++i) {
        lse.shape[i] = shape[i + 3 - lse.ndim];
        lse.stride[i] = stride[i + 3 - lse.ndim];
    }
}

template <typename T>
void Problem::make_vector(DType dtype, const std::vector<T>& values, clary_tensor* tensor) {
    Guarded& memory = inputs_.emplace_back(values.size() * sizeof(T)).memory;
    if (!values.empty()) std::memcpy(memory.data(), values.data(), values.size() * sizeof(T));
    tensor->data = memory.data();
    tensor->dtype = static_cast<int32_t>(dtype);
    tensor->ndim = 1;
    tensor->shape[0] = static_cast<int64_t>(values.size());
    tensor->stride[0] = 1;
}

void Problem::make_sequences() {
    const Case& c = case_;
    const auto integers = [&](const std::vector<int64_t>& values, clary_tensor* tensor) {
        if (c.lengths_int64)
            make_vector(DType::kI64, values, tensor);
        else
            make_vector(DType::kI32, std::vector<int32_t>(values.begin(), values.end()), tensor);
    };
    const auto cumulative = [](const std::vector<int64_t>& lengths) {
        std::vector<int64_t> sums = {0};
        for (const int64_t length : lengths) sums.push_back(sums.back() + length);
        return sums;
    };
    if (c.varlen()) {
        integers(cumulative(c.seqlens_q), &params.cu_seqlens_q);
        integers(cumulative(c.seqlens_k), &params.cu_seqlens_k);
        if (c.give_max_seqlen) {
            params.max_seqlen_q = *std::max_element(c.seqlens_q.begin(), c.seqlens_q.end());
            params.max_seqlen_k = *std::max_element(c.seqlens_k.begin(), c.seqlens_k.end());
        }
    }
    if (!c.kv_lengths.empty()) integers(c.kv_lengths, &params.kv_lengths);
    if (!c.causal_offsets.empty()) make_vector(DType::kI64, c.causal_offsets, &params.causal_offsets);
    if (c.page_size > 0) {
        const int64_t pages = (c.kv_len + c.page_size - 1) / c.page_size;
        std::vector<int32_t> table(static_cast<size_t>(c.batch * pages));
        // A permutation of pages 1..n, so that page 0 and the last one stay unused.
        for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(table.size() - i);
        make_vector(DType::kI32, table, &params.block_table);
        params.block_table.ndim = 2;
        params.block_table.shape[0] = c.batch;
        params.block_table.shape[1] = pages;
        params.block_table.stride[0] = pages;
        params.block_table.stride[1] = 1;
    }
}

void Problem::fill_inputs(uint64_t seed) {
    fill(0, seed, params.q);
    fill(1, seed, params.k);
    fill(2, seed, params.v);
}

// Random values of a stream per tensor; keys past their sequence's length stay poisoned.
void Problem::fill(int which, uint64_t seed, const clary_tensor& tensor) {
    const Case& c = case_;
    const bool is_kv = which > 0;
    synthetic::Random random(seed, static_cast<uint64_t>(which));
    each_element(tensor, [&](const int64_t* index, char* at) {
        const int64_t batch = c.varlen() ? 0 : index[0], d = index[tensor.ndim - 1];
        int64_t token = c.varlen() ? index[0] : index[2];
        auto x = static_cast<float>(random.normal());
        if (is_kv && c.page_size > 0) {
            const int64_t pages = (c.kv_len + c.page_size - 1) / c.page_size, slot = c.batch * pages - batch;
            if (slot < 0 || slot >= c.batch * pages) return;  // an unused page
            token += slot % pages * c.page_size;
            if (token >= c.kv_lengths[static_cast<size_t>(slot / pages)]) return;
        } else if (is_kv && !c.kv_lengths.empty() && c.kv_layout != Layout::kBroadcastBatch &&
                   token >= c.kv_lengths[static_cast<size_t>(batch)]) {
            return;
        }
        const bool q = which == 0, k = which == 1, v = which == 2;
        switch (c.values) {
            case Values::kNormal:
                break;
            case Values::kZeroQ:
                x = q ? 0 : x;
                break;
            case Values::kZeroK:
                x = k ? 0 : x;
                break;
            case Values::kZeroV:
                x = v ? 0 : x;
                break;
            case Values::kConstantV:
                x = v ? 1100.0f : x;
                break;
            case Values::kZeroChannel:
                x = is_kv && d == 3 ? 0 : x;
                break;
            case Values::kLoudToken:
                x *= token == 19 ? 100.0f : 1.0f;
                break;
            case Values::kHugeV:
                x = v && (token * 31 + d) % 997 == 5 ? 1e5f : x;
                break;
            case Values::kTinyAll:
                x *= v ? 1e-3f : 1e-20f;
                break;
            case Values::kLargeK:
                x *= k ? 1e4f : 1.0f;
                break;
            case Values::kChannelBias:
                x += !v && d < 4 ? 20.0f : 0.0f;
                break;
            case Values::kAlternating:
                x = k && d == 7 ? (token % 2 == 0 ? 50.0f : -50.0f) : x;
                break;
            case Values::kEqualK:
                x = k ? std::sin(static_cast<float>(d)) : x;
                break;
            case Values::kSink:
                if (q) x += 1.0f;
                if (is_kv && token == 0) x = k ? 1.0f : 0.05f * x;
                break;
        }
        store_element(at, static_cast<DType>(tensor.dtype), x);
    });
}

void Problem::make_mask(uint64_t seed) {
    const Case& c = case_;
    constexpr DType kTypes[] = {DType::kNone, DType::kBool, DType::kF32, DType::kF16, DType::kBF16};
    const DType dtype = kTypes[static_cast<int>(c.mask)];
    const int64_t full[] = {c.batch, c.q_heads, c.q_len, c.kv_len};
    int64_t stride[4], extent[4], elements = 1;
    for (int axis = 4; axis-- > 0;) {
        extent[axis] = c.mask_axes[axis] ? full[axis] : 1;
        stride[axis] = c.mask_axes[axis] ? elements : 0;
        elements *= extent[axis];
    }
    Guarded& memory = inputs_.emplace_back(static_cast<size_t>(elements * dtype_size(dtype))).memory;
    clary_tensor& mask = params.mask;
    mask.data = memory.data();
    mask.dtype = static_cast<int32_t>(dtype);
    mask.ndim = c.mask_rank;
    for (int axis = 4 - c.mask_rank; axis < 4; ++axis) {
        const int to = axis - (4 - c.mask_rank);
        mask.shape[to] = c.mask_stride_zero ? full[axis] : extent[axis];
        mask.stride[to] = stride[axis];
    }
    synthetic::Random random(seed, 99);
    each_element(mask, [&](const int64_t* index, char* at) {
        const bool empty_row = c.mask_empty_rows && mask.ndim >= 2 && index[mask.ndim - 2] % 7 == 3;
        const bool visible = !c.mask_all && !empty_row && random.uniform() < 0.7;
        if (dtype == DType::kBool)
            *at = visible;
        else
            store_element(at, dtype, visible ? static_cast<float>(random.normal()) : -kInfinity);
    });
}

void Problem::freeze_inputs() {
    for (Input& input : inputs_) {
        const auto* bytes = static_cast<const unsigned char*>(input.memory.data());
        input.copy.assign(bytes, bytes + input.memory.size());
    }
}

void Problem::poison_outputs() {
    for (Guarded& output : outputs_) output.poison();
}

std::vector<Guarded*> Problem::memory() {
    std::vector<Guarded*> all;
    for (Input& input : inputs_) all.push_back(&input.memory);
    for (Guarded& output : outputs_) all.push_back(&output);
    return all;
}

Output Problem::output() const {
    return {read(params.out), params.lse.ndim > 0 ? read(params.lse) : std::vector<float>()};
}

std::vector<unsigned char> Problem::output_bytes() const {
    std::vector<unsigned char> bytes;
    for (const Guarded& output : outputs_) {
        const auto* from = static_cast<const unsigned char*>(output.data());
        bytes.insert(bytes.end(), from, from + output.size());
    }
    return bytes;
}

std::string Problem::damage() const {
    for (const Input& input : inputs_) {
        if (!input.memory.canaries_intact()) return "bytes around an input were written";
        if (!input.copy.empty() && std::memcmp(input.copy.data(), input.memory.data(), input.copy.size()) != 0)
            return "an input was written";
    }
    size_t i = 0;
    for (const Guarded& output : outputs_) {
        const char* const name = i == 0 ? "out" : "lse";
        const clary_tensor& tensor = i++ == 0 ? params.out : params.lse;
        if (!output.canaries_intact()) return std::string("bytes around ") + name + " were written";
        // Undo the elements; what is left must be untouched.
        std::vector<unsigned char> gaps(static_cast<const unsigned char*>(output.data()),
                                        static_cast<const unsigned char*>(output.data()) + output.size());
        const auto size = static_cast<size_t>(dtype_size(static_cast<DType>(tensor.dtype)));
        each_element(tensor, [&](const int64_t*, const char* at) {
            std::memset(gaps.data() + (at - static_cast<const char*>(output.data())), 0xff, size);
        });
        if (!std::all_of(gaps.begin(), gaps.end(), [](unsigned char byte) { return byte == 0xff; }))
            return std::string("a gap between the elements of ") + name + " was written";
    }
    return "";
}

float Problem::get(const clary_tensor& tensor, std::initializer_list<int64_t> index) const {
    const auto dtype = static_cast<DType>(tensor.dtype);
    return load_element(static_cast<const char*>(tensor.data) + offset_of(tensor, index.begin()) * dtype_size(dtype),
                        dtype);
}

void Problem::set(const clary_tensor& tensor, std::initializer_list<int64_t> index, float value) {
    const auto dtype = static_cast<DType>(tensor.dtype);
    store_element(static_cast<char*>(tensor.data) + offset_of(tensor, index.begin()) * dtype_size(dtype), dtype, value);
}

AttentionDesc desc_of(const clary_attention_params& params, const char* recipe) {
    clary_attention_params with = params;
    with.recipe = recipe;
    AttentionDesc desc;
    bool recipe_is_auto = false;
    const Status status = validate(with, Purpose::kAttention, &desc, &recipe_is_auto);
    if (!status.is_ok()) throw std::runtime_error(status.text());
    return desc;
}

AttentionDesc redirect(const AttentionDesc& desc, const clary_attention_params& params, Output* output) {
    AttentionDesc to = desc;
    const int64_t items = desc.varlen() ? 1 : desc.batch;
    output->out.assign(static_cast<size_t>(items * desc.q_heads * desc.q_tokens * desc.head_dim_v), NAN);
    output->lse.assign(static_cast<size_t>(items * desc.q_heads * desc.q_tokens), NAN);
    const int64_t dim = desc.head_dim_v;
    to.out = {output->out.data(), DType::kF32, desc.q_heads * desc.q_tokens * dim, desc.q_tokens * dim, dim, 1};
    if (desc.varlen()) to.out = {output->out.data(), DType::kF32, 0, dim, desc.q_heads * dim, 1};
    to.lse = output->lse.data();
    to.lse_batch_stride = desc.varlen() ? 0 : desc.q_heads * desc.q_tokens;
    to.lse_head_stride = desc.q_tokens;
    to.lse_token_stride = 1;
    to.want_lse = params.lse.ndim > 0;
    return to;
}

Output exact(const Problem& problem) {
    Output output;
    const AttentionDesc desc = redirect(desc_of(problem.params, "fp32_fp32"), problem.params, &output);
    const Status status = reference::attend_exact(desc, 1);
    if (!status.is_ok()) throw std::runtime_error(status.text());
    return output;
}

double relative_l1(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, sum = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        if (!std::isfinite(b[i])) continue;
        if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
        difference += std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        sum += std::fabs(static_cast<double>(b[i]));
    }
    return difference == 0 ? 0 : difference / sum;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
        const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        largest = std::isfinite(difference) ? std::max(largest, difference) : std::numeric_limits<double>::infinity();
    }
    return largest;
}

double largest_magnitude(const std::vector<float>& a) {
    double largest = 0;
    for (const float x : a)
        if (std::isfinite(x)) largest = std::max(largest, std::fabs(static_cast<double>(x)));
    return largest;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
        aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
        bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
    return ab / std::sqrt(aa * bb);
}

bool exhaustive() {
    const char* text = std::getenv("CLARY_EXHAUSTIVE");
    return text != nullptr && *text == '1';
}

}  // namespace clary::cases
