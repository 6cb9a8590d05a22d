// SPDX-License-Identifier: Apache-2.0
// Each check of the edge once: what is wrong, that it is refused, and that the text names argument, value and what is
// allowed.
#include "core/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cases/problem.h"

namespace clary::cases {
namespace {

using Params = clary_attention_params;

struct Mistake {
    const char* name;
    const char* problem;  // "dense", "varlen", "paged"
    std::function<void(Params&)> make;
    std::vector<const char*> says;
};

Case case_of(const std::string& kind) {
    Case c{.name = kind, .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 5, .kv_len = 9, .dim = 8};
    c.dim_v = 12;
    if (kind == "varlen") {
        c.seqlens_q = {2, 3};
        c.seqlens_k = {4, 5};
    }
    if (kind == "paged") {
        c.page_size = 4;
        c.kv_lengths = {9, 3};
    }
    if (kind == "full") {
        c.mask = MaskForm::kF32;
        c.kv_lengths = {9, 3};
        c.alibi = c.sinks = true;
        c.causal = Causal::kOffset;
        c.causal_offsets = {1, 2};
        c.window = {.enabled = true, .left = 3, .right = -1, .keep = 1};
    }
    return c;
}

std::vector<Mistake> mistakes() {
    static int32_t bad_cu[3] = {0, 9, 5}, bad_first[3] = {1, 2, 5}, bad_end[3] = {0, 2, 4};
    static int32_t bad_lengths[2] = {9, 10}, bad_pages[6] = {1, 2, 3, 99, 5, 6};
    static int64_t bad_offsets[2] = {0, int64_t{1} << 50};
    static float vector[64];
    const auto give = [](clary_tensor* t, void* data, int32_t dtype, std::initializer_list<int64_t> shape) {
        *t = {};
        t->data = data;
        t->dtype = dtype;
        t->ndim = static_cast<int32_t>(shape.size());
        int i = 0;
        for (const int64_t extent : shape) t->shape[i++] = extent;
        int64_t stride = 1;
        for (i = t->ndim; i-- > 0; stride *= std::max<int64_t>(t->shape[i], 1)) t->stride[i] = stride;
    };
    const double kNan = std::numeric_limits<double>::quiet_NaN();
    return {
        {"struct_size", "dense", [](Params& p) { p.struct_size = 1; }, {"params: struct_size 1; allowed: "}},
        {"q rank", "dense", [](Params& p) { p.q.ndim = 3; }, {"q: 3 dimensions; allowed: 4"}},
        {"q rank varlen", "varlen", [](Params& p) { p.q.ndim = 4; }, {"q: 4 dimensions; allowed: 3"}},
        {"q missing", "dense", [](Params& p) { p.q = {}; }, {"q: 0 dimensions; allowed: 4"}},
        {"k rank", "dense", [](Params& p) { p.k.ndim = 5; }, {"k: 5 dimensions; allowed: 4"}},
        {"q type",
         "dense",
         [](Params& p) { p.q.dtype = CLARY_INT8; },
         {"q: dtype int8 (5)", "allowed: fp32, fp16, bf16"}},
        {"v type", "dense", [](Params& p) { p.v.dtype = 77; }, {"v: dtype unknown (77)", "allowed: fp32, fp16, bf16"}},
        {"device", "dense", [](Params& p) { p.q.device = 9; }, {"q: device 9; allowed: 0 (cpu)"}},
        {"negative extent", "dense", [](Params& p) { p.q.shape[2] = -1; }, {"q: shape[2] is -1; allowed: 0..2^40"}},
        {"large extent",
         "dense",
         [](Params& p) { p.k.shape[2] = int64_t{1} << 41; },
         {"k: shape[2]", "allowed: 0..2^40"}},
        {"elements",
         "dense",
         [](Params& p) {
             p.q.shape[0] = int64_t{1} << 30;
             p.q.shape[2] = int64_t{1} << 30;
         },
         {"q: shape [", "2^46"}},
        {"q null", "dense", [](Params& p) { p.q.data = nullptr; }, {"q: data is null"}},
        {"out null", "dense", [](Params& p) { p.out.data = nullptr; }, {"out: data is null"}},
        {"q misaligned",
         "dense",
         [](Params& p) { p.q.data = static_cast<char*>(p.q.data) + 1; },
         {"q: data", "not aligned", "4 bytes"}},
        {"head dims differ", "dense", [](Params& p) { p.k.shape[3] = 16; }, {"k: head_dim is 16, but q has 8"}},
        {"head dim 0",
         "dense",
         [](Params& p) { p.q.shape[3] = p.k.shape[3] = 0; },
         {"q: head_dim is 0; allowed: 1..65536"}},
        {"v head dim", "dense", [](Params& p) { p.v.shape[3] = 70000; }, {"v: head_dim is 70000; allowed: 1..65536"}},
        {"v heads", "dense", [](Params& p) { p.v.shape[1] = 4; }, {"v: heads is 4, but k has 2"}},
        {"v tokens", "dense", [](Params& p) { p.v.shape[2] = 8; }, {"v: tokens is 8, but k has 9"}},
        {"heads no multiple",
         "dense",
         [](Params& p) { p.q.shape[1] = 3; },
         {"q: heads 3", "2 heads of k", "allowed: a positive multiple"}},
        {"heads 0",
         "dense",
         [](Params& p) { p.k.shape[1] = p.v.shape[1] = 0; },
         {"heads", "allowed: a positive multiple"}},
        {"k batch", "dense", [](Params& p) { p.k.shape[0] = 3; }, {"k: batch is 3, but q has 2"}},
        {"v batch", "dense", [](Params& p) { p.v.shape[0] = 1; }, {"v: batch is 1, but q has 2"}},
        {"out missing", "dense", [](Params& p) { p.out = {}; }, {"out: not given"}},
        {"out type",
         "dense",
         [](Params& p) { p.out.dtype = CLARY_FP64; },
         {"out: dtype fp64", "allowed: fp32, fp16, bf16"}},
        {"out broadcast", "dense", [](Params& p) { p.out.stride[1] = 0; }, {"out: stride[1] is 0 along 4"}},
        {"out batch", "dense", [](Params& p) { p.out.shape[0] = 1; }, {"out: batch is 1, but q has 2"}},
        {"out heads", "dense", [](Params& p) { p.out.shape[1] = 2; }, {"out: heads is 2, but q has 4"}},
        {"out tokens", "dense", [](Params& p) { p.out.shape[2] = 4; }, {"out: tokens is 4, but q has 5"}},
        {"out dim", "dense", [](Params& p) { p.out.shape[3] = 8; }, {"out: head_dim is 8, but v has 12"}},
        {"lse rank", "dense", [](Params& p) { p.lse.ndim = 2; }, {"lse: 2 dimensions; allowed: 3"}},
        {"lse type", "dense", [](Params& p) { p.lse.dtype = CLARY_FP16; }, {"lse: dtype fp16", "allowed: fp32"}},
        {"lse broadcast", "dense", [](Params& p) { p.lse.stride[2] = 0; }, {"lse: stride[2] is 0"}},
        {"lse tokens", "dense", [](Params& p) { p.lse.shape[2] = 6; }, {"lse: tokens is 6, but q has 5"}},
        {"lse heads", "dense", [](Params& p) { p.lse.shape[1] = 1; }, {"lse: heads is 1, but q has 4"}},
        {"lse batch", "dense", [](Params& p) { p.lse.shape[0] = 1; }, {"lse: batch is 1, but q has 2"}},
        {"scale without has_scale", "dense", [](Params& p) { p.scale = 0.5; }, {"scale: 0.5", "set has_scale"}},
        {"scale NaN",
         "dense",
         [kNan](Params& p) {
             p.has_scale = 1;
             p.scale = kNan;
         },
         {"scale: nan; allowed: 0, or 1e-20 to 1e20"}},
        {"scale tiny",
         "dense",
         [](Params& p) {
             p.has_scale = 1;
             p.scale = -1e-30;
         },
         {"scale: -1e-30; allowed: 0, or 1e-20 to 1e20"}},
        {"scale huge",
         "dense",
         [](Params& p) {
             p.has_scale = 1;
             p.scale = 1e31;
         },
         {"scale: 1e+31; allowed: 0, or 1e-20 to 1e20"}},
        {"causal", "dense", [](Params& p) { p.causal = 4; }, {"causal: 4; allowed: 0 (none)"}},
        {"offset without causal",
         "dense",
         [](Params& p) { p.causal_offset = 3; },
         {"causal_offset: given with causal 0"}},
        {"offset range",
         "dense",
         [](Params& p) {
             p.causal = CLARY_CAUSAL_OFFSET;
             p.causal_offset = int64_t{1} << 50;
         },
         {"causal_offset: 1125899906842624; allowed: within +-2^40"}},
        {"offsets length",
         "full",
         [](Params& p) { p.causal_offsets.shape[0] = 3; },
         {"causal_offsets: length is 3, but the batch is 2"}},
        {"offsets type",
         "full",
         [](Params& p) { p.causal_offsets.dtype = CLARY_FP32; },
         {"causal_offsets: dtype fp32", "allowed: int32, int64"}},
        {"both offsets",
         "full",
         [](Params& p) { p.causal_offset = 1; },
         {"causal_offset: 1", "allowed: one of the two"}},
        {"max_seqlen dense",
         "dense",
         [](Params& p) { p.max_seqlen_k = 9; },
         {"max_seqlen_k: given without cu_seqlens_q"}},
        {"stride reach",
         "dense",
         [](Params& p) { p.k.stride[2] = int64_t{1} << 45; },
         {"k: stride[2] is 35184372088832", "allowed: a tensor that spans less than 2^46"}},
        {"offsets value",
         "full",
         [](Params& p) { p.causal_offsets.data = bad_offsets; },
         {"causal_offsets[1]: ", "allowed: within"}},
        {"window not enabled", "dense", [](Params& p) { p.window_left = 3; }, {"window: given but has_window is 0"}},
        {"window left",
         "full",
         [](Params& p) { p.window_left = -2; },
         {"window_left: -2; allowed: -1 (unlimited) or 0..2^40"}},
        {"window right", "full", [](Params& p) { p.window_right = -5; }, {"window_right: -5; allowed"}},
        {"window keep", "full", [](Params& p) { p.window_keep = -1; }, {"window_keep: -1; allowed: 0..2^40"}},
        {"mask type",
         "full",
         [](Params& p) { p.mask.dtype = CLARY_INT32; },
         {"mask: dtype int32", "allowed: bool, fp32"}},
        {"mask shape",
         "full",
         [](Params& p) { p.mask.shape[3] = 8; },
         {"mask: shape [2, 4, 5, 8] does not broadcast to [2, 4, 5, 9]"}},
        {"mask rank", "full", [](Params& p) { p.mask.ndim = 5; }, {"mask: 5 dimensions; allowed: 1, 2, 3, 4"}},
        {"mask with varlen",
         "varlen",
         [=](Params& p) { give(&p.mask, vector, CLARY_FP32, {9}); },
         {"mask: not allowed together with cu_seqlens_q"}},
        {"lengths type",
         "full",
         [](Params& p) { p.kv_lengths.dtype = CLARY_FP32; },
         {"kv_lengths: dtype fp32", "allowed: int32, int64"}},
        {"lengths length",
         "full",
         [](Params& p) { p.kv_lengths.shape[0] = 1; },
         {"kv_lengths: length is 1, but the batch is 2"}},
        {"lengths value",
         "full",
         [](Params& p) { p.kv_lengths.data = bad_lengths; },
         {"kv_lengths[1]: 10; allowed: 0..9"}},
        {"lengths with varlen",
         "varlen",
         [=](Params& p) { give(&p.kv_lengths, bad_lengths, CLARY_INT32, {2}); },
         {"kv_lengths: not allowed together with cu_seqlens_k"}},
        {"alibi length",
         "full",
         [](Params& p) { p.alibi_slopes.shape[0] = 2; },
         {"alibi_slopes: length is 2, but q has heads 4"}},
        {"sinks type", "full", [](Params& p) { p.sinks.dtype = CLARY_BF16; }, {"sinks: dtype bf16", "allowed: fp32"}},
        {"cu_q only", "varlen", [](Params& p) { p.cu_seqlens_k = {}; }, {"cu_seqlens_k: 0 dimensions; allowed: 1"}},
        {"cu lengths differ",
         "varlen",
         [](Params& p) { p.cu_seqlens_k.shape[0] = 2; },
         {"cu_seqlens_k: length is 2, but cu_seqlens_q has 3"}},
        {"cu empty",
         "varlen",
         [](Params& p) { p.cu_seqlens_q.shape[0] = 0; },
         {"cu_seqlens_q: 0 entries; allowed: sequences + 1"}},
        {"cu falls",
         "varlen",
         [](Params& p) { p.cu_seqlens_q.data = bad_cu; },
         {"cu_seqlens_q[2]: 5 is less than 9", "allowed: not decreasing"}},
        {"cu starts", "varlen", [](Params& p) { p.cu_seqlens_q.data = bad_first; }, {"cu_seqlens_q[0]: 1; allowed: 0"}},
        {"cu ends",
         "varlen",
         [](Params& p) { p.cu_seqlens_q.data = bad_end; },
         {"cu_seqlens_q[2]: 4; allowed: the 5 tokens"}},
        {"max too small",
         "varlen",
         [](Params& p) { p.max_seqlen_k = 4; },
         {"cu_seqlens_k: a sequence of 5 tokens is longer than the given maximum 4"}},
        {"max negative", "varlen", [](Params& p) { p.max_seqlen_q = -1; }, {"max_seqlen_q: -1; allowed: 0 (found)"}},
        {"paged and varlen",
         "varlen",
         [=](Params& p) {
             give(&p.block_table, bad_pages, CLARY_INT32, {2, 3});
         },
         {"block_table: not allowed together with cu_seqlens_q"}},
        {"page table type",
         "paged",
         [](Params& p) { p.block_table.dtype = CLARY_FP32; },
         {"block_table: dtype fp32", "allowed: int32, int64"}},
        {"page table batch",
         "paged",
         [](Params& p) { p.block_table.shape[0] = 1; },
         {"block_table: batch is 1, but q has 2"}},
        {"page out of range",
         "paged",
         [](Params& p) { p.block_table.data = bad_pages; },
         {"block_table[1][0]: 99; allowed: 0..7"}},
        {"paged without lengths",
         "paged",
         [](Params& p) { p.kv_lengths = {}; },
         {"kv_lengths: must be given together with block_table"}},
        {"v pages", "paged", [](Params& p) { p.v.shape[0] = 7; }, {"v: pages is 7, but k has 8"}},
        {"too many keys on pages",
         "paged",
         [](Params& p) { p.block_table.shape[1] = int64_t{1} << 39; },
         {"block_table: 549755813888 pages of 4 keys; allowed: 2^40 keys"}},
        {"too large together",
         "varlen",
         [](Params& p) {
             p.cu_seqlens_q.shape[0] = p.cu_seqlens_k.shape[0] = int64_t{1} << 35;
             p.q.shape[0] = p.out.shape[0] = p.lse.shape[1] = int64_t{1} << 36;
         },
         {"sequences of", "allowed: less than 2^50 elements"}},
        {"page size 0",
         "paged",
         [](Params& p) { p.k.shape[2] = p.v.shape[2] = 0; },
         {"k: page size is 0; allowed: >= 1"}},
        {"c_k type",
         "dense",
         [=](Params& p) {
             give(&p.c_k, vector, CLARY_FP16, {2, 2, 8});
         },
         {"c_k: dtype fp16", "allowed: fp32"}},
        {"c_k dim",
         "dense",
         [=](Params& p) {
             give(&p.c_k, vector, CLARY_FP32, {2, 2, 7});
         },
         {"c_k: head_dim is 7, but q has 8"}},
        {"c_q heads",
         "dense",
         [=](Params& p) {
             give(&p.c_q, vector, CLARY_FP32, {2, 4, 8});
         },
         {"c_q: heads is 4, but k has 2"}},
        {"q_base rank",
         "dense",
         [=](Params& p) { give(&p.q_base, vector, CLARY_FP32, {4}); },
         {"q_base: 1 dimensions; allowed: 2"}},
        {"q_base batch",
         "dense",
         [=](Params& p) {
             give(&p.q_base, vector, CLARY_FP32, {1, 2});
         },
         {"q_base: batch is 1, but the batch is 2"}},
        {"devices differ", "dense", [](Params& p) { p.v.device = CLARY_CUDA; }, {"v: on device 1:0, but q is on 0:0"}},
        {"device index", "dense", [](Params& p) { p.out.device_index = 1; }, {"out: on device 0:1, but q is on 0:0"}},
        {"recipe", "dense", [](Params& p) { p.recipe = "int7"; }, {"recipe: unknown name 'int7'; allowed"}},
    };
}

TEST(Validate, EveryMistakeIsRefusedWithItsName) {
    for (const Mistake& mistake : mistakes()) {
        SCOPED_TRACE(mistake.name);
        Problem problem(case_of(mistake.problem));
        Params params = problem.params;
        AttentionDesc desc;
        bool recipe_is_auto = false;
        const Status before = validate(params, Purpose::kAttention, &desc, &recipe_is_auto);
        ASSERT_TRUE(before.is_ok()) << before.text();
        mistake.make(params);
        const Status status = validate(params, Purpose::kAttention, &desc, &recipe_is_auto);
        ASSERT_FALSE(status.is_ok());
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_EQ(status.text().find('\n'), std::string::npos);
        for (const char* says : mistake.says)
            EXPECT_NE(status.text().find(says), std::string::npos) << "it says: " << status.text();
    }
}

TEST(Validate, EveryCaseOfTheListIsRight) {
    for (const Case& c : all_cases()) {
        const Problem problem(c);
        for (const Purpose purpose : {Purpose::kShapes, Purpose::kAttention, Purpose::kQuantize, Purpose::kAttend}) {
            AttentionDesc desc;
            bool recipe_is_auto = false;
            const Status status = validate(problem.params, purpose, &desc, &recipe_is_auto);
            EXPECT_TRUE(status.is_ok()) << c.name << ": " << status.text();
            EXPECT_TRUE(recipe_is_auto);
        }
    }
}

TEST(Validate, AFailureLeavesTheDescAlone) {
    Problem problem(case_of("dense"));
    AttentionDesc desc;
    desc.batch = 77;
    bool recipe_is_auto = false;
    Params params = problem.params;
    params.lse.dtype = CLARY_BF16;
    EXPECT_FALSE(validate(params, Purpose::kAttention, &desc, &recipe_is_auto).is_ok());
    EXPECT_EQ(desc.batch, 77);
}

}  // namespace
}  // namespace clary::cases
