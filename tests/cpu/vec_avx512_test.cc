// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/vec.h"

#include "cpu/vec_test.h"

namespace clary::cpu {

// "" or the first failure.
const char* vec_failure_avx512() {
    static VecTest<avx512::Vec> test;
    return test.all() ? "" : test.failure;
}

}  // namespace clary::cpu
