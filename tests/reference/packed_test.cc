// SPDX-License-Identifier: Apache-2.0
// Operands survive the packed format: written into buffers as the layout says, read back by unpack_head.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/packed.h"
#include "reference/oracle.h"
#include "reference/pack.h"
#include "reference/problem.h"
#include "reference/quantize.h"
#include "reference/unpack.h"

namespace clary::test {
namespace {

constexpr Arrangement kArrangements[] = {kCpuArrangement, kMmaArrangement, kMetaxK16Arrangement, kMetaxK32Arrangement};

using reference::HeadOperands;

class Packed : public testing::TestWithParam<const char*> {};

// Same bits from packed buffers as from the operands themselves.
void expect_same_through_packing(Problem& p, const Arrangement& arrangement) {
    ASSERT_TRUE(reference::attend_recipe(p.desc).is_ok());
    const std::vector<float> out = p.out, lse = p.lse;
    const PackedLayout q_layout = packed_q_layout(p.desc, arrangement);
    const PackedLayout kv_layout = packed_kv_layout(p.desc, 0, arrangement);
    std::vector<std::byte> q(static_cast<size_t>(q_layout.bytes)), kv(static_cast<size_t>(kv_layout.bytes));
    write_header(p.desc, q_layout, q.data(), 0);
    write_header(p.desc, kv_layout, kv.data(), 0);
    for (int64_t b = 0; b < p.desc.batch; ++b)
        for (int64_t h = 0; h < p.desc.kv_heads; ++h)
            reference::pack_head(p.desc, b, h, reference::quantize_head(p.desc, b, h), q.data(), kv.data(),
                                 arrangement);
    std::fill(p.out.begin(), p.out.end(), -7.0f);
    const Status status = reference::attend_packed(p.desc, 0, q.data(), kv.data(), 0, arrangement);
    ASSERT_TRUE(status.is_ok()) << status.text();
    EXPECT_EQ(p.out, out);
    EXPECT_EQ(p.lse, lse);
    const double scale = p.desc.scale;
    p.desc.scale *= 2;  // the key bias is in units of the scale that it was packed for
    EXPECT_EQ(reference::attend_packed(p.desc, 0, q.data(), kv.data(), 0, arrangement).code(),
              StatusCode::kInvalidArgument);
    p.desc.scale = scale;
}

TEST_P(Packed, Dense) {
    Problem p({2, 4, 2, 21, 150, 24, 40});
    p.fill(1);
    ASSERT_TRUE(parse_recipe(GetParam(), &p.desc.recipe).is_ok());
    for (const Arrangement& arrangement : kArrangements) expect_same_through_packing(p, arrangement);
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
    for (const Arrangement& arrangement : kArrangements) expect_same_through_packing(p, arrangement);
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
        for (const Arrangement& arrangement : kArrangements) expect_same_through_packing(p, arrangement);
    }
}

// Every tile and channel of v_sum, keys that do not exist included: their codes are zeros.
TEST(Packed, SumsOfVAreThoseOfTheBytes) {
    Problem p({2, 2, 2, 5, 150, 24, 40});
    p.fill(4);
    for (const char* text : {"int8_int8+tile=64", "int8_int8:fast", "int4_int8"}) {
        ASSERT_TRUE(parse_recipe(text, &p.desc.recipe).is_ok());
        const PackedLayout q_layout = packed_q_layout(p.desc, kMetaxK16Arrangement);
        const PackedLayout layout = packed_kv_layout(p.desc, 0, kMetaxK16Arrangement);
        std::vector<std::byte> q(static_cast<size_t>(q_layout.bytes)), kv(static_cast<size_t>(layout.bytes));
        for (int64_t b = 0; b < p.desc.batch; ++b)
            for (int64_t h = 0; h < p.desc.kv_heads; ++h)
                reference::pack_head(p.desc, b, h, reference::quantize_head(p.desc, b, h), q.data(), kv.data(),
                                     kMetaxK16Arrangement);
        const auto* const codes = section<int8_t>(layout, kv.data(), "v_codes");
        const auto* const sums = section<int32_t>(layout, kv.data(), "v_sum");
        const clary_section& s = *find_section(layout, "v_sum");
        for (int64_t i = 0; i < s.shape[0] * s.shape[1] * s.shape[2] * s.shape[3]; ++i)
            ASSERT_EQ(sums[i], std::accumulate(codes + i * layout.tile, codes + (i + 1) * layout.tile, 0)) << i;
        EXPECT_NE(*std::max_element(sums, sums + s.shape[3]), 0);
        // Key 1 of a tile lies beside key 0, and key 2 beside that.
        const reference::HeadOperands o = reference::quantize_head(p.desc, 0, 0);
        for (size_t key = 0; key < 16; ++key) EXPECT_EQ(codes[key], static_cast<int8_t>(o.v[key * 40]));
    }
    EXPECT_EQ(find_section(packed_kv_layout(p.desc, 0, kMmaArrangement), "v_sum"), nullptr);
    ASSERT_TRUE(parse_recipe("int8_fp16", &p.desc.recipe).is_ok());
    EXPECT_EQ(find_section(packed_kv_layout(p.desc, 0, kMetaxK16Arrangement), "v_sum"), nullptr);
}

// Buffers that differ in the order of V's keys alone are told apart.
TEST(Packed, OrdersOfVHaveHeadersOfTheirOwn) {
    Problem p({1, 2, 2, 5, 150, 32, 32});
    const auto layout = [&](const Arrangement& arrangement) {
        return expected_header(p.desc, packed_kv_layout(p.desc, 0, arrangement)).layout;
    };
    for (const char* text : {"int8_int8", "int8_fp8", "int8_fp16"}) {
        ASSERT_TRUE(parse_recipe(text, &p.desc.recipe).is_ok());
        const bool same = p.desc.recipe.pv == Format::kFp16;  // in rows
        EXPECT_EQ(layout(kMetaxK16Arrangement) == layout(kMetaxK32Arrangement), same) << text;
        EXPECT_EQ(layout(kMmaArrangement) == layout(kMetaxK32Arrangement), same) << text;
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
