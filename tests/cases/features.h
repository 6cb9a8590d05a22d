// SPDX-License-Identifier: Apache-2.0
// What every kernel of this build takes, found by asking it: the table of docs/support.md.
#pragma once

#include <string>

namespace clary::cases {

// Markdown. The same on every machine: asks supports(), not whether the machine has the instructions.
std::string support_table();

}  // namespace clary::cases
