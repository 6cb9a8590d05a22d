// SPDX-License-Identifier: Apache-2.0
#include "cpu/neon/vec.h"

#include "cpu/vec_test.h"

namespace clary::cpu {

// "" or the first failure.
const char* vec_failure_neon() {
    static VecTest<neon::Vec> test;
    return test.all() ? "" : test.failure;
}

}  // namespace clary::cpu
