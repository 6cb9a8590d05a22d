// SPDX-License-Identifier: Apache-2.0
// The paths that users of SageAttention's port to these chips know, and those beyond it, each at three head dims and in both
// layouts: cosine to exact attention at least 0.99, as that port asks, and the oracle's tolerance by the case list.

#include "cpu/run.h"

namespace clary::cases {
namespace {

// Three granularities of fp16 PV with fp32 sums are the port's six paths but for its fp16 accumulators, which these chips do
// not have (docs/maca.md).
constexpr const char* kPaths[] = {"int8_fp16:fast+granularity=per_warp",
                                  "int8_fp16:fast+granularity=per_thread",
                                  "int8_fp16:fast+granularity=per_block",
                                  "int8_fp16:fast+smooth_v",
                                  "int8_bf16",
                                  "int8_int8",
                                  "int8_int8:fast"};

class Matrix : public testing::TestWithParam<const char*> {};

TEST_P(Matrix, IsNearExact) {
    int runs = 0;
    for (const int64_t dim : {32, 64, 128})
        for (const Layout layout : {Layout::kHnd, Layout::kNhd}) {
            Problem problem({.name = "matrix",
                             .q_heads = 2,
                             .kv_heads = 1,
                             .q_len = 64,
                             .kv_len = 97,
                             .dim = dim,
                             .q = DType::kF16,
                             .k = DType::kF16,
                             .v = DType::kF16,
                             .out = DType::kF16,
                             .q_layout = layout,
                             .kv_layout = layout,
                             .out_layout = layout});
            for (const char* tier : tiers()) {
                const clary_attention_params params = with(problem, GetParam(), tier);
                if (!takes(params)) continue;
                SCOPED_TRACE(std::string(tier) + ", head dim " + std::to_string(dim));
                const Output expected = exact(problem);
                run_one_shot(&problem, params);
                EXPECT_GE(cosine(problem.output().out, expected.out), 0.99);
                ++runs;
            }
        }
    if (runs == 0) GTEST_SKIP() << "no kernel of this build takes " << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Paths, Matrix, testing::ValuesIn(kPaths));

}  // namespace
}  // namespace clary::cases
