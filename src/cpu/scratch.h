// SPDX-License-Identifier: Apache-2.0
// Lays out a thread's scratch memory: the same calls with a null base only count the bytes.
#pragma once

#include <cstdint>

#include "core/packed.h"

namespace clary::cpu {

class Scratch {
  public:
    explicit Scratch(void* base) : base_(static_cast<char*>(base)) {}

    // `count` elements, 64-byte aligned.
    template <typename T>
    T* take(int64_t count) {
        T* const at = base_ ? reinterpret_cast<T*>(base_ + bytes_) : nullptr;
        bytes_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
        return at;
    }
    int64_t bytes() const { return bytes_; }

  private:
    char* base_;
    int64_t bytes_ = 0;
};

}  // namespace clary::cpu
