// SPDX-License-Identifier: Apache-2.0
// The same kernel by way of MetaX's builtins and by way of the simulator's own seam: the same bits. And beside sm80: the
// same bits where integers decide, within the oracle's tolerance elsewhere.
#pragma once

#include <gtest/gtest.h>

#include "cases/problem.h"
#include "cases/tolerances.h"
#include "gpu/attention/attention_kernel.h"
#include "gpu/combine/combine_kernel.h"
#include "gpu/host/variants.h"
#include "gpu/launch.h"
#include "gpu/quantize.h"
#include "maca/target.h"

namespace clary::cases {

template <class T, gpu::AttentionConfig kConfig>
Output attend(Problem* problem, const AttentionDesc& desc, Packed* packed, sim::Counters* counters = nullptr) {
    problem->poison_outputs();
    for (const sim::Copies copies : {sim::Copies::kEarly, sim::Copies::kLate}) {
        sim::Options options;
        options.copies = copies;
        const gpu::AttentionParams params =
            gpu::attention_params(desc, 0, packed->q.data(), packed->kv.data(), packed->arrangement);
        const sim::Report report =
            launch_attention<T, gpu::AttentionKernel<T, kConfig>, gpu::CombineKernel<T>>(params, options);
        EXPECT_TRUE(report.ok()) << report.describe();
        EXPECT_EQ(report.counters.bank_conflicts, 0);
        if (counters != nullptr) *counters = report.counters;
    }
    return problem->output();
}

// Of the kernel without masks and without scales per key.
template <gpu::Machine kMachine, Format kQk, Format kPv, int kDim, int kTile, bool kBias>
void expect_equal(const char* recipe) {
    SCOPED_TRACE(std::string(recipe) + " on " + gpu::machine_name(kMachine));
    static constexpr gpu::AttentionConfig kConfig = gpu::Unit{kQk, kPv, gpu::Sums::kWide, kDim, kDim}.config(
        kBias, kQk == Format::kInt8 ? gpu::KeyScales::kLane : gpu::KeyScales::kNone, false, kTile);
    using Metax = maca::Target<kMachine>;
    Problem problem({.name = "equal",
                     .q_heads = 2,
                     .kv_heads = 1,
                     .q_len = 37,
                     .kv_len = 150,
                     .dim = kDim,
                     .causal = Causal::kBottomRight});
    AttentionDesc desc = desc_of(problem.params, recipe);
    if (!desc.recipe.quantized()) desc.recipe.tile = 64;
    ASSERT_TRUE(gpu::serves(kConfig, desc));

    Packed by_builtins(desc, 0, kMachine), by_sim(desc, 0, kMachine);
    quantize<Metax>(by_builtins.params(desc));
    quantize<sim::Sim<kMachine>>(by_sim.params(desc));
    const auto bytes = [](const Guarded& buffer) {
        const auto* const begin = static_cast<const unsigned char*>(buffer.data());
        return std::vector<unsigned char>(begin, begin + buffer.size());
    };
    EXPECT_EQ(bytes(by_builtins.q), bytes(by_sim.q));
    EXPECT_EQ(bytes(by_builtins.kv), bytes(by_sim.kv));

    const Output builtins = attend<Metax, kConfig>(&problem, desc, &by_builtins);
    const Output own = attend<sim::Sim<kMachine>, kConfig>(&problem, desc, &by_sim);
    EXPECT_EQ(builtins.out, own.out);
    EXPECT_EQ(builtins.lse, own.lse);

    if constexpr (kPv != Format::kFp8) {  // which sm80 does not multiply
        Packed for_sm80(desc, 0, gpu::kSm80);
        quantize<sim::Sim<gpu::kSm80>>(for_sm80.params(desc));
        const Output nvidia = attend<sim::Sim<gpu::kSm80>, kConfig>(&problem, desc, &for_sm80);
        EXPECT_LE(relative_l1(builtins.out, nvidia.out), 2 * attend_l1(desc.recipe, problem.spec()));
        if (kPv == Format::kInt8 && kQk == Format::kInt8) {
            EXPECT_LE(relative_l1(builtins.out, nvidia.out), 1e-6) << "S and T are the same integers";
        }
    }
}

// Of bytes, however their scales are found, and of INT4, which is bytes to kernels.
template <gpu::Machine kMachine>
void expect_equal_bytes() {
    for (const char* recipe : {"int8_int8", "int8_int8+granularity=per_tensor", "int4_int8"})
        expect_equal<kMachine, Format::kInt8, Format::kInt8, 64, 128, true>(recipe);
}

}  // namespace clary::cases
