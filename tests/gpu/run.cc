// SPDX-License-Identifier: Apache-2.0
#include "gpu/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "reference/pack.h"
#include "reference/quantize.h"
#include "reference/unpack.h"

namespace clary::cases {

AttentionDesc gpu_desc_of(const Problem& problem, const std::string& recipe) {
    AttentionDesc desc = desc_of(problem.params, recipe.c_str());
    if (!desc.recipe.quantized()) desc.recipe.tile = 64;
    return desc;
}

ReferencePacked::ReferencePacked(const AttentionDesc& desc, const Arrangement& of)
    : arrangement(of),
      q_layout(packed_q_layout(desc, of)),
      kv_layout(packed_kv_layout(desc, 0, of)),
      q(static_cast<size_t>(q_layout.bytes)),
      kv(static_cast<size_t>(kv_layout.bytes)) {
    std::fill_n(static_cast<char*>(q.data()), q.size(), 0);
    std::fill_n(static_cast<char*>(kv.data()), kv.size(), 0);
    write_header(desc, q_layout, q.data(), 0);
    write_header(desc, kv_layout, kv.data(), 0);
    for (int64_t b = 0; b < desc.batch; ++b)
        for (int64_t h = 0; h < desc.kv_heads; ++h)
            reference::pack_head(desc, b, h, reference::quantize_head(desc, b, h), q.data(), kv.data(), of);
}

Output oracle_of(const Problem& problem, const AttentionDesc& desc, const ReferencePacked& packed) {
    Output oracle;
    const AttentionDesc to = redirect(desc, problem.params, &oracle);
    const Status status = reference::attend_packed(to, 0, packed.q.data(), packed.kv.data(), 1, packed.arrangement);
    EXPECT_TRUE(status.is_ok()) << status.text();
    return oracle;
}

sim::Options next_options() {
    static uint64_t seed = 0;
    sim::Options options;
    options.seed = ++seed;
    options.copies = seed % 2 == 0 ? sim::Copies::kEarly : sim::Copies::kLate;
    return options;
}

void run(const Simulated& kernel, Problem* problem, const AttentionDesc& desc, const Guarded& q, const Guarded& kv,
         int pieces) {
    problem->poison_outputs();
    gpu::AttentionParams params =
        gpu::attention_params(desc, 0, q.data(), kv.data(), gpu::arrangement_of(kernel.entry.machine));
    Guarded memory(static_cast<size_t>(gpu::split_bytes(desc, pieces)));
    if (pieces > 1) gpu::split_into(&params, pieces, memory.data());
    const sim::Report report = kernel.launch(params, next_options());
    EXPECT_TRUE(memory.canaries_intact());
    ASSERT_TRUE(report.ok()) << report.describe();
    EXPECT_EQ(report.counters.bank_conflicts, 0) << report.describe();
    EXPECT_EQ(problem->damage(), "");
}

void expect_near(const Output& result, const Output& oracle, const Recipe& recipe, const Case& c) {
    ASSERT_EQ(result.out.size(), oracle.out.size());
    ASSERT_EQ(result.lse.size(), oracle.lse.size());
    Output expected = oracle, found = result;
    for (size_t i = 0; i < expected.out.size(); ++i) {
        ASSERT_EQ(std::isnan(found.out[i]), std::isnan(expected.out[i])) << "element " << i << ": " << found.out[i];
        if (std::isnan(expected.out[i])) found.out[i] = expected.out[i] = 0;
    }
    EXPECT_LE(relative_l1(found.out, expected.out), attend_l1(recipe, c) + output_rounding(c.out));
    const double largest = largest_magnitude(expected.out);
    EXPECT_LE(largest_difference(found.out, expected.out),
              (attend_max(recipe, c) + output_rounding(c.out)) * largest + 1e-30);
    for (size_t i = 0; i < expected.lse.size(); ++i) {
        const float lse = expected.lse[i];
        if (std::isnan(lse))
            ASSERT_TRUE(std::isnan(found.lse[i])) << "lse " << i << ": " << found.lse[i];
        else if (std::isfinite(lse))
            ASSERT_NEAR(found.lse[i], lse, kLse + lse_rounding(lse)) << "lse " << i;
        else
            ASSERT_EQ(found.lse[i], lse) << "lse " << i;
    }
}

int check_all_machines(Problem* problem, const char* recipe, int pieces) {
    const AttentionDesc desc = gpu_desc_of(*problem, recipe);
    const std::vector<const Simulated*> kernels = kernels_for(desc);
    std::unique_ptr<ReferencePacked> packed;
    Output oracle;
    for (const Simulated* kernel : kernels) {
        SCOPED_TRACE(std::string(recipe) + " on " + name_of(kernel->entry));
        const Arrangement& arrangement = gpu::arrangement_of(kernel->entry.machine);
        if (!packed || &packed->arrangement != &arrangement) {
            packed = std::make_unique<ReferencePacked>(desc, arrangement);
            oracle = oracle_of(*problem, desc, *packed);
        }
        run(*kernel, problem, desc, packed->q, packed->kv, pieces);
        if (testing::Test::HasFatalFailure()) break;
        expect_near(problem->output(), oracle, desc.recipe, problem->spec());
        if (testing::Test::HasFailure()) break;
    }
    return static_cast<int>(kernels.size());
}

}  // namespace clary::cases
