// SPDX-License-Identifier: Apache-2.0
// The exact reference against a softmax written from its definition.
#include "reference/exact.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numerics/formats.h"
#include "reference/problem.h"

namespace clary::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool all(int64_t, int64_t, int64_t, int64_t, double*) { return true; }

// Both agree to fp32 rounding.
void expect_exact(Problem& problem, const Sees& sees, const std::vector<float>& sinks = {}) {
    ASSERT_TRUE(reference::attend_exact(problem.desc).is_ok());
    const NaiveResult expected = naive_attention(problem, sees, sinks);
    for (size_t i = 0; i < expected.out.size(); ++i)
        ASSERT_NEAR(problem.out[i], expected.out[i], 2e-7 * (1 + std::abs(expected.out[i]))) << "out " << i;
    for (size_t i = 0; i < expected.lse.size(); ++i) {
        if (std::isinf(expected.lse[i])) {
            ASSERT_EQ(problem.lse[i], static_cast<float>(expected.lse[i])) << "lse " << i;
        } else {
            ASSERT_NEAR(problem.lse[i], expected.lse[i], 2e-7 * (1 + std::abs(expected.lse[i]))) << "lse " << i;
        }
    }
}

Problem random_problem(const Shape& shape) {
    Problem problem(shape);
    problem.fill(1);
    return problem;
}

const Shape kGqa{2, 6, 2, 19, 37, 24, 40};

TEST(Exact, PlainWithGroupedHeadsAndUnequalDims) {
    Problem p = random_problem(kGqa);
    expect_exact(p, all);
}

TEST(Exact, ScaleMayBeNegativeOrZero) {
    for (const double scale : {-0.3, 0.0, 2.5}) {
        Problem p = random_problem(kGqa);
        p.desc.scale = scale;
        expect_exact(p, all);
    }
}

TEST(Exact, CausalKinds) {
    for (const auto& lengths : {std::pair{19, 37}, {37, 19}, {20, 20}}) {
        const int64_t q_len = lengths.first, kv_len = lengths.second;
        Shape shape = kGqa;
        shape.q_len = q_len;
        shape.kv_len = kv_len;
        Problem p = random_problem(shape);
        p.desc.causal = Causal::kTopLeft;
        expect_exact(p, [](auto, auto, int64_t i, int64_t j, auto) { return j <= i; });
        p.desc.causal = Causal::kBottomRight;
        expect_exact(p, [&](auto, auto, int64_t i, int64_t j, auto) { return j <= i + kv_len - q_len; });
        p.desc.causal = Causal::kOffset;
        p.desc.causal_offset = 5;
        expect_exact(p, [](auto, auto, int64_t i, int64_t j, auto) { return j <= i + 5; });
        std::vector<int64_t> offsets = {-3, 11};
        p.desc.causal_offsets = view(offsets.data(), DType::kI64, {2});
        expect_exact(
            p, [&](int64_t b, auto, int64_t i, int64_t j, auto) { return j <= i + offsets[static_cast<size_t>(b)]; });
    }
}

TEST(Exact, WindowWithKeptKeys) {
    Problem p = random_problem(kGqa);
    const int64_t shift = p.shape.kv_len - p.shape.q_len;
    p.desc.window = {.enabled = true, .left = 4, .right = 2, .keep = 3};
    expect_exact(
        p, [&](auto, auto, int64_t i, int64_t j, auto) { return j < 3 || (j >= i + shift - 4 && j <= i + shift + 2); });
    p.desc.causal = Causal::kTopLeft;
    expect_exact(p, [&](auto, auto, int64_t i, int64_t j, auto) { return j <= i && (j < 3 || j >= i - 4); });
    p.desc.window = {.enabled = true, .left = -1, .right = 0, .keep = 0};
    p.desc.causal = Causal::kNone;
    expect_exact(p, [&](auto, auto, int64_t i, int64_t j, auto) { return j <= i + shift; });
}

TEST(Exact, KeyLengthsEndTheSequenceAndMoveBottomRight) {
    Problem p = random_problem(kGqa);
    std::vector<int32_t> lengths = {0, 23};
    p.desc.kv_lengths = view(lengths.data(), DType::kI32, {2});
    const auto length = [&](int64_t b) { return lengths[static_cast<size_t>(b)]; };
    expect_exact(p, [&](int64_t b, auto, auto, int64_t j, auto) { return j < length(b); });
    p.desc.causal = Causal::kBottomRight;
    expect_exact(p, [&](int64_t b, auto, int64_t i, int64_t j, auto) {
        return j < length(b) && j <= i + length(b) - p.shape.q_len;
    });
}

TEST(Exact, BooleanMaskWithEmptyRowsAndBroadcast) {
    Problem p = random_problem(kGqa);
    const int64_t lq = p.shape.q_len, lk = p.shape.kv_len;
    std::vector<uint8_t> mask(static_cast<size_t>(lq * lk));
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 != 1 && i / static_cast<size_t>(lk) != 4;
    p.desc.mask_kind = MaskKind::kBoolean;
    p.desc.mask = view(mask.data(), DType::kBool, {1, 1, lq, lk});
    p.desc.mask.stride[0] = p.desc.mask.stride[1] = 0;
    expect_exact(p, [&](auto, auto, int64_t i, int64_t j, auto) { return mask[static_cast<size_t>(i * lk + j)] != 0; });
    EXPECT_EQ(p.lse_at(1, 2, 4), -kInf);
    EXPECT_EQ(p.out_row(1, 2, 4)[0], 0.0f);
}

TEST(Exact, AdditiveMaskMinusInfinityHidesAndAlibiAdds) {
    Problem p = random_problem(kGqa);
    const int64_t lk = p.shape.kv_len;
    std::vector<float> mask(static_cast<size_t>(2 * lk));
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 5 == 2 ? -kInf : 0.1f * static_cast<float>(i % 7);
    std::vector<float> slopes = {0.5f, 0.25f, 0.125f, 0.0f, -0.25f, 1.0f};
    p.desc.mask_kind = MaskKind::kAdditive;
    p.desc.mask = view(mask.data(), DType::kF32, {2, 1, 1, lk});
    p.desc.mask.stride[1] = p.desc.mask.stride[2] = 0;
    p.desc.alibi_slopes = view(slopes.data(), DType::kF32, {6});
    expect_exact(p, [&](int64_t b, int64_t h, int64_t i, int64_t j, double* bias) {
        const float m = mask[static_cast<size_t>(b * lk + j)];
        const int64_t position = i + p.shape.kv_len - p.shape.q_len;
        *bias = m - slopes[static_cast<size_t>(h)] * static_cast<double>(std::abs(position - j));
        return m != -kInf;
    });
}

TEST(Exact, SinkJoinsTheDenominator) {
    Problem p = random_problem(kGqa);
    std::vector<float> sinks = {0.0f, 3.0f, -2.0f, 8.0f, 1.0f, -kInf};
    p.desc.sinks = view(sinks.data(), DType::kF32, {6});
    expect_exact(p, all, sinks);
    std::vector<int64_t> lengths = {0, 5};  // no key: the sink alone is the denominator
    p.desc.kv_lengths = view(lengths.data(), DType::kI64, {2});
    expect_exact(
        p, [&](int64_t b, auto, auto, int64_t j, auto) { return j < lengths[static_cast<size_t>(b)]; }, sinks);
    EXPECT_EQ(p.lse_at(0, 1, 0), 3.0f);
    EXPECT_EQ(p.lse_at(0, 5, 0), -kInf);
}

TEST(Exact, StridedSixteenBitTensors) {
    Problem p = random_problem(kGqa);
    p.round_to_bf16();
    const Shape& s = p.shape;
    // K as bf16 in [batch, tokens, heads, dim] with a gap after each token and every second element used.
    const int64_t token = s.kv_heads * s.dim * 2 + 3;
    std::vector<uint16_t> k(static_cast<size_t>(s.batch * s.kv_len * token), 0x7fc0);
    for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t h = 0; h < s.kv_heads; ++h)
            for (int64_t j = 0; j < s.kv_len; ++j)
                for (int64_t d = 0; d < s.dim; ++d)
                    k[static_cast<size_t>((b * s.kv_len + j) * token + (h * s.dim + d) * 2)] =
                        numerics::Bf16::from_float(p.k_row(b, h, j)[d]).bits;
    p.desc.k = {k.data(), DType::kBF16, s.kv_len * token, s.dim * 2, token, 2};
    std::vector<uint16_t> out(p.out.size());
    p.desc.out.data = out.data();
    p.desc.out.dtype = DType::kF16;
    ASSERT_TRUE(reference::attend_exact(p.desc).is_ok());
    const NaiveResult expected = naive_attention(p, all);
    for (size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(numerics::Fp16{out[i]}.to_float(), expected.out[i], 1e-6 + std::abs(expected.out[i]) * 0x1p-11);
}

TEST(Exact, PackedSequencesAreIndependent) {
    // Three sequences, one of them empty, in one packed tensor against the same sequences one by one.
    const std::vector<int32_t> cu_q = {0, 5, 5, 16}, cu_k = {0, 9, 12, 33};
    Problem packed = random_problem({1, 4, 2, 16, 33, 8, 8});
    AttentionDesc& desc = packed.desc;
    desc.batch = 3;
    desc.q_len = 11;
    desc.kv_len = 21;
    desc.q_tokens = 16;
    desc.kv_tokens = 33;
    for (Operand* operand : {&desc.q, &desc.k, &desc.v, &desc.out}) operand->batch_stride = 0;
    desc.lse_batch_stride = 0;
    std::vector<int32_t> q = cu_q, k = cu_k;
    desc.cu_seqlens_q = view(q.data(), DType::kI32, {4});
    desc.cu_seqlens_k = view(k.data(), DType::kI32, {4});
    desc.causal = Causal::kBottomRight;
    ASSERT_TRUE(reference::attend_exact(desc).is_ok());
    for (size_t b = 0; b < 3; ++b) {
        const int64_t q_len = cu_q[b + 1] - cu_q[b], kv_len = cu_k[b + 1] - cu_k[b];
        for (int64_t h = 0; h < 4; ++h) {
            Problem one({1, 1, 1, q_len, kv_len, 8, 8});
            std::copy_n(packed.q_row(0, h, cu_q[b]), q_len * 8, one.q.begin());
            std::copy_n(packed.k_row(0, h / 2, cu_k[b]), kv_len * 8, one.k.begin());
            std::copy_n(packed.v_row(0, h / 2, cu_k[b]), kv_len * 8, one.v.begin());
            one.desc.causal = Causal::kBottomRight;
            ASSERT_TRUE(reference::attend_exact(one.desc).is_ok());
            for (int64_t i = 0; i < q_len; ++i) {
                EXPECT_EQ(packed.lse_at(0, h, cu_q[b] + i), one.lse_at(0, 0, i));
                for (int64_t d = 0; d < 8; ++d)
                    EXPECT_EQ(packed.out_row(0, h, cu_q[b] + i)[d], one.out_row(0, 0, i)[d]);
            }
        }
    }
}

TEST(Exact, PagedKeysAndValues) {
    Problem dense = random_problem({2, 2, 1, 3, 10, 8, 8});
    ASSERT_TRUE(reference::attend_exact(dense.desc).is_ok());
    const std::vector<float> expected = dense.out;
    // Pages of 4 keys in shuffled order: [pages, heads = 1, 4, 8].
    std::vector<int32_t> table = {5, 0, 3, 2, 4, 1};
    std::vector<float> k(6 * 4 * 8, kNaN), v = k;
    for (int64_t b = 0; b < 2; ++b)
        for (int64_t j = 0; j < 10; ++j) {
            const int64_t at = (table[static_cast<size_t>(b * 3 + j / 4)] * 4 + j % 4) * 8;
            std::copy_n(dense.k_row(b, 0, j), 8, k.begin() + at);
            std::copy_n(dense.v_row(b, 0, j), 8, v.begin() + at);
        }
    dense.desc.k = {k.data(), DType::kF32, 32, 32, 8, 1};
    dense.desc.v = {v.data(), DType::kF32, 32, 32, 8, 1};
    dense.desc.block_table = view(table.data(), DType::kI32, {2, 3});
    dense.desc.page_size = 4;
    ASSERT_TRUE(reference::attend_exact(dense.desc).is_ok());
    EXPECT_EQ(dense.out, expected);
}

TEST(Exact, NonFiniteInputGivesNanRowsAndNothingElse) {
    Problem p = random_problem({1, 1, 1, 12, 12, 8, 8});
    p.desc.causal = Causal::kTopLeft;
    p.q_row(0, 0, 2)[3] = kInf;
    p.k_row(0, 0, 7)[0] = kNaN;
    p.v_row(0, 0, 9)[1] = -kInf;
    ASSERT_TRUE(reference::attend_exact(p.desc).is_ok());
    for (int64_t i = 0; i < 12; ++i) {
        const bool bad = i == 2 || i >= 7;
        for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(std::isnan(p.out_row(0, 0, i)[d]), bad) << i;
        EXPECT_EQ(std::isnan(p.lse_at(0, 0, i)), bad) << i;
    }
}

TEST(Exact, SameBitsOnAnyNumberOfThreads) {
    Problem p = random_problem(kGqa);
    ASSERT_TRUE(reference::attend_exact(p.desc, 1).is_ok());
    const std::vector<float> expected = p.out;
    ASSERT_TRUE(reference::attend_exact(p.desc, 7).is_ok());
    EXPECT_EQ(p.out, expected);
}

}  // namespace
}  // namespace clary::test
