// SPDX-License-Identifier: Apache-2.0
// One line on standard error that says how far long work is: only on a terminal, only after a second.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace clary::cli {

class Progress {
  public:
    Progress(int64_t steps, bool quiet) : steps_(steps), active_(!quiet && isatty(STDERR_FILENO) == 1) {}
    ~Progress() { clear(); }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // One more step is about to begin; `what` names it.
    void step(const std::string& what) {
        ++begun_;
        if (!active_ || std::chrono::steady_clock::now() - start_ < std::chrono::seconds(1)) return;
        fmt::print(stderr, "\r\033[K[{}/{}] {:.60}", begun_, steps_, what);
        std::fflush(stderr);
        shown_ = true;
    }
    void clear() {
        if (shown_) fmt::print(stderr, "\r\033[K");
        shown_ = false;
    }

  private:
    int64_t steps_, begun_ = 0;
    bool active_, shown_ = false;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace clary::cli
