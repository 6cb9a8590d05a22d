// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace clary {

bool log_enabled() {
    static const bool enabled = [] {
        const char* text = std::getenv("CLARY_LOG");
        return text != nullptr && *text != '\0' && *text != '0';
    }();
    return enabled;
}

void log_line(std::string_view line) {
    const std::string whole = "clary: " + std::string(line) + "\n";  // one write, so that threads do not mix
    std::fwrite(whole.data(), 1, whole.size(), stderr);
}

}  // namespace clary
