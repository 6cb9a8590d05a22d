// SPDX-License-Identifier: Apache-2.0
// These tests are about the CPU's kernels.
#include "cpu/run.h"

namespace clary::cases {

Device& device_under_test() { return host_device(); }

}  // namespace clary::cases
