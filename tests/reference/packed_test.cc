// SPDX-License-Identifier: Apache-2.0
// Operands survive the packed format: written into buffers as the layout says, read back by unpack_head.
#include <gtest/gtest.h>

#include <cmath>

#include "core/packed.h"
#include "numerics/formats.h"
#include "numerics/permutation.h"
#include "reference/oracle.h"
#include "reference/problem.h"
#include "reference/quantize.h"
#include "reference/unpack.h"

namespace clary::test {
namespace {

using reference::HeadOperands;

void store_code(const PackedLayout& layout, void* buffer, std::string_view name, int64_t index, float code) {
    for (int32_t i = 0; i < layout.section_count; ++i) {
        if (name != layout.sections[i].name) continue;
        char* data = static_cast<char*>(buffer) + layout.sections[i].offset;
        switch (static_cast<DType>(layout.sections[i].dtype)) {
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
                return;
        }
    }
    FAIL() << "no section " << name;
}

// Element of a section, where the layout has it.
template <typename T>
void store(const PackedLayout& layout, void* buffer, std::string_view name, int64_t index, T value) {
    if (T* data = section<T>(layout, buffer, name)) data[index] = value;
}

void pack(const AttentionDesc& desc, int64_t b, int64_t kv_head, const HeadOperands& o, void* q, void* kv) {
    const PackedLayout q_layout = packed_q_layout(desc), layout = packed_kv_layout(desc, 0);
    const Sequence s = sequence_of(desc, b);
    const int64_t width = round_up(o.dim, kDimMultiple), width_v = round_up(o.dim_v, kDimMultiple);
    const int64_t tile = o.recipe.tile, vectors = b * desc.kv_heads + kv_head;
    for (int64_t at = 0; at < o.heads * o.q_len; ++at) {
        const int64_t head = kv_head * o.heads + at / o.q_len;
        const int64_t row = packed_q_rows(desc).begin(b, head, desc.q_heads, s.q_begin) + at % o.q_len;
        const auto i = static_cast<size_t>(at);
        for (int64_t d = 0; d < o.dim; ++d)
            store_code(q_layout, q, "q_codes", row * width + d,
                       o.q[i * static_cast<size_t>(o.dim) + static_cast<size_t>(d)]);
        store(q_layout, q, "q_scale", row, o.q_scale[i]);
        store(q_layout, q, "q_repeat", row, o.q_repeat[i]);
        store(q_layout, q, "q_shift", row, o.q_shift[i]);
    }
    store(layout, kv, "lengths", b, o.kv_len);
    const int64_t first = packed_kv_rows(desc, 0).begin(b, kv_head, desc.kv_heads, s.kv_begin);
    for (int64_t j = 0; j < o.kv_len; ++j) {
        const auto key = static_cast<size_t>(j);
        for (int64_t d = 0; d < o.dim; ++d)
            store_code(layout, kv, "k_codes", (first + j) * width + d, o.k[static_cast<size_t>(j * o.dim + d)]);
        store(layout, kv, "k_scale", first + j, o.k_scale[key]);
        store(layout, kv, "k_pair", (first + j) * 2, o.bias_units[key]);
        const int64_t begin = (first + j) / tile * tile, position = numerics::v_position((first + j) % tile);
        for (int64_t d = 0; d < o.dim_v; ++d)
            store_code(
                layout, kv, "v_codes",
                o.recipe.v_scale == VScale::kNone ? (first + j) * width_v + d : begin * width_v + d * tile + position,
                o.v[static_cast<size_t>(j * o.dim_v + d)]);
        if (!o.v_weight.empty()) store(layout, kv, "v_weight", begin + position, o.v_weight[key]);
    }
    for (int64_t t = 0; t < o.tiles(); ++t)
        store(layout, kv, "tile_base", first / tile + t, o.tile_base[static_cast<size_t>(t)]);
    for (int64_t d = 0; d < o.dim && o.recipe.quantized(); ++d) {
        const bool smooth_k = !o.c_k.empty();
        store(layout, kv, "c_k", vectors * width + d, smooth_k ? o.c_k[static_cast<size_t>(d)] : 0.0f);
        store(layout, kv, "c_q", vectors * width + d, o.c_q[static_cast<size_t>(d)]);
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

class Packed : public testing::TestWithParam<const char*> {};

// Same bits from packed buffers as from the operands themselves.
void expect_same_through_packing(Problem& p) {
    ASSERT_TRUE(reference::attend_recipe(p.desc).is_ok());
    const std::vector<float> out = p.out, lse = p.lse;
    std::vector<std::byte> q(static_cast<size_t>(packed_q_layout(p.desc).bytes)),
        kv(static_cast<size_t>(packed_kv_layout(p.desc, 0).bytes));
    write_header(p.desc, packed_q_layout(p.desc), q.data(), 0);
    write_header(p.desc, packed_kv_layout(p.desc, 0), kv.data(), 0);
    for (int64_t b = 0; b < p.desc.batch; ++b)
        for (int64_t h = 0; h < p.desc.kv_heads; ++h)
            pack(p.desc, b, h, reference::quantize_head(p.desc, b, h), q.data(), kv.data());
    std::fill(p.out.begin(), p.out.end(), -7.0f);
    const Status status = reference::attend_packed(p.desc, 0, q.data(), kv.data());
    ASSERT_TRUE(status.is_ok()) << status.text();
    EXPECT_EQ(p.out, out);
    EXPECT_EQ(p.lse, lse);
    p.desc.scale *= 2;  // the key bias is in units of the scale that it was packed for
    EXPECT_EQ(reference::attend_packed(p.desc, 0, q.data(), kv.data()).code(), StatusCode::kInvalidArgument);
}

TEST_P(Packed, Dense) {
    Problem p({2, 4, 2, 21, 150, 24, 40});
    p.fill(1);
    ASSERT_TRUE(parse_recipe(GetParam(), &p.desc.recipe).is_ok());
    expect_same_through_packing(p);
}

TEST_P(Packed, Varlen) {
    Problem p({1, 4, 2, 60, 400, 24, 40});
    p.fill(2);
    std::vector<int32_t> cu_q = {0, 20, 37, 60}, cu_k = {0, 130, 131, 400};
    p.desc.batch = 3;
    p.desc.q_len = 23;
    p.desc.kv_len = 269;
    p.desc.q_tokens = 60;
    p.desc.kv_tokens = 400;
    for (Operand* operand : {&p.desc.q, &p.desc.k, &p.desc.v, &p.desc.out}) operand->batch_stride = 0;
    p.desc.lse_batch_stride = 0;
    p.desc.cu_seqlens_q = view(cu_q.data(), DType::kI32, {4});
    p.desc.cu_seqlens_k = view(cu_k.data(), DType::kI32, {4});
    ASSERT_TRUE(parse_recipe(GetParam(), &p.desc.recipe).is_ok());
    expect_same_through_packing(p);
}

INSTANTIATE_TEST_SUITE_P(Reference, Packed,
                         testing::Values("int8_int8", "int8_int8+tile=64+smooth_v", "int8_int8:fast",
                                         "int8_int8:fast+v_scale=channel_tile", "int8_fp16", "int8_bf16",
                                         "int8_fp8:sage2", "int4_int8", "int4_fp16", "fp16_fp16", "bf16_bf16"));

TEST(Packed, NegativeScaleLiesInTheCodes) {
    Problem p({1, 2, 1, 21, 150, 24, 40});
    p.fill(3);
    p.desc.scale = -0.3;
    for (const char* text : {"int8_int8", "fp16_fp16"}) {
        ASSERT_TRUE(parse_recipe(text, &p.desc.recipe).is_ok());
        expect_same_through_packing(p);
        p.desc.scale = -0.3;
    }
}

TEST(Packed, RefusesWhatTheFormatDoesNotHold) {
    Problem p({1, 1, 1, 1, 1, 16, 16});
    for (const char* text : {"fp4_fp4", "int4_fp16:sage2"}) {
        ASSERT_TRUE(parse_recipe(text, &p.desc.recipe).is_ok());
        HeadOperands o;
        EXPECT_EQ(reference::unpack_head(p.desc, 0, nullptr, nullptr, 0, 0, &o).code(), StatusCode::kUnsupported);
    }
}

}  // namespace
}  // namespace clary::test
