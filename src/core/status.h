// SPDX-License-Identifier: Apache-2.0
// Status: how every fallible function of Clary answers. No exceptions cross a module boundary.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace clary {

// The values are part of the C ABI (clary_status in clary.h); append only.
enum class StatusCode : int32_t {
    kOk = 0,
    kInvalidArgument = 1,  // the input is wrong; the text names argument, value and allowed set
    kUnsupported = 2,      // the input is right but no kernel of the chosen backend takes it
    kNoDevice = 3,         // the backend is not built in, or its device is absent
    kOutOfMemory = 4,
    kWorkspaceTooSmall = 5,  // the text names the size needed
    kDriverError = 6,        // a CUDA or MXMACA call failed
    kInternal = 7,           // a bug of ours
};

class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(StatusCode code, std::string text) : code_(code), text_(std::move(text)) {}

    static Status ok() { return {}; }

    bool is_ok() const { return code_ == StatusCode::kOk; }
    StatusCode code() const { return code_; }
    const std::string& text() const { return text_; }

  private:
    StatusCode code_ = StatusCode::kOk;
    std::string text_;
};

inline Status invalid_argument(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }
inline Status unsupported(std::string text) { return {StatusCode::kUnsupported, std::move(text)}; }

// Leaves the enclosing function with the first failure.
#define CLARY_RETURN_IF_ERROR(expression)                                                               \
    do {                                                                                                \
        if (::clary::Status clary_status_ = (expression); !clary_status_.is_ok()) return clary_status_; \
    } while (false)

}  // namespace clary
