// SPDX-License-Identifier: Apache-2.0
// Inputs that are not finite and rows without keys, packed and attended to on the simulator: whoever sees a NaN is NaN,
// nobody else is, and a row that sees nothing is 0 with an LSE of -inf, or its sink's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gpu/quantize.h"
#include "gpu/run.h"

namespace clary::cases {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr const char* kRecipes[] = {"int8_int8",
                                    "int8_int8:fast",
                                    "int8_fp16",
                                    "int8_bf16",
                                    "int8_bf16:fast",
                                    "int8_fp8",
                                    "int8_fp16+accum=fp16",
                                    "int4_fp16:fast+accum=fp16",
                                    "fp16_fp16",
                                    "bf16_bf16"};

// As the GPU's kernels pack it, which is part of the promise; those of head dim 64 for two machines.
struct Operands {
    Operands(const AttentionDesc& desc, const gpu::Machine& machine) : packed(desc, 0, machine) {
        constexpr QuantizeConfig kConfig{64, 64};
        const QuantizeParams params = packed.params(desc);
        if (machine.vendor == gpu::Vendor::kMetax)
            quantize_as<sim::Sim<gpu::kXcore1000>, kConfig>(params);
        else
            quantize_as<sim::Sim<gpu::kSm80>, kConfig>(params);
    }
    Packed packed;
};

// The kernels that serve the problem run on operands that the GPU packed.
template <class Visit>
void for_kernels(Problem* problem, const char* recipe, const Visit& visit) {
    const AttentionDesc desc = gpu_desc_of(*problem, recipe);
    for (const Simulated* kernel : kernels_for(desc)) {
        SCOPED_TRACE(fmt::format("{} on {}", recipe, name_of(kernel->entry)));
        const Operands operands(desc, kernel->entry.machine);
        run(*kernel, problem, desc, operands.packed.q, operands.packed.kv);
        if (testing::Test::HasFatalFailure()) return;
        visit(desc, problem->output());
    }
}

Case base() {
    return {.name = "hostile",
            .batch = 2,
            .q_heads = 4,
            .kv_heads = 2,
            .q_len = 70,
            .kv_len = 300,
            .dim = 60,
            .causal = Causal::kBottomRight};
}

// Whether query i of the case sees a key of [first, last).
bool sees(const Case& c, int64_t i, int64_t first, int64_t last) {
    const int64_t position = i + c.kv_len - c.q_len;
    const int64_t begin = c.window.enabled ? std::max<int64_t>(position - c.window.left, 0) : 0;
    return std::max(begin, first) < std::min(position + 1, last);
}

// Poisons one element. (b, kv head, key) or, for Q, (b, head, row) of the poison.
void check(const Case& c, char which, std::array<int64_t, 3> at, float value) {
    Problem problem(c);
    problem.set(which == 'q'   ? problem.params.q
                : which == 'k' ? problem.params.k
                               : problem.params.v,
                {at[0], at[1], at[2], 7}, value);
    problem.freeze_inputs();
    const auto look = [&](const AttentionDesc& desc, const Output& result) {
        for (size_t row = 0; row < result.lse.size(); ++row) {
            const auto r = static_cast<int64_t>(row);
            const int64_t i = r % c.q_len, h = r / c.q_len % c.q_heads, b = r / c.q_len / c.q_heads;
            // Codes and scales may carry it to its tile of keys.
            const int64_t tile = desc.recipe.quantized() ? desc.recipe.tile : 1, first = at[2] / tile * tile;
            const bool same_head = b == at[0] && (which == 'q' ? h == at[1] : h / (c.q_heads / c.kv_heads) == at[1]);
            const bool must = same_head && (which == 'q' ? i == at[2] : sees(c, i, at[2], at[2] + 1));
            const bool may = same_head && (which == 'q' ? i == at[2] : sees(c, i, first, first + tile));
            for (int64_t d = 0; d < c.dim; ++d) {
                const float x = result.out[static_cast<size_t>(r * c.dim + d)];
                const std::string where = fmt::format("{} {}: b {} h {} row {} is {}", which, value, b, h, i, x);
                ASSERT_TRUE(!must || std::isnan(x)) << where;
                ASSERT_TRUE(must || may || std::isfinite(x)) << where;
            }
        }
    };
    for (const char* recipe : kRecipes) for_kernels(&problem, recipe, look);
}

TEST(Hostile, QueryRow) {
    for (const float value : {kNan, kInf, -kInf}) check(base(), 'q', {1, 2, 33}, value);
}
TEST(Hostile, KeyToken) {
    for (const float value : {kNan, kInf, -kInf}) check(base(), 'k', {0, 1, 250}, value);
}
TEST(Hostile, ValueToken) {
    for (const float value : {kNan, kInf, -kInf}) check(base(), 'v', {0, 0, 250}, value);
}
TEST(Hostile, InAWindow) {
    Case c = base();
    c.window = {.enabled = true, .left = 20, .right = -1, .keep = 0};
    check(c, 'k', {1, 0, 240}, kNan);
    check(c, 'v', {1, 1, 239}, kNan);
}

// No row sees a key: O is 0; the LSE is -inf, or the sink.
TEST(Hostile, RowsWithoutKeys) {
    for (const bool sinks : {false, true})
        for (const bool masked : {false, true}) {
            Case c = base();
            c.batch = 1;
            c.sinks = sinks;
            if (masked) {
                c.mask = MaskForm::kBoolean;
                c.mask_all = true;
            } else {
                c.kv_lengths = {0};
            }
            Problem problem(c);
            const auto look = [&](const AttentionDesc&, const Output& result) {
                for (const float x : result.out) ASSERT_EQ(x, 0.0f);
                for (size_t row = 0; row < result.lse.size(); ++row) {
                    const auto head = static_cast<int64_t>(row) / c.q_len;
                    ASSERT_EQ(result.lse[row], sinks ? problem.get(problem.params.sinks, {head}) : -kInf)
                        << "row " << row;
                }
            };
            for (const char* recipe : kRecipes) for_kernels(&problem, recipe, look);
        }
}

// Buffers that were packed for another softmax scale.
TEST(Hostile, PackedForAnotherCall) {
    Problem problem(base());
    const AttentionDesc desc = gpu_desc_of(problem, "int8_int8:fast");
    AttentionDesc other = desc;
    other.scale *= 2;
    for (const Simulated* kernel : kernels_for(desc)) {
        SCOPED_TRACE(name_of(kernel->entry));
        const Operands operands(other, kernel->entry.machine);
        run(*kernel, &problem, desc, operands.packed.q, operands.packed.kv);
        if (HasFatalFailure()) return;
        const Output result = problem.output();
        for (const float x : result.out) ASSERT_TRUE(std::isnan(x));
        for (const float x : result.lse) ASSERT_TRUE(std::isnan(x));
    }
}

}  // namespace
}  // namespace clary::cases
