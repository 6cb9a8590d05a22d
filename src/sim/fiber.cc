// SPDX-License-Identifier: Apache-2.0
#include "sim/fiber.h"

#include <boost/context/protected_fixedsize_stack.hpp>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define CLARY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CLARY_ASAN 1
#endif
#endif
#ifdef CLARY_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace clary::sim {
namespace {

// Hands out a stack with a guard page and keeps a record of it for the sanitizers. Stacks are whole pages, so lanes that
// do the same would use the same cache sets: each begins 5 lines further down than the one before.
class RecordedStack {
  public:
    RecordedStack(std::size_t bytes, boost::context::stack_context* record)
        : stack_(bytes), record_(record), offset_(next_offset()) {}
    boost::context::stack_context allocate() {
        *record_ = stack_.allocate();
#ifdef CLARY_ASAN
        // Stacks at this address before were left without a return: their red zones are still marked.
        __asan_unpoison_memory_region(static_cast<char*>(record_->sp) - record_->size, record_->size);
#endif
        record_->sp = static_cast<char*>(record_->sp) - offset_;
        record_->size -= offset_;
        return *record_;
    }
    void deallocate(boost::context::stack_context& context) {
        context.sp = static_cast<char*>(context.sp) + offset_;
        context.size += offset_;
        stack_.deallocate(context);
    }

  private:
    static std::size_t next_offset() {
        static thread_local std::size_t count = 0;
        return ++count % 64 * 5 * 64;
    }

    boost::context::protected_fixedsize_stack stack_;
    boost::context::stack_context* record_;
    std::size_t offset_;
};

}  // namespace

Fiber::Fiber(std::size_t stack_bytes, std::function<void()> body) : body_(std::move(body)) {
    fiber_ = boost::context::fiber(std::allocator_arg, RecordedStack(stack_bytes, &stack_),
                                   [this](boost::context::fiber&& scheduler) {
                                       scheduler_ = std::move(scheduler);
                                       enter();
                                       body_();
                                       leave(true);
                                       return std::move(scheduler_);
                                   });
}

void Fiber::resume() {
#ifdef CLARY_ASAN
    __sanitizer_start_switch_fiber(&scheduler_fake_, static_cast<char*>(stack_.sp) - stack_.size, stack_.size);
#endif
    fiber_ = std::move(fiber_).resume();
#ifdef CLARY_ASAN
    __sanitizer_finish_switch_fiber(scheduler_fake_, nullptr, nullptr);
#endif
}

void Fiber::yield() {
    leave(false);
    scheduler_ = std::move(scheduler_).resume();
    enter();
}

void Fiber::enter() {
#ifdef CLARY_ASAN
    __sanitizer_finish_switch_fiber(fiber_fake_, &scheduler_bottom_, &scheduler_bytes_);
#endif
}

void Fiber::leave([[maybe_unused]] bool for_ever) {
#ifdef CLARY_ASAN
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &fiber_fake_, scheduler_bottom_, scheduler_bytes_);
#endif
}

}  // namespace clary::sim
