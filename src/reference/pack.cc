// SPDX-License-Identifier: Apache-2.0
#include "reference/pack.h"

#include <algorithm>
#include <string_view>

#include "numerics/digits.h"
#include "numerics/formats.h"

namespace clary::reference {
namespace {

// Element of a section of codes; all types of storage.
void store_code(const clary_section& to, void* buffer, int64_t index, float code) {
    char* const data = static_cast<char*>(buffer) + to.offset;
    switch (static_cast<DType>(to.dtype)) {
        case DType::kI8:
            reinterpret_cast<int8_t*>(data)[index] = static_cast<int8_t>(code);
            return;
        case DType::kE4M3:
            reinterpret_cast<numerics::E4m3*>(data)[index] = numerics::E4m3::from_float(code);
            return;
        case DType::kF16:
            reinterpret_cast<numerics::Fp16*>(data)[index] = numerics::Fp16::from_float(code);
            return;
        case DType::kBF16:
            reinterpret_cast<numerics::Bf16*>(data)[index] = numerics::Bf16::from_float(code);
            return;
        default:
            reinterpret_cast<float*>(data)[index] = code;
    }
}

// Element of a section, where the layout has it.
template <typename T>
void store(const PackedLayout& layout, void* buffer, std::string_view name, int64_t index, T value) {
    if (T* data = section<T>(layout, buffer, name)) data[index] = value;
}

}  // namespace

void pack_head(const AttentionDesc& desc, int64_t b, int64_t kv_head, const HeadOperands& o, void* q, void* kv,
               const Arrangement& arrangement) {
    const PackedLayout q_layout = packed_q_layout(desc, arrangement);
    const PackedLayout layout = packed_kv_layout(desc, 0, arrangement);
    const Sequence s = sequence_of(desc, b);
    const clary_section& q_codes = *find_section(q_layout, "q_codes");
    const clary_section& k_codes = *find_section(layout, "k_codes");
    const clary_section& v_codes = *find_section(layout, "v_codes");
    const int64_t width = k_codes.shape[3], width_v = v_codes.shape[3],
                  dim = arrangement.padded_dims(desc.head_dim, desc.head_dim_v).qk;
    const bool digits = arrangement.digit_columns && o.recipe.key_bias();
    const int64_t tile = o.recipe.tile, vectors = b * desc.kv_heads + kv_head;
    for (int64_t at = 0; at < o.heads * o.q_len; ++at) {
        const int64_t head = kv_head * o.heads + at / o.q_len;
        const int64_t row = packed_q_rows(desc).begin(b, head, desc.q_heads, s.q_begin) + at % o.q_len;
        const auto i = static_cast<size_t>(at);
        for (int64_t d = 0; d < o.dim; ++d)
            store_code(q_codes, q, row * width + d, o.q[i * static_cast<size_t>(o.dim) + static_cast<size_t>(d)]);
        for (int column = 0; digits && column < numerics::kDigitColumns; ++column)
            store_code(q_codes, q, row * width + dim + column, o.q_repeat[i]);
        store(q_layout, q, "q_scale", row, o.q_scale[i]);
        store(q_layout, q, "q_repeat", row, o.q_repeat[i]);
        store(q_layout, q, "q_shift", row, o.q_shift[i]);
    }
    store(layout, kv, "lengths", b, o.kv_len);
    const int64_t first = packed_kv_rows(desc, 0).begin(b, kv_head, desc.kv_heads, s.kv_begin);
    for (int64_t j = 0; j < o.kv_len; ++j) {
        const auto key = static_cast<size_t>(j);
        for (int64_t d = 0; d < o.dim; ++d)
            store_code(k_codes, kv, (first + j) * width + d, o.k[static_cast<size_t>(j * o.dim + d)]);
        for (int column = 0; digits && column < numerics::kDigitColumns; ++column)
            store_code(k_codes, kv, (first + j) * width + dim + column, numerics::digit(o.bias_units[key], column));
        store(layout, kv, "k_scale", first + j, o.k_scale[key]);
        store(layout, kv, "k_pair", (first + j) * 2, o.bias_units[key]);
        const int64_t begin = (first + j) / tile * tile, position = arrangement.v_place((first + j) % tile);
        for (int64_t d = 0; d < o.dim_v; ++d)
            store_code(
                v_codes, kv,
                o.recipe.v_scale == VScale::kNone ? (first + j) * width_v + d : begin * width_v + d * tile + position,
                o.v[static_cast<size_t>(j * o.dim_v + d)]);
        if (!o.v_weight.empty()) store(layout, kv, "v_weight", begin + position, o.v_weight[key]);
    }
    for (int64_t t = 0; t < o.tiles(); ++t)
        store(layout, kv, "tile_base", first / tile + t, o.tile_base[static_cast<size_t>(t)]);
    if (auto* const sums = section<int32_t>(layout, kv, "v_sum"))
        for (int64_t t = 0; t < o.tiles(); ++t)
            for (int64_t d = 0; d < o.dim_v; ++d) {
                float sum = 0;
                for (int64_t j = t * tile; j < std::min((t + 1) * tile, o.kv_len); ++j)
                    sum += o.v[static_cast<size_t>(j * o.dim_v + d)];
                sums[(first / tile + t) * width_v + d] = static_cast<int32_t>(sum);
            }
    for (int64_t d = 0; d < o.dim && o.recipe.quantized(); ++d) {
        const bool smooth_k = !o.c_k.empty();
        store(layout, kv, "c_k", vectors * dim + d, smooth_k ? o.c_k[static_cast<size_t>(d)] : 0.0f);
        store(layout, kv, "c_q", vectors * dim + d, o.c_q[static_cast<size_t>(d)]);
    }
    store(layout, kv, "q_base", vectors, o.q_base);
    for (size_t i = 0; i < o.v_scale.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        if (o.recipe.v_scale == VScale::kChannel)
            store(layout, kv, "v_scale", vectors * width_v + at, o.v_scale[i]);
        else if (o.recipe.v_scale == VScale::kChannelTile)
            store(layout, kv, "v_scale", (first / tile + at / o.dim_v) * width_v + at % o.dim_v, o.v_scale[i]);
        else
            store(layout, kv, "v_scale", first / tile + at, o.v_scale[i]);
    }
    for (size_t d = 0; d < o.v_mean.size(); ++d)
        store(layout, kv, "v_mean", vectors * width_v + static_cast<int64_t>(d), o.v_mean[d]);
}

}  // namespace clary::reference
