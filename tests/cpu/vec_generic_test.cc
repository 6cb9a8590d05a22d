// SPDX-License-Identifier: Apache-2.0
#include "cpu/generic/vec.h"

#include "cpu/vec_test.h"

namespace clary::cpu {

// "" or the first failure.
const char* vec_failure_generic() {
    static VecTest<generic::Vec> test;
    return test.all() ? "" : test.failure;
}

}  // namespace clary::cpu
