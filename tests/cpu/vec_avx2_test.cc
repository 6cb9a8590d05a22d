// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/vec.h"

#include "cpu/vec_test.h"

namespace clary::cpu {

// "" or the first failure.
const char* vec_failure_avx2() {
    static VecTest<avx2::Vec> test;
    return test.all() ? "" : test.failure;
}

}  // namespace clary::cpu
