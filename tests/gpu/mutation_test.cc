// SPDX-License-Identifier: Apache-2.0
// Each fault of mutants.cmake is caught, by the check that should catch it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "gpu/mutant_runner.h"
#include "gpu/run.h"

namespace clary::cases {

void PrintTo(const AttentionMutant& mutant, std::ostream* out) { *out << mutant.name; }

namespace {

// A problem with its operands and answer, made once.
struct Prepared {
    explicit Prepared(const Case& c, int pieces_ = 1)
        : problem(c),
          desc(gpu_desc_of(problem, "int8_int8+tile=64")),
          packed(desc, kMmaArrangement),
          oracle(),
          pieces(pieces_),
          memory(static_cast<size_t>(gpu::split_bytes(desc, pieces))) {
        oracle = oracle_of(problem, desc, packed);
    }
    Problem problem;
    AttentionDesc desc;
    ReferencePacked packed;
    Output oracle;
    int pieces;      // of the keys
    Guarded memory;  // their results
};

std::deque<Prepared>& prepared() {
    static std::deque<Prepared> all;
    if (!all.empty()) return all;
    Case c{.name = "mutants", .q_heads = 2, .kv_heads = 1, .q_len = 41, .kv_len = 210, .dim = 32};
    all.emplace_back(c);
    c.causal = Causal::kBottomRight;
    all.emplace_back(c);
    c.values = Values::kLargeK;  // references that jump
    all.emplace_back(c);
    c.q_len = 5;
    all.emplace_back(c, 4);
    return all;
}

std::string first_difference(const Prepared& p) {
    const Output found = p.problem.output();
    const Case& c = p.problem.spec();
    if (const std::string damage = p.problem.damage(); !damage.empty()) return damage;
    const double l1 = relative_l1(found.out, p.oracle.out);
    if (!(l1 <= attend_l1(p.desc.recipe, c) + output_rounding(c.out))) return fmt::format("rel L1 {}", l1);
    const double largest = largest_difference(found.out, p.oracle.out);
    if (!(largest <= attend_max(p.desc.recipe, c) * largest_magnitude(p.oracle.out)))
        return fmt::format("off by {}", largest);
    for (size_t i = 0; i < found.lse.size(); ++i)
        if (!(std::fabs(found.lse[i] - p.oracle.lse[i]) <= kLse + lse_rounding(p.oracle.lse[i])))
            return fmt::format("lse {} is {}, not {}", i, found.lse[i], p.oracle.lse[i]);
    return "";
}

class AttentionMutation : public testing::TestWithParam<AttentionMutant> {};

TEST_P(AttentionMutation, IsCaught) {
    const std::string said = GetParam().run();
    fmt::print("{}\n", said);
    EXPECT_EQ(said.substr(0, said.find(':')), GetParam().check) << said;
}

INSTANTIATE_TEST_SUITE_P(Faults, AttentionMutation, testing::ValuesIn(attention_mutants()),
                         [](const testing::TestParamInfo<AttentionMutant>& mutant) {
                             return std::string(mutant.param.name);
                         });

}  // namespace

std::string first_check(
    const std::function<sim::Report(const gpu::AttentionParams& params, const sim::Options& options)>& launch) {
    for (Prepared& p : prepared())
        for (const sim::Copies copies : {sim::Copies::kLate, sim::Copies::kEarly})
            for (uint64_t seed = 0; seed < 2; ++seed) {
                sim::Options options;
                options.copies = copies;
                options.seed = seed;
                p.problem.poison_outputs();
                p.memory.poison();
                gpu::AttentionParams params = gpu::attention_params(p.desc, 0, p.packed.q.data(), p.packed.kv.data());
                if (p.pieces > 1) gpu::split_into(&params, p.pieces, p.memory.data());
                const sim::Report report = launch(params, options);
                if (!report.ok()) return report.describe();
                if (const std::string difference = first_difference(p); !difference.empty())
                    return "result: " + difference;
            }
    return "none";
}

}  // namespace clary::cases
