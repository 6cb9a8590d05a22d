// SPDX-License-Identifier: Apache-2.0
#include "core/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace clary {
namespace {

// Everything is below 2^40 along one axis and 2^46 elements in all, so that byte offsets in int64 cannot overflow.
constexpr int64_t kMaxExtent = int64_t{1} << 40;
constexpr int64_t kMaxElements = int64_t{1} << 46;
constexpr int64_t kMaxHeadDim = 65536;

std::string dtype_list(std::initializer_list<DType> allowed) {
    std::string text;
    for (const DType dtype : allowed) text += (text.empty() ? "" : ", ") + std::string(dtype_name(dtype));
    return text;
}

Status check_tensor(const char* name, const clary_tensor& t, std::initializer_list<DType> dtypes,
                    std::initializer_list<int> ranks, bool need_data) {
    const auto dtype = static_cast<DType>(t.dtype);
    bool rank_fits = false;
    for (const int rank : ranks) rank_fits |= t.ndim == rank;
    if (!rank_fits)
        return invalid_argument(fmt::format("{}: {} dimensions; allowed: {}", name, t.ndim, fmt::join(ranks, ", ")));
    bool dtype_fits = false;
    for (const DType allowed : dtypes) dtype_fits |= dtype == allowed;
    if (!dtype_fits)
        return invalid_argument(fmt::format("{}: dtype {} ({}) is not supported; allowed: {}", name, dtype_name(dtype),
                                            t.dtype, dtype_list(dtypes)));
    if (t.device < 0 || t.device > CLARY_MACA)
        return invalid_argument(fmt::format("{}: device {}; allowed: 0 (cpu), 1 (cuda), 2 (maca)", name, t.device));
    int64_t elements = 1;
    bool empty = false;
    for (int i = 0; i < t.ndim; ++i) {
        if (t.shape[i] < 0 || t.shape[i] > kMaxExtent)
            return invalid_argument(fmt::format("{}: shape[{}] is {}; allowed: 0..2^40", name, i, t.shape[i]));
        if (elements > kMaxElements / std::max<int64_t>(t.shape[i], 1))
            return invalid_argument(
                fmt::format("{}: shape {} has more than 2^46 elements", name, shape_text(view_of(t))));
        elements *= std::max<int64_t>(t.shape[i], 1);  // an empty axis must not hide the others
        empty |= t.shape[i] == 0;
    }
    int64_t reach = 0;  // elements from the first to the farthest one
    for (int i = 0; i < t.ndim; ++i) {
        int64_t span = 0;
        if (t.stride[i] < -kMaxElements || t.stride[i] > kMaxElements ||
            __builtin_mul_overflow(std::max<int64_t>(t.shape[i] - 1, 0), std::abs(t.stride[i]), &span) ||
            __builtin_add_overflow(reach, span, &reach) || reach > kMaxElements)
            return invalid_argument(
                fmt::format("{}: stride[{}] is {} along {} elements; allowed: a tensor that spans less "
                            "than 2^46 elements",
                            name, i, t.stride[i], t.shape[i]));
    }
    if (need_data && !empty && t.data == nullptr) return invalid_argument(fmt::format("{}: data is null", name));
    const auto size = static_cast<uintptr_t>(dtype_size(dtype));
    if (reinterpret_cast<uintptr_t>(t.data) % size != 0)
        return invalid_argument(
            fmt::format("{}: data {} is not aligned to its {} bytes an element", name, fmt::ptr(t.data), size));
    return Status::ok();
}

Status check_extent(const char* name, const char* axis, int64_t value, const char* like, int64_t expected) {
    if (value == expected) return Status::ok();
    return invalid_argument(fmt::format("{}: {} is {}, but {} {}", name, axis, value, like, expected));
}

// Along an axis with more than one element, stride 0 would make several results share one place.
Status check_writable(const char* name, const clary_tensor& t) {
    for (int i = 0; i < t.ndim; ++i)
        if (t.shape[i] == 0) return Status::ok();  // nothing will be written; strides of empty tensors are often 0
    for (int i = 0; i < t.ndim; ++i)
        if (t.shape[i] > 1 && t.stride[i] == 0)
            return invalid_argument(
                fmt::format("{}: stride[{}] is 0 along {} elements; an output cannot broadcast", name, i, t.shape[i]));
    return Status::ok();
}

// One validation run: params in, desc out, member functions by topic.
class Validator {
  public:
    Validator(const clary_attention_params& params, Purpose purpose, AttentionDesc* desc)
        : p_(params), purpose_(purpose), d_(*desc) {}

    Status run() {
        CLARY_RETURN_IF_ERROR(shapes());
        CLARY_RETURN_IF_ERROR(check_size(d_, d_.kv_len));
        CLARY_RETURN_IF_ERROR(outputs());
        CLARY_RETURN_IF_ERROR(scale());
        CLARY_RETURN_IF_ERROR(causal_and_window());
        CLARY_RETURN_IF_ERROR(biases());
        CLARY_RETURN_IF_ERROR(smoothing_vectors());
        CLARY_RETURN_IF_ERROR(devices());
        return contents();
    }

  private:
    static constexpr std::initializer_list<DType> kFloats = {DType::kF32, DType::kF16, DType::kBF16};
    static constexpr std::initializer_list<DType> kIntegers = {DType::kI32, DType::kI64};

    bool sides_need_data() const { return purpose_ != Purpose::kShapes; }

    Status shapes() {
        const bool varlen = p_.cu_seqlens_q.ndim != 0 || p_.cu_seqlens_k.ndim != 0;
        const bool paged = p_.block_table.ndim != 0;
        const int rank = varlen ? 3 : 4;
        const bool need = purpose_ == Purpose::kAttention;
        CLARY_RETURN_IF_ERROR(check_tensor("q", p_.q, kFloats, {rank}, need));
        CLARY_RETURN_IF_ERROR(check_tensor("k", p_.k, kFloats, {rank}, need || purpose_ == Purpose::kAppend));
        CLARY_RETURN_IF_ERROR(check_tensor("v", p_.v, kFloats, {rank}, need || purpose_ == Purpose::kAppend));
        const int head_axis = 1, token_axis = varlen ? 0 : 2, dim_axis = rank - 1;
        d_.q_heads = p_.q.shape[head_axis];
        d_.kv_heads = p_.k.shape[head_axis];
        d_.head_dim = p_.q.shape[dim_axis];
        d_.head_dim_v = p_.v.shape[dim_axis];
        d_.q_tokens = p_.q.shape[token_axis];
        d_.kv_tokens = p_.k.shape[token_axis];
        CLARY_RETURN_IF_ERROR(check_extent("k", "head_dim", p_.k.shape[dim_axis], "q has", d_.head_dim));
        CLARY_RETURN_IF_ERROR(check_extent("v", "heads", p_.v.shape[head_axis], "k has", d_.kv_heads));
        CLARY_RETURN_IF_ERROR(check_extent("v", "tokens", p_.v.shape[token_axis], "k has", d_.kv_tokens));
        for (const auto& [name, value] : {std::pair{"q: head_dim", d_.head_dim}, {"v: head_dim", d_.head_dim_v}})
            if (value < 1 || value > kMaxHeadDim)
                return invalid_argument(fmt::format("{} is {}; allowed: 1..{}", name, value, kMaxHeadDim));
        if (d_.kv_heads < 1 || d_.q_heads < 1 || d_.q_heads % d_.kv_heads != 0)
            return invalid_argument(
                fmt::format("q: heads {} are not a multiple of the {} heads of k; allowed: a "
                            "positive multiple",
                            d_.q_heads, d_.kv_heads));
        if (varlen) return varlen_shapes(paged);
        if (p_.max_seqlen_q != 0 || p_.max_seqlen_k != 0)
            return invalid_argument("max_seqlen_q, max_seqlen_k: given without cu_seqlens_q; allowed: 0");
        d_.batch = p_.q.shape[0];
        d_.q_len = d_.q_tokens;
        d_.kv_len = d_.kv_tokens;
        if (paged) return paged_shapes();
        CLARY_RETURN_IF_ERROR(check_extent("k", "batch", p_.k.shape[0], "q has", d_.batch));
        CLARY_RETURN_IF_ERROR(check_extent("v", "batch", p_.v.shape[0], "q has", d_.batch));
        operands({0, 1, 2, 3});
        return Status::ok();
    }

    Status varlen_shapes(bool paged) {
        if (paged) return invalid_argument("block_table: not allowed together with cu_seqlens_q");
        CLARY_RETURN_IF_ERROR(check_tensor("cu_seqlens_q", p_.cu_seqlens_q, kIntegers, {1}, sides_need_data()));
        CLARY_RETURN_IF_ERROR(check_tensor("cu_seqlens_k", p_.cu_seqlens_k, kIntegers, {1}, sides_need_data()));
        d_.batch = p_.cu_seqlens_q.shape[0] - 1;
        if (d_.batch < 0) return invalid_argument("cu_seqlens_q: 0 entries; allowed: sequences + 1");
        CLARY_RETURN_IF_ERROR(
            check_extent("cu_seqlens_k", "length", p_.cu_seqlens_k.shape[0], "cu_seqlens_q has", d_.batch + 1));
        for (const auto& [name, value] :
             {std::pair{"max_seqlen_q", p_.max_seqlen_q}, {"max_seqlen_k", p_.max_seqlen_k}})
            if (value < 0 || value > kMaxExtent)
                return invalid_argument(fmt::format("{}: {}; allowed: 0 (found) or up to 2^40", name, value));
        d_.cu_seqlens_q = view_of(p_.cu_seqlens_q);
        d_.cu_seqlens_k = view_of(p_.cu_seqlens_k);
        d_.q_len = p_.max_seqlen_q > 0 ? std::min(p_.max_seqlen_q, d_.q_tokens) : d_.q_tokens;
        d_.kv_len = p_.max_seqlen_k > 0 ? std::min(p_.max_seqlen_k, d_.kv_tokens) : d_.kv_tokens;
        operands({-1, 1, 0, 2});
        return Status::ok();
    }

    Status paged_shapes() {
        CLARY_RETURN_IF_ERROR(check_tensor("block_table", p_.block_table, kIntegers, {2}, sides_need_data()));
        CLARY_RETURN_IF_ERROR(check_extent("block_table", "batch", p_.block_table.shape[0], "q has", d_.batch));
        CLARY_RETURN_IF_ERROR(check_extent("v", "pages", p_.v.shape[0], "k has", p_.k.shape[0]));
        d_.page_size = p_.k.shape[2];
        if (d_.page_size < 1) return invalid_argument("k: page size is 0; allowed: >= 1");
        if (p_.kv_lengths.ndim == 0) return invalid_argument("kv_lengths: must be given together with block_table");
        d_.block_table = view_of(p_.block_table);
        if (p_.block_table.shape[1] > kMaxExtent / d_.page_size)
            return invalid_argument(fmt::format("block_table: {} pages of {} keys; allowed: 2^40 keys in all",
                                                p_.block_table.shape[1], d_.page_size));
        d_.kv_len = p_.block_table.shape[1] * d_.page_size;
        d_.kv_tokens = d_.kv_len;
        operands({0, 1, 2, 3});
        return Status::ok();
    }

    struct Axes {
        int batch, head, token, dim;  // batch -1: none
    };
    static Operand operand(const clary_tensor& t, Axes axes) {
        return {t.data,
                static_cast<DType>(t.dtype),
                axes.batch < 0 ? 0 : t.stride[axes.batch],
                t.stride[axes.head],
                t.stride[axes.token],
                t.stride[axes.dim]};
    }
    void operands(Axes axes) {
        axes_ = axes;
        d_.q = operand(p_.q, axes);
        d_.k = operand(p_.k, axes);
        d_.v = operand(p_.v, axes);
    }

    Status outputs() {
        const bool need = purpose_ == Purpose::kAttention || purpose_ == Purpose::kAttend;
        if (p_.out.ndim == 0) {
            if (need) return invalid_argument("out: not given");
        } else {
            CLARY_RETURN_IF_ERROR(check_tensor("out", p_.out, kFloats, {d_.varlen() ? 3 : 4}, need));
            CLARY_RETURN_IF_ERROR(check_writable("out", p_.out));
            if (axes_.batch >= 0)
                CLARY_RETURN_IF_ERROR(check_extent("out", "batch", p_.out.shape[axes_.batch], "q has", d_.batch));
            CLARY_RETURN_IF_ERROR(check_extent("out", "heads", p_.out.shape[axes_.head], "q has", d_.q_heads));
            CLARY_RETURN_IF_ERROR(check_extent("out", "tokens", p_.out.shape[axes_.token], "q has", d_.q_tokens));
            CLARY_RETURN_IF_ERROR(check_extent("out", "head_dim", p_.out.shape[axes_.dim], "v has", d_.head_dim_v));
            d_.out = operand(p_.out, axes_);
        }
        if (p_.lse.ndim == 0) return Status::ok();
        const bool varlen = d_.varlen();
        CLARY_RETURN_IF_ERROR(check_tensor("lse", p_.lse, {DType::kF32}, {varlen ? 2 : 3}, need));
        CLARY_RETURN_IF_ERROR(check_writable("lse", p_.lse));
        const int first = varlen ? 0 : 1;
        if (!varlen) CLARY_RETURN_IF_ERROR(check_extent("lse", "batch", p_.lse.shape[0], "q has", d_.batch));
        CLARY_RETURN_IF_ERROR(check_extent("lse", "heads", p_.lse.shape[first], "q has", d_.q_heads));
        CLARY_RETURN_IF_ERROR(check_extent("lse", "tokens", p_.lse.shape[first + 1], "q has", d_.q_tokens));
        d_.want_lse = true;
        d_.lse = static_cast<float*>(p_.lse.data);
        d_.lse_batch_stride = varlen ? 0 : p_.lse.stride[0];
        d_.lse_head_stride = p_.lse.stride[first];
        d_.lse_token_stride = p_.lse.stride[first + 1];
        return Status::ok();
    }

    Status scale() {
        if (p_.has_scale == 0) {
            if (p_.scale != 0)
                return invalid_argument(
                    fmt::format("scale: {} is given but has_scale is 0; set has_scale to 1", p_.scale));
            d_.scale = 1.0 / std::sqrt(static_cast<double>(d_.head_dim));
            return Status::ok();
        }
        const double size = std::fabs(p_.scale);
        if (!(size == 0 || (size >= 1e-20 && size <= 1e20)))
            return invalid_argument(fmt::format("scale: {}; allowed: 0, or 1e-20 to 1e20 with either sign", p_.scale));
        d_.scale = p_.scale;
        return Status::ok();
    }

    Status causal_and_window() {
        if (p_.causal < CLARY_CAUSAL_NONE || p_.causal > CLARY_CAUSAL_OFFSET)
            return invalid_argument(
                fmt::format("causal: {}; allowed: 0 (none), 1 (top_left), 2 (bottom_right), "
                            "3 (offset)",
                            p_.causal));
        d_.causal = static_cast<Causal>(p_.causal);
        const bool by_offset = d_.causal == Causal::kOffset;
        if (!by_offset && (p_.causal_offset != 0 || p_.causal_offsets.ndim != 0))
            return invalid_argument(
                fmt::format("causal_offset: given with causal {}; allowed with 3 (offset) only", p_.causal));
        if (p_.causal_offset < -kMaxExtent || p_.causal_offset > kMaxExtent)
            return invalid_argument(fmt::format("causal_offset: {}; allowed: within +-2^40", p_.causal_offset));
        d_.causal_offset = p_.causal_offset;
        if (p_.causal_offsets.ndim != 0) {
            if (p_.causal_offset != 0)
                return invalid_argument(
                    fmt::format("causal_offset: {} is given together with causal_offsets; allowed: one "
                                "of the two",
                                p_.causal_offset));
            CLARY_RETURN_IF_ERROR(check_tensor("causal_offsets", p_.causal_offsets, kIntegers, {1}, sides_need_data()));
            CLARY_RETURN_IF_ERROR(
                check_extent("causal_offsets", "length", p_.causal_offsets.shape[0], "the batch is", d_.batch));
            d_.causal_offsets = view_of(p_.causal_offsets);
        }
        if (p_.has_window == 0) {
            if (p_.window_left != 0 || p_.window_right != 0 || p_.window_keep != 0)
                return invalid_argument("window: given but has_window is 0; set has_window to 1");
            return Status::ok();
        }
        for (const auto& [name, value] : {std::pair{"window_left", p_.window_left}, {"window_right", p_.window_right}})
            if (value < -1 || value > kMaxExtent)
                return invalid_argument(fmt::format("{}: {}; allowed: -1 (unlimited) or 0..2^40", name, value));
        if (p_.window_keep < 0 || p_.window_keep > kMaxExtent)
            return invalid_argument(fmt::format("window_keep: {}; allowed: 0..2^40", p_.window_keep));
        d_.window = {true, p_.window_left, p_.window_right, p_.window_keep};
        return Status::ok();
    }

    Status biases() {
        if (p_.mask.ndim != 0) CLARY_RETURN_IF_ERROR(mask());
        if (p_.kv_lengths.ndim != 0) {
            if (d_.varlen()) return invalid_argument("kv_lengths: not allowed together with cu_seqlens_k");
            CLARY_RETURN_IF_ERROR(check_tensor("kv_lengths", p_.kv_lengths, kIntegers, {1}, sides_need_data()));
            CLARY_RETURN_IF_ERROR(
                check_extent("kv_lengths", "length", p_.kv_lengths.shape[0], "the batch is", d_.batch));
            d_.kv_lengths = view_of(p_.kv_lengths);
        }
        for (const auto& [name, tensor, view] :
             {std::tuple{"alibi_slopes", &p_.alibi_slopes, &d_.alibi_slopes}, {"sinks", &p_.sinks, &d_.sinks}}) {
            if (tensor->ndim == 0) continue;
            CLARY_RETURN_IF_ERROR(check_tensor(name, *tensor, {DType::kF32}, {1}, sides_need_data()));
            CLARY_RETURN_IF_ERROR(check_extent(name, "length", tensor->shape[0], "q has heads", d_.q_heads));
            *view = view_of(*tensor);
        }
        return Status::ok();
    }

    // Right-aligned broadcasting, as in PyTorch: missing leading axes and axes of extent 1 repeat.
    Status mask() {
        if (d_.varlen()) return invalid_argument("mask: not allowed together with cu_seqlens_q");
        CLARY_RETURN_IF_ERROR(check_tensor("mask", p_.mask, {DType::kBool, DType::kF32, DType::kF16, DType::kBF16},
                                           {1, 2, 3, 4}, sides_need_data()));
        const int64_t full[4] = {d_.batch, d_.q_heads, d_.q_len, d_.kv_len};
        TensorView& view = d_.mask;
        view = view_of(p_.mask);
        view.ndim = 4;
        for (int axis = 0; axis < 4; ++axis) {
            const int from = axis - (4 - p_.mask.ndim);
            const int64_t extent = from < 0 ? 1 : p_.mask.shape[from];
            if (extent != 1 && extent != full[axis])
                return invalid_argument(fmt::format("mask: shape {} does not broadcast to [{}]",
                                                    shape_text(view_of(p_.mask)), fmt::join(full, ", ")));
            view.shape[axis] = full[axis];
            view.stride[axis] = extent == 1 ? 0 : p_.mask.stride[from];
        }
        d_.mask_kind = view.dtype == DType::kBool ? MaskKind::kBoolean : MaskKind::kAdditive;
        return Status::ok();
    }

    Status smoothing_vectors() {
        for (const auto& [name, tensor, view] :
             {std::tuple{"c_k", &p_.c_k, &d_.c_k}, {"c_q", &p_.c_q, &d_.c_q}, {"q_base", &p_.q_base, &d_.q_base}}) {
            if (tensor->ndim == 0) continue;
            const bool used = view == &d_.c_k   ? d_.recipe.smooth_k
                              : view == &d_.c_q ? d_.recipe.smooth_q
                                                : d_.recipe.key_bias();
            if (!used)
                return invalid_argument(fmt::format("{}: given, but recipe {} has no use for it; allowed: with {}",
                                                    name, recipe_text(d_.recipe),
                                                    view == &d_.c_k   ? "smooth_k"
                                                    : view == &d_.c_q ? "smooth_q"
                                                                      : "smooth_q or v_scale=token"));
            const bool vector = view != &d_.q_base;
            CLARY_RETURN_IF_ERROR(check_tensor(name, *tensor, {DType::kF32}, {vector ? 3 : 2}, sides_need_data()));
            CLARY_RETURN_IF_ERROR(check_extent(name, "batch", tensor->shape[0], "the batch is", d_.batch));
            CLARY_RETURN_IF_ERROR(check_extent(name, "heads", tensor->shape[1], "k has", d_.kv_heads));
            if (vector) CLARY_RETURN_IF_ERROR(check_extent(name, "head_dim", tensor->shape[2], "q has", d_.head_dim));
            *view = view_of(*tensor);
        }
        return Status::ok();
    }

    Status devices() {
        d_.device = static_cast<DeviceType>(p_.q.device);
        d_.device_index = p_.q.device_index;
        const std::pair<const char*, const clary_tensor*> all[] = {{"k", &p_.k},
                                                                   {"v", &p_.v},
                                                                   {"out", &p_.out},
                                                                   {"lse", &p_.lse},
                                                                   {"mask", &p_.mask},
                                                                   {"kv_lengths", &p_.kv_lengths},
                                                                   {"alibi_slopes", &p_.alibi_slopes},
                                                                   {"sinks", &p_.sinks},
                                                                   {"cu_seqlens_q", &p_.cu_seqlens_q},
                                                                   {"cu_seqlens_k", &p_.cu_seqlens_k},
                                                                   {"block_table", &p_.block_table},
                                                                   {"causal_offsets", &p_.causal_offsets},
                                                                   {"c_k", &p_.c_k},
                                                                   {"c_q", &p_.c_q},
                                                                   {"q_base", &p_.q_base}};
        for (const auto& [name, tensor] : all)
            if (tensor->ndim != 0 && (tensor->device != p_.q.device || tensor->device_index != p_.q.device_index))
                return invalid_argument(fmt::format("{}: on device {}:{}, but q is on {}:{}", name, tensor->device,
                                                    tensor->device_index, p_.q.device, p_.q.device_index));
        return Status::ok();
    }

    // What can be read on the host is checked to the end, so that a wrong table never becomes a wild address. What lies
    // on a GPU is not read here: that would wait for its stream. clary.h says so.
    Status contents() {
        if (d_.device != DeviceType::kCpu) return Status::ok();
        // Sizes follow the longest sequence: where the lengths are there, explain and the size queries read them too.
        const bool shapes_only = purpose_ == Purpose::kShapes;
        if (d_.varlen() && !(shapes_only && (!d_.cu_seqlens_q.data || !d_.cu_seqlens_k.data))) {
            CLARY_RETURN_IF_ERROR(cumulative("cu_seqlens_q", d_.cu_seqlens_q, d_.q_tokens, p_.max_seqlen_q, &d_.q_len));
            CLARY_RETURN_IF_ERROR(
                cumulative("cu_seqlens_k", d_.cu_seqlens_k, d_.kv_tokens, p_.max_seqlen_k, &d_.kv_len));
        }
        if (shapes_only) return Status::ok();
        CLARY_RETURN_IF_ERROR(finite_vectors());
        if (d_.causal_offsets.given())
            for (int64_t b = 0; b < d_.batch; ++b) {
                const int64_t offset = integer_at(d_.causal_offsets, b);
                if (offset < -kMaxExtent || offset > kMaxExtent)
                    return invalid_argument(fmt::format("causal_offsets[{}]: {}; allowed: within +-2^40", b, offset));
            }
        if (!d_.kv_lengths.given()) return Status::ok();
        for (int64_t b = 0; b < d_.batch; ++b) {
            const int64_t length = integer_at(d_.kv_lengths, b);
            if (length < 0 || length > d_.kv_len)
                return invalid_argument(fmt::format("kv_lengths[{}]: {}; allowed: 0..{}", b, length, d_.kv_len));
            for (int64_t page = 0; d_.page_size > 0 && page * d_.page_size < length; ++page) {
                const int64_t entry = integer_at(d_.block_table, b, page);
                if (entry < 0 || entry >= p_.k.shape[0])
                    return invalid_argument(
                        fmt::format("block_table[{}][{}]: {}; allowed: 0..{}", b, page, entry, p_.k.shape[0] - 1));
            }
        }
        return Status::ok();
    }

    Status finite_vectors() const {
        for (const auto& [name, vector] : {std::pair{"c_k", &d_.c_k}, {"c_q", &d_.c_q}, {"q_base", &d_.q_base}}) {
            if (!vector->given()) continue;
            const int64_t dims = vector->ndim > 2 ? vector->shape[2] : 1;
            for (int64_t i = 0; i < d_.batch * d_.kv_heads * dims; ++i) {
                const int64_t b = i / dims / d_.kv_heads, h = i / dims % d_.kv_heads;
                const float value = static_cast<const float*>(
                    vector->data)[b * vector->stride[0] + h * vector->stride[1] + i % dims * vector->stride[2]];
                const bool positive = vector != &d_.q_base || value > 0;
                if (!std::isfinite(value) || !positive)
                    return invalid_argument(fmt::format("{}: {} at sequence {}, head {}; allowed: finite{} numbers",
                                                        name, value, b, h, vector == &d_.q_base ? " positive" : ""));
            }
        }
        return Status::ok();
    }

    static Status cumulative(const char* name, const TensorView& cu, int64_t tokens, int64_t given_max,
                             int64_t* longest) {
        const int64_t batch = cu.shape[0] - 1;
        if (integer_at(cu, 0) != 0)
            return invalid_argument(fmt::format("{}[0]: {}; allowed: 0", name, integer_at(cu, 0)));
        int64_t found = 0;
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t length = integer_at(cu, b + 1) - integer_at(cu, b);
            if (length < 0)
                return invalid_argument(fmt::format("{}[{}]: {} is less than {} before it; allowed: not decreasing",
                                                    name, b + 1, integer_at(cu, b + 1), integer_at(cu, b)));
            found = std::max(found, length);
        }
        if (integer_at(cu, batch) != tokens)
            return invalid_argument(fmt::format("{}[{}]: {}; allowed: the {} tokens of the tensor", name, batch,
                                                integer_at(cu, batch), tokens));
        if (given_max > 0 && found > given_max)
            return invalid_argument(
                fmt::format("{}: a sequence of {} tokens is longer than the given maximum {}", name, found, given_max));
        *longest = found;
        return Status::ok();
    }

    const clary_attention_params& p_;
    Purpose purpose_;
    AttentionDesc& d_;
    Axes axes_{};
};

}  // namespace

TensorView view_of(const clary_tensor& tensor) {
    TensorView view{tensor.data,
                    static_cast<DType>(tensor.dtype),
                    static_cast<DeviceType>(tensor.device),
                    tensor.device_index,
                    tensor.ndim,
                    {},
                    {}};
    for (int i = 0; i < kMaxDims; ++i) {
        view.shape[i] = tensor.shape[i];
        view.stride[i] = tensor.stride[i];
    }
    return view;
}

Status validate(const clary_attention_params& params, Purpose purpose, AttentionDesc* desc, bool* recipe_is_auto) {
    CLARY_RETURN_IF_ERROR(check_struct_size("params", params.struct_size, sizeof(params)));
    const auto* const bytes = reinterpret_cast<const unsigned char*>(&params);
    for (size_t i = sizeof(params); i < params.struct_size; ++i)
        if (bytes[i] != 0)
            return unsupported(
                fmt::format("params: byte {} behind the {} that version {}.{} knows is set; allowed: fields "
                            "of this version",
                            i, sizeof(params), CLARY_VERSION_MAJOR, CLARY_VERSION_MINOR));
    AttentionDesc made;
    const std::string_view recipe = params.recipe ? params.recipe : "auto";
    *recipe_is_auto = recipe == "auto";
    if (*recipe_is_auto)
        made.recipe = preset_recipe(kAutoRecipes[0].qk, kAutoRecipes[0].pv, Preset::kAccurate);
    else
        CLARY_RETURN_IF_ERROR(parse_recipe(recipe, &made.recipe));
    CLARY_RETURN_IF_ERROR(Validator(params, purpose, &made).run());
    *desc = made;
    return Status::ok();
}

Status check_size(const AttentionDesc& desc, int64_t kv_len) {
    constexpr double kMaxPadded = 0x1p50;  // elements; times their bytes, and summed up, far below 2^63
    const auto elements = [&](int64_t heads, int64_t length, int64_t dim) {
        return static_cast<double>(desc.batch) * static_cast<double>(heads) * static_cast<double>(length + 256) *
               static_cast<double>(dim + 16);
    };
    const int64_t dim = std::max(desc.head_dim, desc.head_dim_v);
    if (elements(desc.q_heads, desc.q_len, dim) <= kMaxPadded && elements(desc.kv_heads, kv_len, dim) <= kMaxPadded)
        return Status::ok();
    return invalid_argument(
        fmt::format("q, k: {} sequences of {} queries and {} keys, {} heads of {}; allowed: "
                    "less than 2^50 elements in all",
                    desc.batch, desc.q_len, kv_len, desc.q_heads, dim));
}

Status check_struct_size(const char* name, uint32_t given, size_t known) {
    constexpr size_t kLargest = 1 << 16;  // a size beyond it is an unset field, not a later version
    if (given >= known && given <= kLargest) return Status::ok();
    return invalid_argument(
        fmt::format("{}: struct_size {}; allowed: {} (sizeof the struct of this version's header), or "
                    "more of a later one",
                    name, given, known));
}

Status validate_merge(const clary_merge_params& p) {
    const int rank = p.out_a.ndim;
    for (const auto& [name, tensor] : {std::pair{"out_a", &p.out_a}, {"out_b", &p.out_b}})
        CLARY_RETURN_IF_ERROR(check_tensor(name, *tensor, {DType::kF32, DType::kF16, DType::kBF16}, {3, 4}, true));
    for (const auto& [name, tensor] : {std::pair{"lse_a", &p.lse_a}, {"lse_b", &p.lse_b}})
        CLARY_RETURN_IF_ERROR(check_tensor(name, *tensor, {DType::kF32}, {rank - 1}, true));
    CLARY_RETURN_IF_ERROR(check_writable("out_a", p.out_a));
    CLARY_RETURN_IF_ERROR(check_writable("lse_a", p.lse_a));
    if (p.out_b.ndim != rank)
        return invalid_argument(fmt::format("out_b: {} dimensions, but out_a has {}", p.out_b.ndim, rank));
    static constexpr const char* kDense[] = {"batch", "heads", "tokens", "head_dim"};
    static constexpr const char* kPacked[] = {"tokens", "heads", "head_dim"};
    for (int axis = 0; axis < rank; ++axis) {
        const char* const name = rank == 4 ? kDense[axis] : kPacked[axis];
        CLARY_RETURN_IF_ERROR(check_extent("out_b", name, p.out_b.shape[axis], "out_a has", p.out_a.shape[axis]));
        if (axis == rank - 1) break;
        // lse of packed sequences is [H, T], out is [T, H, D].
        const int lse_axis = rank == 4 ? axis : 1 - axis;
        for (const auto& [lse_name, lse] : {std::pair{"lse_a", &p.lse_a}, {"lse_b", &p.lse_b}})
            CLARY_RETURN_IF_ERROR(check_extent(lse_name, name, lse->shape[lse_axis], "out_a has", p.out_a.shape[axis]));
    }
    for (const auto& [name, tensor] :
         {std::pair{"out_a", &p.out_a}, {"lse_a", &p.lse_a}, {"out_b", &p.out_b}, {"lse_b", &p.lse_b}})
        if (tensor->device != p.out_a.device || tensor->device_index != p.out_a.device_index)
            return invalid_argument(fmt::format("{}: on device {}:{}, but out_a is on {}:{}", name, tensor->device,
                                                tensor->device_index, p.out_a.device, p.out_a.device_index));
    return Status::ok();
}

}  // namespace clary
