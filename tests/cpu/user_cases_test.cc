// SPDX-License-Identifier: Apache-2.0
// Failures that users of quantized attention met and reported, by the id that the project's list of them uses; each on
// every recipe family of the CPU backend. "Close": cosine > 0.999 and relative L1 < 5 % against exact attention.
//
// Part of the Python package, and tested with it: T37, T38, T52 as keywords of a drop-in call (mask, scale and lse of
// the library itself are below), T59 (torch.compile), T63 (gradients), P2, P5, P7 (import and packaging). Of recipes
// that only the oracle has (fp8, fp4) and tested there: T03, T04, T45.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "cpu/run.h"

namespace clary::cases {
namespace {

constexpr const char* kRecipes[] = {"int8_int8", "int8_fp16", "int8_bf16", "fp32_fp32"};
constexpr float kInf = std::numeric_limits<float>::infinity();

using Change = std::function<void(Problem&)>;
void nothing(Problem&) {}

// Calls f(index..., value&) for a dense fp32, fp16 or bf16 tensor [B, H, L, D].
void each(Problem& p, const clary_tensor& t,
          const std::function<float(int64_t b, int64_t h, int64_t j, int64_t d, float x)>& f) {
    for (int64_t b = 0; b < t.shape[0]; ++b)
        for (int64_t h = 0; h < t.shape[1]; ++h)
            for (int64_t j = 0; j < t.shape[2]; ++j)
                for (int64_t d = 0; d < t.shape[3]; ++d) p.set(t, {b, h, j, d}, f(b, h, j, d, p.get(t, {b, h, j, d})));
}

// The exact answer from the CPU's own exact recipe where float64 would take seconds; conformance_test.cc vouches for
// it.
Output reference_of(Problem& problem) {
    const Case& c = problem.spec();
    if (c.batch * c.q_heads * c.q_len * c.kv_len * c.dim < (int64_t{1} << 25)) return exact(problem);
    run_one_shot(&problem, with(problem, "fp32_fp32", "cpu"));
    return problem.output();
}

void expect_close(const Case& c, const Change& change = nothing, double least_cosine = 0.999,
                  double most_error = 0.05) {
    Problem problem(c);
    change(problem);
    problem.freeze_inputs();
    const Output expected = reference_of(problem);
    for (const char* recipe : kRecipes) {
        SCOPED_TRACE(recipe);
        run_one_shot(&problem, with(problem, recipe, "cpu"));
        const Output result = problem.output();
        for (const float x : result.out) ASSERT_TRUE(std::isfinite(x));
        EXPECT_GT(cosine(result.out, expected.out), least_cosine);
        EXPECT_LT(relative_l1(result.out, expected.out), most_error);
    }
}

Case bf16(Case c) {
    c.q = c.k = c.v = c.out = DType::kBF16;
    return c;
}
Case fp16(Case c) {
    c.q = c.k = c.v = c.out = DType::kF16;
    return c;
}
Case shape(int64_t b, int64_t h, int64_t hkv, int64_t lq, int64_t lk, int64_t d) {
    return {.name = "user", .batch = b, .q_heads = h, .kv_heads = hkv, .q_len = lq, .kv_len = lk, .dim = d};
}

TEST(UserCases, T01_UniformAttentionOfLargeV) {
    Problem p(bf16(shape(1, 1, 1, 64, 64, 64)));
    each(p, p.params.k, [](auto, auto, auto, auto, float) { return 0.5f; });
    each(p, p.params.v, [](auto, auto, auto, auto, float) { return 1100.0f; });
    for (const char* recipe : kRecipes) {
        p.freeze_inputs();
        run_one_shot(&p, with(p, recipe, "cpu"));
        // bf16 cannot hold 1100: 1104 is what V is.
        for (const float x : p.output().out) ASSERT_NEAR(x, 1104, 8) << recipe;
    }
}

TEST(UserCases, T02_SingleValuesBeyondFp16) {
    Case c = bf16(shape(1, 1, 1, 256, 4096, 128));
    c.values = Values::kHugeV;
    // Channels with such a value are all that counts in the sum of errors.
    expect_close(c);
}

TEST(UserCases, T06_LogitsOfTenThousand) {
    Case c = shape(1, 2, 2, 128, 500, 64);
    c.values = Values::kLargeK;
    Problem p(c);
    const Output expected = exact(p);
    for (const char* recipe : kRecipes) {
        run_one_shot(&p, with(p, recipe, "cpu"));
        const Output result = p.output();
        int64_t agree = 0;
        for (size_t row = 0; row < 256; ++row) {
            double error = 0, size = 0;
            for (size_t d = 0; d < 64; ++d) {
                ASSERT_TRUE(std::isfinite(result.out[row * 64 + d])) << recipe;
                error += std::fabs(static_cast<double>(result.out[row * 64 + d] - expected.out[row * 64 + d]));
                size += std::fabs(static_cast<double>(expected.out[row * 64 + d]));
            }
            agree += error < 0.05 * size;
        }
        // Rows are one-hot; 8-bit scores of 1e4 may take the second of two close keys now and then.
        EXPECT_GE(agree, 256 * 9 / 10) << recipe;
    }
}

TEST(UserCases, T09_AChannelOfVIsZero) {
    Problem p(bf16(shape(1, 2, 1, 512, 512, 128)));
    each(p, p.params.v, [](auto, auto, auto, int64_t d, float x) { return d == 17 ? 0.0f : x; });
    p.freeze_inputs();
    for (const char* recipe : {"int8_int8:fast", "int8_int8+no_rotate_v", "int8_int8+v_scale=channel_tile+no_rotate_v",
                               "int8_fp16", "fp32_fp32"}) {
        run_one_shot(&p, with(p, recipe, "cpu"));
        const std::vector<float> out = p.output().out;
        for (size_t row = 0; row < 1024; ++row) ASSERT_EQ(out[row * 128 + 17], 0.0f) << recipe;
    }
    Case c = bf16(shape(1, 2, 1, 512, 512, 128));
    expect_close(c, [](Problem& q) {
        each(q, q.params.v, [](auto, auto, auto, int64_t d, float x) { return d == 17 ? 0.0f : x; });
    });
}

TEST(UserCases, T11_ZeroQOrZeroK) {
    for (const int64_t length : {226, 512}) {
        Case c = bf16(shape(1, 2, 2, length, length, 64));
        c.values = Values::kZeroQ;
        expect_close(c);
        c.values = Values::kZeroK;
        expect_close(c);
    }
}

TEST(UserCases, T13_ChannelsOfKWithAnOffsetOf50) {
    const auto offset = [](Problem& p) {
        each(p, p.params.k, [](auto, auto, auto, int64_t d, float x) { return d % 32 == 5 ? x + 50.0f : x; });
    };
    expect_close(shape(1, 1, 1, 128, 8192, 128), offset);
}

TEST(UserCases, T14_AnOutlierChannelThatAlternates) {
    const auto alternate = [](Problem& p) {
        each(p, p.params.k,
             [](auto, auto, int64_t j, int64_t d, float x) { return d == 9 ? (j % 2 == 0 ? 100.0f : -100.0f) : x; });
    };
    for (const int64_t dim : {64, 128}) {
        Problem p(shape(1, 2, 2, 300, 512, dim));
        alternate(p);
        p.freeze_inputs();
        const Output expected = exact(p);
        // Rotation spreads the channel: each K element is about 100 / sqrt(D), each of Q has an error of 0.0068
        // (tolerances.h), so a score is off by 0.0068 * 100 / sqrt(D) in natural units, and so is a weight: 0.085 at
        // D 64, 0.06 at 128. Without rotation the other channels have two or three levels.
        const double bound = 1.2 * 0.68 / std::sqrt(static_cast<double>(dim));
        for (const char* recipe : {"int8_int8", "int8_fp16"}) {
            run_one_shot(&p, with(p, recipe, "cpu"));
            const double error = relative_l1(p.output().out, expected.out);
            EXPECT_LT(error, bound) << recipe;
            EXPECT_GT(cosine(p.output().out, expected.out), 1 - bound * bound) << recipe;
            run_one_shot(&p, with(p, (std::string(recipe) + "+no_rotate").c_str(), "cpu"));
            EXPECT_GT(relative_l1(p.output().out, expected.out), 1.5 * error) << recipe;
        }
    }
}

TEST(UserCases, T16_InputsAreBitIdenticalAfterACall) {
    // run_one_shot() compares every byte of every input; here with a mean as large as the ones that were lost.
    Case c = fp16(shape(2, 4, 2, 130, 260, 64));
    c.values = Values::kChannelBias;
    Problem p(c);
    for (const char* recipe : recipes()) run_one_shot(&p, with(p, recipe, "cpu"));
}

TEST(UserCases, T17_PackedSequencesHaveTheirOwnMeans) {
    Case c{.name = "user", .q_heads = 2, .kv_heads = 1, .dim = 64};
    c.batch = 2;
    c.seqlens_q = c.seqlens_k = {150, 130};
    Problem packed(c);
    for (int64_t j = 0; j < 280; ++j)
        for (int64_t d = 0; d < 64; ++d)
            packed.set(packed.params.k, {j, 0, d}, packed.get(packed.params.k, {j, 0, d}) + (j < 150 ? 20.0f : -20.0f));
    packed.freeze_inputs();
    for (const char* recipe : kRecipes) {
        run_one_shot(&packed, with(packed, recipe, "cpu"));
        const Output together = packed.output();
        int64_t first = 0;
        for (const int64_t length : c.seqlens_q) {
            Problem one(shape(1, 2, 1, length, length, 64));
            for (int64_t j = 0; j < length; ++j)
                for (int64_t d = 0; d < 64; ++d) {
                    for (int64_t h = 0; h < 2; ++h)
                        one.set(one.params.q, {0, h, j, d}, packed.get(packed.params.q, {first + j, h, d}));
                    one.set(one.params.k, {0, 0, j, d}, packed.get(packed.params.k, {first + j, 0, d}));
                    one.set(one.params.v, {0, 0, j, d}, packed.get(packed.params.v, {first + j, 0, d}));
                }
            one.freeze_inputs();
            run_one_shot(&one, with(one, recipe, "cpu"));
            for (int64_t j = 0; j < length; ++j)
                for (int64_t h = 0; h < 2; ++h)
                    for (int64_t d = 0; d < 64; ++d)
                        ASSERT_EQ(one.get(one.params.out, {0, h, j, d}),
                                  packed.get(packed.params.out, {first + j, h, d}))
                            << recipe;
            first += length;
        }
    }
}

TEST(UserCases, T18_KvHeadsOfVeryDifferentSize) {
    expect_close(shape(1, 16, 2, 64, 300, 64), [](Problem& p) {
        each(p, p.params.v, [](auto, int64_t h, auto, auto, float x) { return h == 1 ? 100 * x : x; });
        each(p, p.params.k, [](auto, int64_t h, auto, auto, float x) { return h == 1 ? 100 * x : x; });
        each(p, p.params.q, [](auto, int64_t h, auto, auto, float x) { return h >= 8 ? 0.01f * x : x; });
    });
}

TEST(UserCases, T20_TwelveHeadsOfManySmallSequences) {
    expect_close(fp16(shape(9, 12, 12, 20, 20, 128)));
    expect_close(fp16(shape(1, 12, 12, 9, 9, 128)));
}

TEST(UserCases, T23_OneQueryOnACache) {
    for (const int64_t keys : {64, 65, 1000, 5000}) expect_close(fp16(shape(1, 8, 8, 1, keys, 64)));
}

TEST(UserCases, T26_SeventySevenTokens) { expect_close(fp16(shape(1, 12, 12, 77, 77, 64))); }

TEST(UserCases, T27_NoKeysAndNoQueries) {
    for (const auto& [q_len, kv_len] : {std::pair{5, 0}, {0, 5}, {0, 0}}) {
        Problem p(shape(1, 2, 2, q_len, kv_len, 64));
        for (const char* recipe : kRecipes) {
            run_one_shot(&p, with(p, recipe, "cpu"));
            for (const float x : p.output().out) EXPECT_EQ(x, 0.0f);
            for (const float x : p.output().lse) EXPECT_EQ(x, -kInf);
        }
    }
}

// Element offsets beyond 2^31: the tensor's tokens lie 21504 elements apart, 99,900 of them. Only a few tokens are
// backed by memory that is ever touched (the rest of the mapping stays untouched), through a page table of one token.
TEST(UserCases, T28_T29_OffsetsBeyondTwoToTheThirtyOne) {
    constexpr int64_t kStride = 21504, kTokens = 200064;
    Case c = fp16(shape(1, 2, 1, 16, 40, 64));
    Problem plain(c);
    const size_t bytes = static_cast<size_t>(kStride) * kTokens * sizeof(uint16_t);
    // Reserved, not committed: calloc of this size maps zero pages on demand.
    std::unique_ptr<uint16_t, void (*)(void*)> memory(static_cast<uint16_t*>(std::calloc(bytes, 1)), std::free);
    if (memory == nullptr) GTEST_SKIP() << "no address space for " << bytes << " bytes";
    // Page 0 .. 39 of one token each, at the far end of the tensor.
    std::vector<int32_t> table(40);
    for (int j = 0; j < 40; ++j) table[static_cast<size_t>(j)] = static_cast<int32_t>(kTokens - 40 + j);
    const int32_t length = 40;
    clary_attention_params far = plain.params;
    for (clary_tensor* t : {&far.k, &far.v}) {
        for (int64_t j = 0; j < 40; ++j)
            std::memcpy(memory.get() + table[static_cast<size_t>(j)] * kStride + (t == &far.v ? 64 : 0),
                        static_cast<const uint16_t*>(t->data) + j * 64, 128);
        t->data = memory.get() + (t == &far.v ? 64 : 0);
        const int64_t shape_of[] = {kTokens, 1, 1, 64}, stride[] = {kStride, 64, 64, 1};
        std::copy_n(shape_of, 4, t->shape);
        std::copy_n(stride, 4, t->stride);
    }
    const auto vector = [](const void* data, int32_t rank, int64_t last) {
        clary_tensor t{};
        t.data = const_cast<void*>(data);
        t.dtype = CLARY_INT32;
        t.ndim = rank;
        t.shape[0] = 1;
        t.shape[1] = last;
        t.stride[0] = last;
        t.stride[1] = 1;
        return t;
    };
    far.block_table = vector(table.data(), 2, 40);
    far.kv_lengths = vector(&length, 1, 1);
    for (const char* recipe : kRecipes) {
        run_one_shot(&plain, with(plain, recipe, "cpu"));
        const std::vector<unsigned char> expected = plain.output_bytes();
        plain.poison_outputs();
        far.recipe = recipe;
        far.backend = "cpu";
        ASSERT_EQ(clary_attention(&far), CLARY_OK) << clary_last_error();
        EXPECT_EQ(plain.output_bytes(), expected) << recipe;
    }
}

TEST(UserCases, T34_LastDimNotContiguous) {
    for (const Layout layout : {Layout::kTransposed, Layout::kEverySecond}) {
        Case c = fp16(shape(1, 2, 1, 50, 100, 64));
        c.q_layout = c.kv_layout = c.out_layout = layout;
        expect_close(c);
    }
}

TEST(UserCases, T37_KeyPaddingMaskIsApplied) {
    Case c = shape(1, 4, 4, 100, 256, 64);
    c.mask = MaskForm::kBoolean;
    c.mask_axes[1] = c.mask_axes[2] = false;
    c.mask_empty_rows = false;
    expect_close(c, [](Problem& p) {
        for (int64_t j = 0; j < 256; ++j) static_cast<uint8_t*>(p.params.mask.data)[j] = j < 31;
    });
}

TEST(UserCases, T38_ScaleIsHonoured) {
    Case c = shape(1, 2, 2, 100, 100, 64);
    c.has_scale = true;
    c.scale = 0.5;
    // Scores of standard deviation 4 instead of 1, so four times their error.
    expect_close(c, nothing, 0.998, 0.08);
}

TEST(UserCases, T40_AdditiveBiasIsInNaturalUnits) {
    Case c = shape(1, 1, 1, 1, 2, 16);
    c.mask = MaskForm::kF32;
    Problem p(c);
    each(p, p.params.k, [](auto, auto, auto, int64_t d, float) { return d == 0 ? 1.0f : 0.0f; });
    each(p, p.params.v, [](auto, auto, int64_t j, auto, float) { return j == 1 ? 1.0f : 0.0f; });
    p.set(p.params.mask, {0, 0, 0, 0}, 0);
    p.set(p.params.mask, {0, 0, 0, 1}, 2);
    p.freeze_inputs();
    for (const char* recipe : kRecipes) {
        run_one_shot(&p, with(p, recipe, "cpu"));
        // V of key 0 is zero, so that its P counts 16-fold in the row sum: half a code of 255 is 0.03 of the output.
        EXPECT_NEAR(p.output().out[3], 0.8808, std::strcmp(recipe, "int8_int8") == 0 ? 0.03 : 0.004) << recipe;
    }
}

TEST(UserCases, T41_FullyMaskedRow) {
    Case c = shape(1, 2, 2, 50, 200, 64);
    c.mask = MaskForm::kF32;
    Problem p(c);
    const Output expected = exact(p);
    for (const char* recipe : kRecipes) {
        run_one_shot(&p, with(p, recipe, "cpu"));
        for (int64_t i = 0; i < 50; ++i) {
            const bool empty = i % 7 == 3;
            EXPECT_EQ(p.get(p.params.lse, {0, 1, i}) == -kInf, empty) << recipe << " row " << i;
            if (empty) {
                EXPECT_EQ(p.get(p.params.out, {0, 1, i, 5}), 0.0f) << recipe << " row " << i;
            }
        }
        EXPECT_LT(relative_l1(p.output().out, expected.out), 0.05);
    }
}

// A finite mask value of -1e6 on all keys of a row gives the mean that softmax gives, not NaN.
TEST(UserCases, T41_LargeFiniteMask) {
    Case c = shape(1, 1, 1, 20, 200, 64);
    c.mask = MaskForm::kF32;
    expect_close(c, [](Problem& p) {
        for (int64_t i = 0; i < 20; ++i)
            for (int64_t j = 0; j < 200; ++j) p.set(p.params.mask, {0, 0, i, j}, i == 4 || j > 150 ? -1e6f : 0.0f);
    });
}

TEST(UserCases, T42_MaskShapes) {
    for (const MaskForm form : {MaskForm::kBoolean, MaskForm::kF32, MaskForm::kF16, MaskForm::kBF16})
        for (const int axes : {0b1001, 0b0011, 0b1111}) {
            Case c = shape(2, 4, 2, 33, 77, 64);
            c.mask = form;
            for (int axis = 0; axis < 4; ++axis) c.mask_axes[axis] = (axes >> (3 - axis) & 1) != 0;
            c.mask_empty_rows = c.mask_axes[2];
            c.mask_stride_zero = axes == 0b1001;
            expect_close(c);
        }
}

TEST(UserCases, T43_CausalAlignments) {
    Case c = shape(1, 1, 1, 1, 5, 64);
    c.causal = Causal::kTopLeft;
    Problem top(c);
    for (const char* recipe : kRecipes) {
        run_one_shot(&top, with(top, recipe, "cpu"));
        EXPECT_NEAR(top.get(top.params.out, {0, 0, 0, 3}), top.get(top.params.v, {0, 0, 0, 3}), 0.02) << recipe;
    }
    c.causal = Causal::kBottomRight;
    Problem bottom(c);
    c.causal = Causal::kNone;
    Problem plain(c);
    for (const char* recipe : kRecipes) {
        run_one_shot(&bottom, with(bottom, recipe, "cpu"));
        run_one_shot(&plain, with(plain, recipe, "cpu"));
        EXPECT_EQ(bottom.output_bytes(), plain.output_bytes()) << recipe;
    }
}

TEST(UserCases, T47_HeadDimsOfImageModels) {
    for (const int64_t dim : {160, 192, 256}) expect_close(fp16(shape(1, 2, 2, 60, 90, dim)));
    for (const int64_t dim : {384, 512}) {
        Problem p(fp16(shape(1, 1, 1, 30, 50, dim)));
        const Output expected = exact(p);
        // "auto" takes the exact path; an INT8 recipe by name is refused with a reason.
        clary_attention_params params = with(p, "auto", "cpu");
        run_one_shot(&p, params);
        EXPECT_NE(std::string(clary_last_kernel()).find("fp32_fp32"), std::string::npos);
        EXPECT_LT(relative_l1(p.output().out, expected.out), 1e-3);
        params.recipe = "int8_int8";
        EXPECT_EQ(clary_attention(&params), CLARY_UNSUPPORTED);
        EXPECT_NE(std::string(clary_last_error()).find("1..256"), std::string::npos) << clary_last_error();
    }
}

TEST(UserCases, T48_OddHeadDims) {
    expect_close(fp16(shape(7, 8, 8, 64, 128, 40)));
    for (const int64_t dim : {72, 80, 96, 112, 120}) expect_close(fp16(shape(1, 2, 2, 100, 130, dim)));
}

TEST(UserCases, T49_MixedTypes) {
    Case c = shape(1, 4, 2, 70, 150, 64);
    c.v = c.out = DType::kBF16;
    expect_close(c);
    c.out = DType::kF32;
    expect_close(c);
}

TEST(UserCases, T50_AllFp32) { expect_close(shape(2, 4, 4, 100, 100, 64)); }

TEST(UserCases, T51_TwentyEightHeadsOnFour) { expect_close(bf16(shape(1, 28, 4, 40, 200, 128))); }

TEST(UserCases, T52_LseShapeAndValues) {
    Problem p(shape(2, 4, 2, 33, 70, 64));
    const Output expected = exact(p);
    ASSERT_EQ(p.params.lse.ndim, 3);
    for (const char* recipe : kRecipes) {
        run_one_shot(&p, with(p, recipe, "cpu"));
        EXPECT_LT(largest_difference(p.output().lse, expected.lse), 0.05) << recipe;
    }
}

TEST(UserCases, T54_ShardsOfKeysMergedByLse) {
    Case c = shape(1, 4, 2, 64, 512, 64);
    Problem p(c);
    // Means that differ from shard to shard.
    each(p, p.params.k, [](auto, auto, int64_t j, int64_t d, float x) {
        return x + 3 * std::sin(static_cast<float>(j / 64 * 7 + d));
    });
    p.freeze_inputs();
    const Output expected = exact(p);
    for (const char* recipe : kRecipes) {
        run_one_shot(&p, with(p, recipe, "cpu"));
        const double whole_error = relative_l1(p.output().out, expected.out);
        for (const int64_t shards : {2, 4, 8}) {
            Output sum;
            clary_tensor out_a{}, lse_a{};
            std::vector<Output> parts(static_cast<size_t>(shards));
            for (int64_t s = 0; s < shards; ++s) {
                Output& part = parts[static_cast<size_t>(s)];
                part.out.resize(expected.out.size());
                part.lse.resize(expected.lse.size());
                clary_attention_params shard = with(p, recipe, "cpu");
                for (clary_tensor* t : {&shard.k, &shard.v}) {
                    t->data = static_cast<float*>(t->data) + s * 512 / shards * t->stride[2];
                    t->shape[2] = 512 / shards;
                }
                shard.out.data = part.out.data();
                shard.lse.data = part.lse.data();
                shard.lse.stride[1] = 64;
                shard.lse.stride[0] = 256;
                ASSERT_EQ(clary_attention(&shard), CLARY_OK) << clary_last_error();
                if (s == 0) {
                    out_a = shard.out;
                    lse_a = shard.lse;
                } else {
                    clary_merge_params merge{};
                    merge.struct_size = sizeof(merge);
                    merge.out_a = out_a;
                    merge.lse_a = lse_a;
                    merge.out_b = shard.out;
                    merge.lse_b = shard.lse;
                    ASSERT_EQ(clary_merge(&merge), CLARY_OK) << clary_last_error();
                }
            }
            EXPECT_LT(relative_l1(parts[0].out, expected.out), 1.1 * whole_error + 1e-6) << recipe << " " << shards;
            EXPECT_LT(largest_difference(parts[0].lse, expected.lse), 0.05) << recipe << " " << shards;
        }
    }
}

TEST(UserCases, T55_LseOfSmoothedGroupedHeads) {
    Case c = bf16(shape(1, 8, 2, 40, 300, 64));
    Problem p(c);
    // LSE of about 100: q and k share a direction.
    each(p, p.params.k, [](auto, auto, auto, int64_t d, float x) { return d < 8 ? x + 10 : x; });
    each(p, p.params.q, [](auto, auto, auto, int64_t d, float x) { return d < 8 ? x + 10 : x; });
    p.freeze_inputs();
    const Output expected = exact(p);
    EXPECT_GT(expected.lse[0], 80);
    for (const char* recipe : kRecipes) {
        run_one_shot(&p, with(p, recipe, "cpu"));
        EXPECT_LT(largest_difference(p.output().lse, expected.lse), 0.1) << recipe;
    }
}

}  // namespace
}  // namespace clary::cases
