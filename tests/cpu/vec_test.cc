// SPDX-License-Identifier: Apache-2.0
// Runs the checks of each tier's Vec that this machine can execute.
#include <gtest/gtest.h>

#include "cpu/isa.h"

namespace clary::cpu {

const char* vec_failure_generic();
const char* vec_failure_avx2();
const char* vec_failure_avxvnni();
const char* vec_failure_avx512();

namespace {

void check(const char* tier, const char* (*failure)()) {
    if (const std::string reason = tier_unusable(tier); !reason.empty()) GTEST_SKIP() << reason;
    EXPECT_STREQ(failure(), "");
}

TEST(Vec, Generic) { check("generic", vec_failure_generic); }
#if defined(__x86_64__)
TEST(Vec, Avx2) { check("avx2", vec_failure_avx2); }
TEST(Vec, AvxVnni) { check("avxvnni", vec_failure_avxvnni); }
TEST(Vec, Avx512) { check("avx512", vec_failure_avx512); }
#endif

}  // namespace
}  // namespace clary::cpu
