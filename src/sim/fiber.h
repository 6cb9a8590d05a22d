// SPDX-License-Identifier: Apache-2.0
// One lane's thread of execution: a body with a stack of its own that runs until it yields. Boost.Context switches the
// stacks; AddressSanitizer is told of each switch, so that it works inside kernels.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace clary::sim {

class Fiber {
  public:
    // The body starts at the first resume(). An overflow of the stack meets a guard page.
    Fiber(std::size_t stack_bytes, std::function<void()> body);
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;
    ~Fiber() = default;  // the body must have returned

    void resume();  // until the body yields or returns; called by the scheduler
    void yield();   // called by the body

  private:
    void enter();
    void leave(bool for_ever);

    std::function<void()> body_;
    boost::context::stack_context stack_{};
    boost::context::fiber fiber_, scheduler_;
    // What AddressSanitizer wants back when a stack is entered again.
    [[maybe_unused]] void* fiber_fake_ = nullptr;
    [[maybe_unused]] void* scheduler_fake_ = nullptr;
    [[maybe_unused]] const void* scheduler_bottom_ = nullptr;
    [[maybe_unused]] std::size_t scheduler_bytes_ = 0;
};

}  // namespace clary::sim
