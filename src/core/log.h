// SPDX-License-Identifier: Apache-2.0
// CLARY_LOG=1: one line on stderr per call, with what did run.
#pragma once

#include <string_view>

namespace clary {

bool log_enabled();
void log_line(std::string_view line);

}  // namespace clary
