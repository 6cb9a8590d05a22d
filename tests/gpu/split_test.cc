// SPDX-License-Identifier: Apache-2.0
// Keys in pieces, joined by the kernel behind attention: against the oracle, as problems in one piece are. Also when the
// library cuts, and where.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "gpu/attention/lane_rows.h"
#include "gpu/run.h"

namespace clary::cases {

inline void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr const char* kRecipes[] = {"int8_int8",
                                    "int8_int8:fast+v_scale=channel_tile+smooth_v",
                                    "int8_int8:fast+tile=64",
                                    "int8_fp16",
                                    "int8_bf16+tile=64",
                                    "int8_fp8",
                                    "int8_fp16+accum=fp16",
                                    "fp16_fp16",
                                    "bf16_bf16"};

Case base(int64_t q_len = 1, int64_t kv_len = 600) {
    return {.name = "split",
            .q_heads = 4,
            .kv_heads = 1,
            .q_len = q_len,
            .kv_len = kv_len,
            .dim = 60,
            .causal = Causal::kBottomRight};
}

void check(const Case& c, std::initializer_list<int> pieces) {
    Problem problem(c);
    int runs = 0;
    for (const char* recipe : kRecipes)
        for (const int count : pieces) {
            SCOPED_TRACE(fmt::format("{} pieces", count));
            runs += check_all_machines(&problem, recipe, count);
            if (testing::Test::HasFailure()) return;
        }
    EXPECT_GT(runs, 0);
}

// -- where pieces begin --

std::vector<int> tiles_of(const gpu::TileRange& range) {
    std::vector<int> tiles;
    for (int tile = range.first(); range.has(tile); tile = range.after(tile)) tiles.push_back(tile);
    return tiles;
}

TEST(Pieces, AreTheTilesEachOnceAndInOrder) {
    for (const int keep : {0, 1, 3, 7})
        for (const int begin : {0, 7, 12})
            for (const int length : {0, 1, 2, 5, 16, 31})
                for (const int pieces : {2, 3, 4, 7, 128}) {
                    if (keep > 0 && begin < 7) continue;  // TileRange joins what meets
                    const gpu::TileRange whole{keep, begin, begin + length};
                    std::vector<int> joined;
                    size_t longest = 0;
                    for (int i = 0; i < pieces; ++i) {
                        const std::vector<int> part = tiles_of(whole.piece(i, pieces));
                        joined.insert(joined.end(), part.begin(), part.end());
                        longest = std::max(longest, part.size());
                    }
                    EXPECT_EQ(joined, tiles_of(whole))
                        << keep << " and " << begin << " + " << length << " in " << pieces;
                    const int cuts = keep > 0 && length > 0 ? pieces - 1 : pieces;
                    EXPECT_LE(longest, static_cast<size_t>((keep + length + cuts - 1) / cuts));
                }
}

AttentionDesc decode(int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t q_len, int64_t kv_len) {
    AttentionDesc desc;
    desc.batch = batch;
    desc.q_heads = q_heads;
    desc.kv_heads = kv_heads;
    desc.q_len = q_len;
    desc.kv_len = kv_len;
    desc.head_dim = desc.head_dim_v = 128;
    EXPECT_TRUE(parse_recipe("int8_int8", &desc.recipe).is_ok());
    return desc;
}

TEST(Pieces, AreMadeOfLongKeysAndShortQueries) {
    EXPECT_EQ(gpu::pieces_of(decode(1, 32, 8, 1, 131072)), 32);
    EXPECT_EQ(gpu::pieces_of(decode(1, 8, 1, 1, 131072)), 128);
    EXPECT_EQ(gpu::pieces_of(decode(1, 32, 8, 16, 131072)), 32);
    EXPECT_EQ(gpu::pieces_of(decode(1, 32, 8, 17, 131072)), 1);
    EXPECT_EQ(gpu::pieces_of(decode(1, 32, 8, 1, 511)), 1);
    EXPECT_EQ(gpu::pieces_of(decode(1, 32, 8, 1, 1024)), 4);
    EXPECT_EQ(gpu::pieces_of(decode(16, 32, 8, 1, 32768)), 2);
    EXPECT_EQ(gpu::pieces_of(decode(32, 32, 8, 1, 32768)), 1);
    EXPECT_EQ(gpu::pieces_of(decode(48, 32, 8, 1, 32768)), 2);
    EXPECT_EQ(gpu::pieces_of(decode(64, 32, 8, 1, 32768)), 1);
    EXPECT_EQ(gpu::pieces_of(decode(1, 32, 8, 0, 32768)), 1);
    EXPECT_EQ(gpu::pieces_of(decode(0, 32, 8, 1, 32768)), 1);
    const AttentionDesc one = decode(1, 32, 8, 1, 131072);
    EXPECT_EQ(gpu::split_bytes(one, 1), 0);
    EXPECT_EQ(gpu::split_bytes(one, 128), 128 * 32 * (128 * 4 + 16));
}

// -- results --

TEST(Split, Decode) { check(base(), {2, 3, 5, 128}); }
TEST(Split, KeysAroundBordersOfPieces) {
    for (const int64_t keys : {1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 383, 385}) check(base(1, keys), {2, 3});
}
TEST(Split, AsManyPiecesAsThreads) { check(base(1, 128 * 128), {127, 128}); }
TEST(Split, SeveralQueries) {
    check(base(7), {2, 4});
    check(base(16), {3});
    check(base(40), {2});  // 160 rows: several tiles
}
TEST(Split, RowsThatSeeNothingOfSomePieces) {
    Case c = base(9, 300);
    c.causal = Causal::kOffset;
    for (const int64_t offset : {-4, 0, 60, 125, 250}) {
        c.causal_offset = offset;
        check(c, {2, 5});
    }
}
TEST(Split, Windows) {
    for (const int64_t keep : {0, 3, 70, 150})
        for (const int64_t left : {0, 20, 200}) {
            Case c = base(3, 700);
            c.window = {.enabled = true, .left = left, .right = -1, .keep = keep};
            c.sinks = keep == 3;
            check(c, {2, 4});
        }
}
TEST(Split, Masks) {
    for (const MaskForm form : {MaskForm::kBoolean, MaskForm::kF32, MaskForm::kBF16})
        for (const bool all : {false, true}) {
            Case c = base(5, 300);
            c.mask = form;
            c.mask_all = all && form == MaskForm::kBoolean;
            c.sinks = all;
            check(c, {2, 3});
        }
    Case c = base(5, 300);
    c.alibi = true;
    check(c, {2, 3});
}
TEST(Split, Lengths) {
    Case c = base(2, 520);
    c.batch = 3;
    c.kv_heads = 2;
    c.kv_lengths = {520, 130, 0};
    for (const bool sinks : {false, true}) {
        c.sinks = sinks;
        check(c, {2, 9});
    }
}
TEST(Split, PackedSequences) {
    Case c = base(5, 400);
    c.seqlens_q = {1, 5, 0, 3};
    c.seqlens_k = {400, 7, 90, 260};
    c.kv_heads = 2;
    c.sinks = true;
    check(c, {2, 3});
}
TEST(Split, Pages) {
    Case c = base(2, 300);
    c.page_size = 16;
    c.batch = 2;
    c.kv_lengths = {300, 190};
    check(c, {2, 3});
}
TEST(Split, Layouts) {
    for (const Layout layout : {Layout::kNhd, Layout::kGaps, Layout::kTransposed, Layout::kEverySecond})
        for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
            Case c = base(3, 200);
            c.out_layout = layout;
            c.out = type;
            check(c, {2});
        }
}
TEST(Split, NoLse) {
    for (const bool sinks : {false, true}) {
        Case c = base(3, 300);
        c.lse = false;
        c.sinks = sinks;
        Problem problem(c);
        for (const char* recipe : kRecipes) {
            const AttentionDesc desc = gpu_desc_of(problem, recipe);
            for (const Simulated* kernel : kernels_for(desc)) {
                SCOPED_TRACE(fmt::format("{} on {}", recipe, name_of(kernel->entry)));
                const ReferencePacked packed(desc, gpu::arrangement_of(kernel->entry.machine));
                run(*kernel, &problem, desc, packed.q, packed.kv, 3);
                if (HasFailure()) return;
                Output oracle = oracle_of(problem, desc, packed);
                oracle.lse.clear();  // tells it all the same
                expect_near(problem.output(), oracle, desc.recipe, c);
            }
        }
    }
}
TEST(Split, Values) {
    for (const enum Values values : {Values::kLargeK, Values::kSink, Values::kZeroQ, Values::kConstantV}) {
        Case c = base(2, 300);
        c.values = values;
        if (values != Values::kSink) c.score_gain = 0;
        if (values == Values::kLargeK) c.score_size = 1e4;
        check(c, {2, 3});
    }
}
TEST(Split, HeadDims) {
    for (const int64_t dim : {5, 32, 64, 80, 96, 128, 160, 192, 256}) {
        Case c = base(2, 200);
        c.dim = dim;
        check(c, {2});
        Problem problem(c);
        for (const char* recipe : {"int8_int8+smooth_v+rotate_v+tile=64", "int8_int8:fast+smooth_v+rotate_v+tile=64"})
            check_all_machines(&problem, recipe, 3);
    }
}

// A piece that has all keys gives what the kernel gives alone, and so do pieces beside it that are empty.
TEST(Split, OfOneTileIsTheWhole) {
    Problem problem(base(3, 60));
    for (const char* recipe : {"int8_int8", "bf16_bf16"}) {
        const AttentionDesc desc = gpu_desc_of(problem, recipe);
        for (const Simulated* kernel : kernels_for(desc)) {
            SCOPED_TRACE(fmt::format("{} on {}", recipe, name_of(kernel->entry)));
            const ReferencePacked packed(desc, gpu::arrangement_of(kernel->entry.machine));
            run(*kernel, &problem, desc, packed.q, packed.kv);
            const Output whole = problem.output();
            run(*kernel, &problem, desc, packed.q, packed.kv, 4);
            const Output split = problem.output();
            if (HasFailure()) return;
            for (size_t i = 0; i < whole.out.size(); ++i)
                ASSERT_NEAR(split.out[i], whole.out[i], 4e-7f * std::fabs(whole.out[i]) + 1e-7f) << i;
            for (size_t i = 0; i < whole.lse.size(); ++i) ASSERT_NEAR(split.lse[i], whole.lse[i], 1e-6f) << i;
        }
    }
}

TEST(Split, TheSameBitsEachTime) {
    Problem problem(base(4, 500));
    const AttentionDesc desc = gpu_desc_of(problem, "int8_int8");
    for (const Simulated* kernel : kernels_for(desc)) {
        const ReferencePacked packed(desc, gpu::arrangement_of(kernel->entry.machine));
        std::vector<unsigned char> first;
        for (int again = 0; again < 3; ++again) {
            run(*kernel, &problem, desc, packed.q, packed.kv, 3);
            if (HasFailure()) return;
            if (again == 0) first = problem.output_bytes();
            EXPECT_EQ(problem.output_bytes(), first);
        }
    }
}

// Buffers that were packed for another softmax scale.
TEST(Split, ForeignBuffersGiveNan) {
    Problem problem(base(4, 500));
    const AttentionDesc desc = gpu_desc_of(problem, "int8_int8");
    AttentionDesc other = desc;
    other.scale *= 2;
    for (const Simulated* kernel : kernels_for(desc)) {
        const ReferencePacked packed(other, gpu::arrangement_of(kernel->entry.machine));
        run(*kernel, &problem, desc, packed.q, packed.kv, 3);
        if (HasFailure()) return;
        for (const float x : problem.output().out) ASSERT_TRUE(std::isnan(x));
        for (const float x : problem.output().lse) ASSERT_TRUE(std::isnan(x));
    }
}

TEST(Split, RowsWithoutKeys) {
    Case c = base(4, 500);
    c.kv_lengths = {0};
    Problem problem(c);
    const AttentionDesc desc = gpu_desc_of(problem, "int8_int8");
    for (const Simulated* kernel : kernels_for(desc)) {
        const ReferencePacked packed(desc, gpu::arrangement_of(kernel->entry.machine));
        run(*kernel, &problem, desc, packed.q, packed.kv, 3);
        if (HasFailure()) return;
        for (const float x : problem.output().out) ASSERT_EQ(x, 0.0f);
        for (const float x : problem.output().lse) ASSERT_EQ(x, -kInf);
    }
}

}  // namespace
}  // namespace clary::cases
