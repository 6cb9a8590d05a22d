// SPDX-License-Identifier: Apache-2.0
// How a C++ body becomes a C function: whatever it answers or throws becomes a status and this thread's error text.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <new>

#include "clary/clary.h"
#include "core/status.h"

namespace clary {

// Keeps the text of a failure for clary_last_error and converts the code.
clary_status report(const Status& status) noexcept;

template <typename Function>
clary_status at_edge(Function&& function) noexcept {
    try {
        return report(function());
    } catch (const std::bad_alloc&) {
        return report({StatusCode::kOutOfMemory, "out of memory"});
    } catch (const std::exception& error) {
        return report({StatusCode::kInternal, fmt::format("internal error: {}", error.what())});
    } catch (...) {
        return report({StatusCode::kInternal, "internal error"});
    }
}

inline Status null_argument(const char* name) {
    return invalid_argument(fmt::format("{}: null; allowed: a valid pointer", name));
}

}  // namespace clary
