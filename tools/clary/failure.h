// SPDX-License-Identifier: Apache-2.0
// The one way a command gives up: a text that main() prints as a single line "clary: ...", and the exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "core/status.h"

namespace clary::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;  // a comparison failed, or Clary itself did
inline constexpr int kExitBadInput = 2;     // usage, files, values, a request that this build cannot serve

class Failure : public std::runtime_error {
  public:
    explicit Failure(const std::string& text, int exit_code = kExitBadInput)
        : std::runtime_error(text), exit_code_(exit_code) {}
    int exit_code() const { return exit_code_; }

  private:
    int exit_code_;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

// Throws where `status` is a failure. A bug of Clary or of a driver is not the user's bad input.
inline void require_ok(const Status& status) {
    if (status.is_ok()) return;
    const bool ours = status.code() == StatusCode::kInternal || status.code() == StatusCode::kDriverError;
    throw Failure(status.text(), ours ? kExitCheckFailed : kExitBadInput);
}

}  // namespace clary::cli
