// SPDX-License-Identifier: Apache-2.0
// Each fault of mutants.cmake is caught, by the check that should catch it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "gpu/mutant_runner.h"
#include "gpu/run.h"

namespace clary::cases {

void PrintTo(const AttentionMutant& mutant, std::ostream* out) { *out << mutant.name; }

namespace {

// A problem with its operands and answer, made once.
struct Prepared {
    Prepared(const MutantOf& of, const Case& c, int pieces_ = 1)
        : problem(c),
          desc(gpu_desc_of(problem, of.recipe)),
          packed(desc, gpu::arrangement_of(of.kernel.machine)),
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

std::deque<Prepared>& prepared(const MutantOf& of) {
    static std::map<std::string, std::deque<Prepared>> by_recipe;
    std::deque<Prepared>& all = by_recipe[of.recipe];
    if (!all.empty()) return all;
    Case c{.name = "mutants", .q_heads = 2, .kv_heads = 1, .q_len = 41, .kv_len = 210, .dim = 32};
    all.emplace_back(of, c);
    if (of.kernel.needs.v == gpu::Element::kE4m3) {  // 64 keys that fill fp16
        Case full = c;
        full.values = Values::kConstantV;
        full.has_scale = full.tied = true;  // by 0
        full.scale = 0;
        all.emplace_back(of, full);
    }
    c.causal = Causal::kBottomRight;
    all.emplace_back(of, c);
    c.values = Values::kLargeK;  // references that jump
    all.emplace_back(of, c);
    c.q_len = 5;
    all.emplace_back(of, c, 4);
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
    const MutantOf& of,
    const std::function<sim::Report(const gpu::AttentionParams& params, const sim::Options& options)>& launch) {
    for (Prepared& p : prepared(of))
        for (const sim::Copies copies : {sim::Copies::kLate, sim::Copies::kEarly})
            for (uint64_t seed = 0; seed < 2; ++seed) {
                sim::Options options;
                options.copies = copies;
                options.seed = seed;
                p.problem.poison_outputs();
                p.memory.poison();
                gpu::AttentionParams params =
                    gpu::attention_params(p.desc, 0, p.packed.q.data(), p.packed.kv.data(), p.packed.arrangement);
                if (p.pieces > 1) gpu::split_into(&params, p.pieces, p.memory.data());
                const sim::Report report = launch(params, options);
                if (!report.ok()) return report.describe();
                if (const std::string difference = first_difference(p); !difference.empty())
                    return "result: " + difference;
            }
    return "none";
}

}  // namespace clary::cases
