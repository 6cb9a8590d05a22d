// SPDX-License-Identifier: Apache-2.0
// Each fault of mutants.cmake is caught, by the check that should catch it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ostream>

#include "mutant_runner.h"

namespace clary::sim {

void PrintTo(const Mutant& mutant, std::ostream* out) { *out << mutant.name; }

namespace {

class MutationTest : public testing::TestWithParam<Mutant> {};

void expect_check(const char* machine, const std::string& said, const char* check) {
    fmt::print("{}: {}\n", machine, said);
    EXPECT_EQ(said.substr(0, said.find(':')), check) << said;
}

TEST_P(MutationTest, IsCaught) {
    expect_check("sm80", GetParam().run_sm80(), GetParam().sm80_check);
    expect_check("xcore1000", GetParam().run_xcore1000(), GetParam().xcore1000_check);
}

INSTANTIATE_TEST_SUITE_P(Faults, MutationTest, testing::ValuesIn(mutants()),
                         [](const testing::TestParamInfo<Mutant>& mutant) { return std::string(mutant.param.name); });

}  // namespace
}  // namespace clary::sim
