// SPDX-License-Identifier: Apache-2.0
#include "core/packed.h"

#include <fmt/format.h>

#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "numerics/digits.h"

namespace clary {
namespace {

constexpr int64_t kAlignment = 64;  // bytes: one cache line, one 512-bit vector

class LayoutBuilder {
  public:
    LayoutBuilder(const AttentionDesc& desc, bool is_kv) {
        layout_.struct_size = sizeof(PackedLayout);
        layout_.tile = desc.recipe.tile;
        layout_.is_kv = is_kv;
        const std::string text = recipe_text(desc.recipe);
        if (text.size() >= sizeof(layout_.recipe)) throw std::logic_error("a recipe's text is too long for a layout");
        std::strncpy(layout_.recipe, text.c_str(), sizeof(layout_.recipe) - 1);
        add("header", DType::kU8, {sizeof(PackedHeader)});
    }

    void add(const char* name, DType dtype, std::initializer_list<int64_t> shape) {
        if (layout_.section_count == CLARY_MAX_SECTIONS)
            throw std::logic_error("more sections than CLARY_MAX_SECTIONS");
        clary_section& s = layout_.sections[layout_.section_count++];
        std::strncpy(s.name, name, sizeof(s.name) - 1);
        s.dtype = static_cast<int32_t>(dtype);
        s.offset = layout_.bytes;
        int64_t bytes = dtype_size(dtype);
        for (const int64_t extent : shape) {
            s.shape[s.ndim++] = extent;
            bytes *= extent;
        }
        layout_.bytes += round_up(bytes, kAlignment);
    }

    PackedLayout take() const { return layout_; }

  private:
    PackedLayout layout_{};
};

DType storage(Format format) {
    switch (format) {
        case Format::kFp16:
            return DType::kF16;
        case Format::kBf16:
            return DType::kBF16;
        case Format::kFp32:
            return DType::kF32;
        case Format::kFp8:
            return DType::kE4M3;
        default:
            return DType::kI8;
    }
}

// Columns of a row of Q or K: the padded head dim, and the digits.
int64_t code_columns(const AttentionDesc& desc, const Arrangement& arrangement) {
    const bool digits = arrangement.digit_columns && desc.recipe.key_bias();
    return arrangement.padded_dims(desc.head_dim, desc.head_dim_v).qk + (digits ? numerics::kDigitColumns : 0);
}

// What a whole head has in common is found before it is packed, and kept.
bool whole_heads(const AttentionDesc& desc, const Arrangement& arrangement) {
    return arrangement.digit_columns && desc.recipe.granularity == numerics::Granularity::kPerTensor;
}

// FNV-1a byte by byte, field by field (a struct's padding has no value).
class Hash {
  public:
    template <typename T>
    Hash& mix(const T* data, int64_t count) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(data);
        for (size_t i = 0; i < static_cast<size_t>(count) * sizeof(T); ++i) value_ = mix_hash(value_, bytes[i]);
        return *this;
    }
    uint64_t value() const { return value_; }

  private:
    uint64_t value_ = kEmptyHash;
};

uint64_t layout_id(const PackedLayout& layout) {
    Hash hash;
    hash.mix(layout.recipe, sizeof(layout.recipe)).mix(&layout.bytes, 1);
    for (int32_t i = 0; i < layout.section_count; ++i) {
        const clary_section& s = layout.sections[i];
        hash.mix(s.name, sizeof(s.name)).mix(&s.dtype, 1).mix(s.shape, CLARY_MAX_DIMS);
    }
    return hash.value();
}

}  // namespace

PackedHeader expected_header(const AttentionDesc& desc, const PackedLayout& layout) {
    return {kPackedFormat, layout_id(layout), 0, 0, desc.scale};
}

PackedHeader header_of(const PackedLayout& layout, const void* buffer) {
    PackedHeader header;
    std::memcpy(&header, section<void>(layout, buffer, "header"), sizeof(header));
    return header;
}

void write_header(const AttentionDesc& desc, const PackedLayout& layout, void* buffer, uint64_t vectors) {
    PackedHeader header = expected_header(desc, layout);
    header.sequences = sequences_id(desc);
    header.vectors = vectors;
    std::memcpy(section<void>(layout, buffer, "header"), &header, sizeof(header));
}

Status check_header(const char* name, const AttentionDesc& desc, const PackedLayout& layout, const void* buffer) {
    const PackedHeader header = header_of(layout, buffer);
    if (header.format != kPackedFormat)
        return invalid_argument(
            fmt::format("{}: is not a packed buffer of this version; allowed: what clary_quantize "
                        "wrote",
                        name));
    if (header.layout != layout_id(layout))
        return invalid_argument(
            fmt::format("{}: was not packed for these shapes, capacity and recipe {}; allowed: what "
                        "clary_quantize wrote for the same parameters",
                        name, layout.recipe));
    if (header.sequences != sequences_id(desc))
        return invalid_argument(
            fmt::format("cu_seqlens: differ from those that {} was packed with; allowed: the same", name));
    if (header.scale != desc.scale)
        return invalid_argument(fmt::format("scale: {}, but {} was packed with {}; allowed: the same scale", desc.scale,
                                            name, header.scale));
    return Status::ok();
}

uint64_t vectors_id(const PackedLayout& kv_layout, const void* packed_kv) {
    Hash hash;
    bool any = false;
    for (const char* name : {"c_k", "c_q", "q_base"}) {
        const clary_section* const found = find_section(kv_layout, name);
        if (found == nullptr) continue;
        int64_t count = 1;
        for (int32_t axis = 0; axis < found->ndim; ++axis) count *= found->shape[axis];
        hash.mix(section<float>(kv_layout, packed_kv, name), count);
        any = true;
    }
    return any ? hash.value() : 0;
}

PackedRows packed_q_rows(const AttentionDesc& desc) { return {desc.q_tokens, desc.varlen(), 0}; }

PackedRows packed_kv_rows(const AttentionDesc& desc, int64_t kv_capacity) {
    const int32_t tile = desc.recipe.tile;
    if (desc.varlen()) return {(desc.kv_tokens / tile + desc.batch) * tile, true, tile};
    return {round_up(kv_capacity > 0 ? kv_capacity : desc.kv_len, tile), false, tile};
}

PackedLayout packed_q_layout(const AttentionDesc& desc) { return packed_q_layout(desc, kCpuArrangement); }
PackedLayout packed_kv_layout(const AttentionDesc& desc, int64_t kv_capacity) {
    return packed_kv_layout(desc, kv_capacity, kCpuArrangement);
}

PackedLayout packed_q_layout(const AttentionDesc& desc, const Arrangement& arrangement) {
    LayoutBuilder layout(desc, false);
    const int64_t items = desc.varlen() ? 1 : desc.batch;
    const int64_t rows = packed_q_rows(desc).rows;
    layout.add("q_codes", storage(desc.recipe.qk), {items, desc.q_heads, rows, code_columns(desc, arrangement)});
    if (desc.recipe.quantized()) {
        layout.add("q_scale", DType::kF32, {items, desc.q_heads, rows});
        if (desc.recipe.key_bias()) layout.add("q_repeat", DType::kU8, {items, desc.q_heads, rows});
        if (desc.recipe.smooth_k) layout.add("q_shift", DType::kF32, {items, desc.q_heads, rows});
        if (whole_heads(desc, arrangement)) layout.add("q_amax", DType::kF32, {desc.batch, desc.q_heads});
    }
    return layout.take();
}

PackedLayout packed_kv_layout(const AttentionDesc& desc, int64_t kv_capacity, const Arrangement& arrangement) {
    const Recipe& recipe = desc.recipe;
    LayoutBuilder layout(desc, true);
    const int64_t items = desc.varlen() ? 1 : desc.batch;
    const int64_t heads = desc.kv_heads;
    const int64_t rows = packed_kv_rows(desc, kv_capacity).rows;
    const int64_t tiles = rows / recipe.tile;
    const auto [dim, dim_v] = arrangement.padded_dims(desc.head_dim, desc.head_dim_v);

    layout.add("lengths", DType::kI64, {desc.batch});
    layout.add("k_codes", storage(recipe.qk), {items, heads, rows, code_columns(desc, arrangement)});
    if (recipe.quantized()) {
        layout.add("k_scale", DType::kF32, {items, heads, rows});
        if (!arrangement.digit_columns)
            layout.add("k_pair", DType::kI16, {items, heads, rows, 2});  // key bias in units, sum of the codes
        layout.add("tile_base", DType::kF32, {items, heads, tiles});
        layout.add("c_k", DType::kF32, {desc.batch, heads, dim});
        layout.add("c_q", DType::kF32, {desc.batch, heads, dim});
        layout.add("q_base", DType::kF32, {desc.batch, heads});
        if (whole_heads(desc, arrangement)) layout.add("k_amax", DType::kF32, {desc.batch, heads, 2});
    }
    if (recipe.v_scale == VScale::kNone)
        layout.add("v_codes", storage(recipe.pv), {items, heads, rows, dim_v});
    else
        layout.add("v_codes", storage(recipe.pv), {items, heads, tiles, dim_v, recipe.tile});
    // No bytes: it sets apart buffers that differ in the order of V's keys alone.
    if (recipe.v_scale != VScale::kNone && arrangement.v_order == numerics::VOrder::kRunsOf32)
        layout.add("v_runs_of_32", DType::kU8, {0});
    if (arrangement.v_sums && recipe.pv == Format::kInt8)
        layout.add("v_sum", DType::kI32, {items, heads, tiles, dim_v});
    switch (recipe.v_scale) {
        case VScale::kNone:
            if (recipe.pv == Format::kFp16 && recipe.quantized())
                layout.add("v_scale", DType::kF32, {items, heads, tiles});
            break;
        case VScale::kChannel:
            layout.add("v_scale", DType::kF32, {desc.batch, heads, dim_v});
            break;
        case VScale::kChannelTile:
            layout.add("v_scale", DType::kF32, {items, heads, tiles, dim_v});
            break;
        case VScale::kToken:
            layout.add("v_scale", DType::kF32, {items, heads, tiles});
            layout.add("v_weight", DType::kU8, {items, heads, rows});
            break;
    }
    if (recipe.smooth_v) layout.add("v_mean", DType::kF32, {desc.batch, heads, dim_v});
    if (kv_capacity > 0 && recipe.quantized()) {
        // The unquantized tokens of the last, partly filled tile: appending packs that tile anew from them.
        layout.add("tail_k", DType::kF32, {desc.batch, heads, recipe.tile, desc.head_dim});
        layout.add("tail_v", DType::kF32, {desc.batch, heads, recipe.tile, desc.head_dim_v});
    }
    return layout.take();
}

}  // namespace clary
