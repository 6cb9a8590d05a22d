// SPDX-License-Identifier: Apache-2.0
#include "reference/unpack.h"

#include <cmath>
#include <string_view>

#include "numerics/digits.h"
#include "numerics/formats.h"
#include "reference/oracle.h"
#include "reference/parallel.h"
#include "reference/rows.h"

namespace clary::reference {
namespace {

// A named array of codes of any storage type, read as fp32.
class Codes {
  public:
    Codes(const PackedLayout& layout, const void* buffer, std::string_view name)
        : data_(section<char>(layout, buffer, name)) {
        const clary_section* const found = find_section(layout, name);
        dtype_ = static_cast<DType>(found->dtype);
        columns_ = found->shape[3];
    }
    // Of a row; of V in tiles: channels.
    int64_t columns() const { return columns_; }
    float operator[](int64_t index) const {
        switch (dtype_) {
            case DType::kI8:
                return reinterpret_cast<const int8_t*>(data_)[index];
            case DType::kE4M3:
                return reinterpret_cast<const numerics::E4m3*>(data_)[index].to_float();
            case DType::kF16:
                return reinterpret_cast<const numerics::Fp16*>(data_)[index].to_float();
            case DType::kBF16:
                return reinterpret_cast<const numerics::Bf16*>(data_)[index].to_float();
            default:
                return reinterpret_cast<const float*>(data_)[index];
        }
    }

  private:
    const char* data_;
    DType dtype_ = DType::kNone;
    int64_t columns_ = 0;
};

// Sum of the digits that are the last columns of a row of K.
int16_t units_of_digits(const Codes& codes, int64_t row) {
    float units = 0;
    for (int64_t column = codes.columns() - numerics::kDigitColumns; column < codes.columns(); ++column)
        units += codes[row * codes.columns() + column];
    return static_cast<int16_t>(units);
}

void unpack_q(const AttentionDesc& desc, const PackedLayout& layout, const void* buffer, const Sequence& sequence,
              int64_t b, int64_t kv_head, HeadOperands* o) {
    const Codes codes(layout, buffer, "q_codes");
    const auto* scale = section<float>(layout, buffer, "q_scale");
    const auto* repeat = section<uint8_t>(layout, buffer, "q_repeat");
    const auto* shift = section<float>(layout, buffer, "q_shift");
    const int64_t width = codes.columns();
    for (int64_t g = 0; g < o->heads; ++g) {
        const int64_t head = kv_head * o->heads + g;
        const int64_t begin = packed_q_rows(desc).begin(b, head, desc.q_heads, sequence.q_begin);
        for (int64_t row = begin; row < begin + o->q_len; ++row) {
            for (int64_t d = 0; d < o->dim; ++d) o->q.push_back(codes[row * width + d]);
            o->q_scale.push_back(scale != nullptr ? scale[row] : 1.0f);
            o->q_repeat.push_back(repeat != nullptr ? repeat[row] : uint8_t{0});
            o->q_shift.push_back(shift != nullptr ? shift[row] : 0.0f);
        }
    }
}

void unpack_k(const PackedLayout& layout, const void* buffer, int64_t first_row, int64_t vectors_row, HeadOperands* o) {
    const Codes codes(layout, buffer, "k_codes");
    const auto* scale = section<float>(layout, buffer, "k_scale");
    const auto* pair = section<int16_t>(layout, buffer, "k_pair");
    const auto* base = section<float>(layout, buffer, "tile_base");
    const int64_t width = codes.columns();
    const bool digits = o->recipe.key_bias() && pair == nullptr;
    for (int64_t row = first_row; row < first_row + o->kv_len; ++row) {
        for (int64_t d = 0; d < o->dim; ++d) o->k.push_back(codes[row * width + d]);
        o->k_scale.push_back(scale != nullptr ? scale[row] : 1.0f);
        o->bias_units.push_back(pair != nullptr ? pair[row * 2] : digits ? units_of_digits(codes, row) : int16_t{0});
    }
    for (int64_t tile = 0; tile < o->tiles(); ++tile)
        o->tile_base.push_back(base != nullptr ? base[first_row / o->recipe.tile + tile] : 0.0f);
    if (!o->recipe.quantized()) return;
    const int64_t dim = find_section(layout, "c_k")->shape[2];
    const auto* c_k = section<float>(layout, buffer, "c_k") + vectors_row * dim;
    const auto* c_q = section<float>(layout, buffer, "c_q") + vectors_row * dim;
    o->c_k.assign(c_k, c_k + o->dim);
    o->c_q.assign(c_q, c_q + o->dim);
    o->q_base = section<float>(layout, buffer, "q_base")[vectors_row];
}

void unpack_v(const PackedLayout& layout, const void* buffer, int64_t first_row, int64_t vectors_row,
              const Arrangement& arrangement, HeadOperands* o) {
    const Recipe& recipe = o->recipe;
    const Codes codes(layout, buffer, "v_codes");
    const auto* scale = section<float>(layout, buffer, "v_scale");
    const auto* weight = section<uint8_t>(layout, buffer, "v_weight");
    const auto* mean = section<float>(layout, buffer, "v_mean");
    const bool in_tiles = recipe.v_scale != VScale::kNone;
    const int64_t width = in_tiles ? find_section(layout, "v_codes")->shape[3] : codes.columns(),
                  first_tile = first_row / recipe.tile;
    for (int64_t j = 0; j < o->kv_len; ++j) {
        // 8-bit V is transposed within its tile, and it and its weights may have the keys in an order of their own.
        const int64_t tile = first_tile + j / recipe.tile, position = arrangement.v_place(j % recipe.tile);
        for (int64_t d = 0; d < o->dim_v; ++d)
            o->v.push_back(codes[recipe.v_scale == VScale::kNone ? (first_row + j) * width + d
                                                                 : (tile * width + d) * recipe.tile + position]);
        if (weight != nullptr) o->v_weight.push_back(weight[tile * recipe.tile + position]);
    }
    switch (recipe.v_scale) {
        case VScale::kChannel:
            o->v_scale.assign(scale + vectors_row * width, scale + vectors_row * width + o->dim_v);
            break;
        case VScale::kChannelTile:
            for (int64_t tile = first_tile; tile < first_tile + o->tiles(); ++tile)
                o->v_scale.insert(o->v_scale.end(), scale + tile * width, scale + tile * width + o->dim_v);
            break;
        case VScale::kToken:
        case VScale::kNone:
            if (scale != nullptr) o->v_scale.assign(scale + first_tile, scale + first_tile + o->tiles());
            break;
    }
    if (mean != nullptr) o->v_mean.assign(mean + vectors_row * width, mean + vectors_row * width + o->dim_v);
}

}  // namespace

Status unpack_head(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q, const void* packed_kv,
                   int64_t b, int64_t kv_head, HeadOperands* operands, const Arrangement& arrangement) {
    const Recipe& recipe = desc.recipe;
    if (recipe.qk == Format::kFp4 || recipe.pv == Format::kFp4 || recipe.smooth_q_block)
        return unsupported("recipe: " + recipe_text(recipe) +
                           " has no packed form; allowed: recipes without fp4 and without smooth_q_block");
    const PackedLayout layout = packed_kv_layout(desc, kv_capacity, arrangement);
    const Sequence sequence = sequence_of(desc, b, section<int64_t>(layout, packed_kv, "lengths")[b]);
    HeadOperands o;
    o.recipe = recipe;
    o.heads = desc.q_heads_per_kv();
    o.q_len = sequence.q_len;
    o.kv_len = sequence.kv_len;
    o.dim = desc.head_dim;
    o.dim_v = desc.head_dim_v;
    o.a = score_factor(desc);
    const int64_t first_row = packed_kv_rows(desc, kv_capacity).begin(b, kv_head, desc.kv_heads, sequence.kv_begin);
    const int64_t vectors_row = b * desc.kv_heads + kv_head;
    unpack_q(desc, packed_q_layout(desc, arrangement), packed_q, sequence, b, kv_head, &o);
    unpack_k(layout, packed_kv, first_row, vectors_row, &o);
    unpack_v(layout, packed_kv, first_row, vectors_row, arrangement, &o);
    *operands = std::move(o);
    return Status::ok();
}

Status attend_packed(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q, const void* packed_kv,
                     int threads, const Arrangement& arrangement) {
    CLARY_RETURN_IF_ERROR(check_header("packed_q", desc, packed_q_layout(desc, arrangement), packed_q));
    CLARY_RETURN_IF_ERROR(check_header("packed_kv", desc, packed_kv_layout(desc, kv_capacity, arrangement), packed_kv));
    HeadOperands first;  // whether the recipe has a packed form does not depend on the head
    if (desc.batch * desc.kv_heads > 0)
        CLARY_RETURN_IF_ERROR(unpack_head(desc, kv_capacity, packed_q, packed_kv, 0, 0, &first, arrangement));
    parallel_for(desc.batch * desc.kv_heads, threads, [&](int64_t item) {
        const int64_t b = item / desc.kv_heads, kv_head = item % desc.kv_heads;
        HeadOperands operands;
        if (!unpack_head(desc, kv_capacity, packed_q, packed_kv, b, kv_head, &operands, arrangement).is_ok()) return;
        attend_oracle(operands, desc, sequence_of(desc, b, operands.kv_len), b, kv_head);
    });
    return Status::ok();
}

}  // namespace clary::reference
