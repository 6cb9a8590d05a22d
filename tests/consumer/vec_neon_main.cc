// SPDX-License-Identifier: Apache-2.0
// The checks of the neon tier's vectors (tests/cpu/vec_test.h) without GoogleTest, which is not there for a cross compiler.
#include <cstdio>

namespace clary::cpu {
const char* vec_failure_neon();
}

int main() {
    const char* const failure = clary::cpu::vec_failure_neon();
    std::printf("vectors of the neon tier: %s\n", *failure ? failure : "as the scalar code");
    return *failure ? 1 : 0;
}
