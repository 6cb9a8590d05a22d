// SPDX-License-Identifier: Apache-2.0
// The same kernel by way of MetaX's builtins and by way of the simulator's own seam: the same bits. And beside sm80: the
// same bits where integers decide, within the oracle's tolerance elsewhere.
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
namespace {

using gpu::Element;

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

template <gpu::Machine kMachine, Element kQk, Element kV, int kDim, int kVariant>
void expect_equal(const char* recipe) {
    SCOPED_TRACE(std::string(recipe) + " on " + gpu::machine_name(kMachine));
    static constexpr gpu::AttentionConfig kConfig = gpu::variant_config(kQk, kV, kDim, kDim, kVariant);
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

    if constexpr (kV != Element::kE4m3) {  // which sm80 does not multiply
        Packed for_sm80(desc, 0, gpu::kSm80);
        quantize<sim::Sim<gpu::kSm80>>(for_sm80.params(desc));
        const Output nvidia = attend<sim::Sim<gpu::kSm80>, kConfig>(&problem, desc, &for_sm80);
        EXPECT_LE(relative_l1(builtins.out, nvidia.out), 2 * attend_l1(desc.recipe, problem.spec()));
        if (kV == Element::kS8 && kQk == Element::kS8) {
            EXPECT_LE(relative_l1(builtins.out, nvidia.out), 1e-6) << "S and T are the same integers";
        }
    }
}

TEST(Equal, Xcore1000) {
    for (const char* recipe : {"int8_int8", "int8_int8+granularity=per_tensor", "int4_int8"})
        expect_equal<gpu::kXcore1000, Element::kS8, Element::kS8, 64, 4>(recipe);
    expect_equal<gpu::kXcore1000, Element::kS8, Element::kF16, 96, 1>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1000, Element::kF16, Element::kF16, 32, 0>("fp16_fp16");
    expect_equal<gpu::kXcore1000, Element::kBf16, Element::kBf16, 64, 0>("bf16_bf16");
}
TEST(Equal, Xcore1500) {
    for (const char* recipe : {"int8_int8", "int8_int8+granularity=per_tensor", "int4_int8"})
        expect_equal<gpu::kXcore1500, Element::kS8, Element::kS8, 64, 4>(recipe);
    expect_equal<gpu::kXcore1500, Element::kS8, Element::kE4m3, 64, 4>("int8_fp8");
    expect_equal<gpu::kXcore1500, Element::kS8, Element::kF16, 64, 1>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1500, Element::kBf16, Element::kBf16, 96, 0>("bf16_bf16");
}

// V for products of depth 32 holds the bytes, sums and weights of that for depth 16, in runs of 32 (numerics/permutation.h).
TEST(Equal, OrdersOfV) {
    for (const int64_t dim : {32, 96, 128, 192, 256})
        for (const char* recipe : {"int8_int8", "int8_int8+tile=64", "int8_int8:fast+v_scale=channel_tile"}) {
            SCOPED_TRACE(std::string(recipe) + ", head dim " + std::to_string(dim));
            const Problem problem({.name = "orders", .kv_len = 150, .dim = dim});
            const AttentionDesc desc = desc_of(problem.params, recipe);
            Packed k16(desc, 0, gpu::kXcore1000), k32(desc, 0, gpu::kXcore1500);
            quantize<sim::Sim<gpu::kXcore1000>>(k16.params(desc));
            quantize<sim::Sim<gpu::kXcore1500>>(k32.params(desc));
            const auto bytes = [](const Packed& packed, const char* name) {
                return section<uint8_t>(packed.kv_layout, packed.kv.data(), name);
            };
            const int64_t tile = desc.recipe.tile, tiles = packed_kv_rows(desc, 0).rows / tile;
            for (int64_t row = 0; row < tiles * dim; ++row)  // of a channel in a tile
                for (int64_t key = 0; key < tile; ++key)
                    ASSERT_EQ(bytes(k32, "v_codes")[row * tile + kMetaxK32Arrangement.v_place(key)],
                              bytes(k16, "v_codes")[row * tile + key])
                        << row << ", " << key;
            for (int64_t i = 0; i < tiles * dim * 4; ++i)
                ASSERT_EQ(bytes(k32, "v_sum")[i], bytes(k16, "v_sum")[i]) << i;
            if (find_section(k16.kv_layout, "v_weight") == nullptr) continue;
            for (int64_t i = 0; i < tiles * tile; ++i)
                ASSERT_EQ(bytes(k32, "v_weight")[i / tile * tile + kMetaxK32Arrangement.v_place(i % tile)],
                          bytes(k16, "v_weight")[i]);
        }
}

}  // namespace
}  // namespace clary::cases
