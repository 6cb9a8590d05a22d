// SPDX-License-Identifier: Apache-2.0
#include "capi/edge.h"

#include <string>

namespace clary {
namespace {

thread_local std::string last_error;

}  // namespace

clary_status report(const Status& status) noexcept {
    if (!status.is_ok()) last_error = status.text();
    return static_cast<clary_status>(status.code());
}

}  // namespace clary

extern "C" const char* clary_last_error(void) { return clary::last_error.c_str(); }
