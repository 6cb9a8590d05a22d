// SPDX-License-Identifier: Apache-2.0
// What a tile of keys costs a block of four waves on the simulated cards: the counts that docs/maca.md reckons with.
#include <mc_runtime.h>

#include "cpu/run.h"

namespace clary::cases {
namespace {

struct Budget {
    const char *tier, *recipe;
    int64_t dim, rows, keys;
    int64_t products, accesses, copies;  // accesses: loads and stores of shared memory by 64 lanes
};
constexpr Budget kBudgets[] = {
    {"maca:xcore1000", "int8_int8+tile=64", 128, 64, 64, 288, 360, 24},
    {"maca:xcore1000", "int8_int8", 64, 128, 128, 640, 448, 24},
    {"maca:xcore1000", "int8_fp16:fast+tile=64", 128, 64, 64, 256, 432, 28},
    {"maca:xcore1000", "fp16_fp16", 64, 128, 64, 256, 224, 16},
    {"maca:xcore1500", "int8_int8", 128, 64, 128, 288, 380, 40},
    {"maca:xcore1500", "int8_int8", 64, 128, 128, 320, 280, 24},
    {"maca:xcore1500", "int8_fp8", 128, 64, 128, 288, 348, 40},
    {"maca:xcore1500", "int8_fp16:fast+tile=64", 128, 64, 64, 192, 96, 28},
};

sim::Counters counts(const Budget& budget, int64_t tiles) {
    Problem problem({.name = "budget",
                     .q_len = budget.rows,
                     .kv_len = tiles * budget.keys,
                     .dim = budget.dim,
                     .q = DType::kF16,
                     .k = DType::kF16,
                     .v = DType::kF16,
                     .lse = false});
    const clary_attention_params params = with(problem, budget.recipe, budget.tier);
    const Packed packed = pack(&problem, params);
    const sim::Counters before = sim::maca::launched();
    attend(&problem, params, packed);
    sim::Counters after = sim::maca::launched();
    after.products -= before.products;
    after.accesses -= before.accesses;
    after.copies -= before.copies;
    after.bank_conflicts -= before.bank_conflicts;
    return after;
}

TEST(Budget, CostOfATile) {
    for (const Budget& budget : kBudgets) {
        if (std::string(budget.tier) != tiers().at(0)) continue;
        SCOPED_TRACE(std::string(budget.recipe) + " on " + budget.tier + ", head dim " + std::to_string(budget.dim));
        const sim::Counters few = counts(budget, 2), more = counts(budget, 6);
        EXPECT_EQ((more.products - few.products) / 4, budget.products);
        EXPECT_EQ((more.accesses - few.accesses) / 4 / 64, budget.accesses);
        EXPECT_EQ((more.copies - few.copies) / 4, budget.copies);
        EXPECT_EQ(more.bank_conflicts, 0);
    }
}

}  // namespace
}  // namespace clary::cases
