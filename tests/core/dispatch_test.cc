// SPDX-License-Identifier: Apache-2.0
// Which kernel runs: tables of made-up kernels, then the tiers that CLARY_CPU_ISA forces in this build's own.
#include "core/dispatch.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "capi/tables.h"
#include "cases/problem.h"
#include "cpu/isa.h"

namespace clary {
namespace {

std::string yes() { return ""; }
std::string absent() { return "this machine has no such thing"; }
std::string any(const AttentionDesc&) { return ""; }
std::string small(const AttentionDesc& desc) { return desc.head_dim > 64 ? "q: head_dim 128; allowed: 1..64" : ""; }

KernelRow row(const char* name, const char* backend, const char* arch, Format pv, std::string (*usable)(),
              std::string (*supports)(const AttentionDesc&)) {
    KernelRow r{};
    r.name = name;
    r.backend = backend;
    r.arch = arch;
    r.qk = pv == Format::kFp32 ? Format::kFp32 : Format::kInt8;
    r.pv = pv;
    r.usable = usable;
    r.supports = supports;
    return r;
}

class Dispatch : public testing::Test {
  protected:
    const KernelRow fast_[4] = {row("a_new_int8", "a", "new", Format::kInt8, absent, any),
                                row("a_old_int8", "a", "old", Format::kInt8, yes, small),
                                row("a_any_int8", "a", "any", Format::kInt8, yes, any),
                                row("a_any_fp32", "a", "any", Format::kFp32, yes, any)};
    const KernelRow slow_[2] = {row("reference_int8", "reference", "", Format::kInt8, yes, any),
                                row("reference_fp16", "reference", "", Format::kFp16, yes, any)};
    const KernelTable tables_[2] = {fast_, slow_};

    AttentionDesc desc_;
    Choice choice_;

    Status choose(const char* backend, Format pv = Format::kInt8, bool recipe_is_auto = false) {
        desc_.recipe = preset_recipe(pv == Format::kFp32 ? Format::kFp32 : Format::kInt8, pv, Preset::kFast);
        choice_ = {};
        return choose_kernel(tables_, backend, recipe_is_auto, &desc_, &choice_);
    }
    std::string chosen() const { return choice_.row ? choice_.row->name : ""; }
};

TEST_F(Dispatch, FirstRowThatIsUsableAndSupports) {
    desc_.head_dim = 64;
    ASSERT_TRUE(choose("auto").is_ok());
    EXPECT_EQ(chosen(), "a_old_int8");
    ASSERT_EQ(choice_.rejections.size(), 1u);
    EXPECT_EQ(choice_.rejections[0].reason, "this machine has no such thing");
    desc_.head_dim = 128;
    ASSERT_TRUE(choose("auto").is_ok());
    EXPECT_EQ(chosen(), "a_any_int8");
    EXPECT_EQ(choice_.rejections.size(), 2u);
}

TEST_F(Dispatch, BackendAndArchitectureByName) {
    desc_.head_dim = 64;
    ASSERT_TRUE(choose("a:any").is_ok());
    EXPECT_EQ(chosen(), "a_any_int8");
    ASSERT_TRUE(choose("reference").is_ok());
    EXPECT_EQ(chosen(), "reference_int8");
    ASSERT_TRUE(choose("a:new").is_ok());
    EXPECT_EQ(chosen(), "");
    const Status none = no_kernel(desc_, "a:new", choice_);
    EXPECT_EQ(none.code(), StatusCode::kUnsupported);
    EXPECT_NE(none.text().find("no such thing (a_new_int8)"), std::string::npos) << none.text();
}

TEST_F(Dispatch, AutoNeverTakesTheReference) {
    ASSERT_TRUE(choose("auto", Format::kFp16).is_ok());
    EXPECT_EQ(chosen(), "");
    const Status none = no_kernel(desc_, "auto", choice_);
    EXPECT_NE(none.text().find("int8_fp16:fast has no kernel on backend auto"), std::string::npos) << none.text();
}

TEST_F(Dispatch, RecipeAutoFallsBackToTheExactPath) {
    desc_.head_dim = 128;
    ASSERT_TRUE(choose("a:old", Format::kInt8, true).is_ok());
    EXPECT_EQ(chosen(), "");
    ASSERT_TRUE(choose("a:any", Format::kInt8, true).is_ok());
    EXPECT_EQ(chosen(), "a_any_int8");
    EXPECT_EQ(desc_.recipe.pv, Format::kInt8);
}

TEST_F(Dispatch, UnknownBackendsNameTheKnownOnes) {
    for (const char* name : {"b", "", "a:older", "a:", "auto:any", "A", "reference:x"}) {
        const Status status = choose(name);
        if (std::string(name) == "a:") continue;  // no architecture: any
        ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
        EXPECT_NE(status.text().find("allowed: a, a:any, a:new, a:old, auto, reference"), std::string::npos)
            << status.text();
    }
    for (const char* name : {"cuda", "cuda:sm90", "maca", "sim:sm80"})
        EXPECT_EQ(choose(name).code(), StatusCode::kNoDevice);
}

// CLARY_CPU_ISA picks one tier; the others say so.
class ForcedIsa : public testing::Test {
  protected:
    void TearDown() override { unsetenv("CLARY_CPU_ISA"); }
};

TEST_F(ForcedIsa, OnlyTheForcedTierIsUsable) {
    const cases::Problem problem(cases::Case{.name = "isa"});
    setenv("CLARY_CPU_ISA", "generic", 1);
    AttentionDesc desc = cases::desc_of(problem.params, "int8_int8");
    Choice choice;
    ASSERT_TRUE(choose_kernel(kernel_tables(), "cpu", false, &desc, &choice).is_ok());
    ASSERT_NE(choice.row, nullptr);
    EXPECT_STREQ(choice.row->name, "cpu_generic_int8_int8");
    for (const Rejection& rejection : choice.rejections)
        EXPECT_EQ(rejection.reason, "CLARY_CPU_ISA=generic asks for another tier");
    EXPECT_EQ(cpu::tier_unusable("generic"), "");
    EXPECT_NE(cpu::tier_unusable("avx2"), "");
}

TEST_F(ForcedIsa, ATierThatDoesNotExist) {
    setenv("CLARY_CPU_ISA", "sse9", 1);
    EXPECT_NE(cpu::tier_unusable("generic").find("CLARY_CPU_ISA: unknown tier 'sse9'; allowed"), std::string::npos);
    setenv("CLARY_CPU_ISA", "neon", 1);
    EXPECT_NE(cpu::tier_unusable("generic"), "");
    setenv("CLARY_CPU_ISA", "", 1);
    EXPECT_EQ(cpu::tier_unusable("generic"), "");
}

}  // namespace
}  // namespace clary
