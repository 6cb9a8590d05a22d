// SPDX-License-Identifier: Apache-2.0
// parallel_for for the reference, which (unlike the kernels on core's Context) allocates in its pieces, so that it has
// to bring exceptions back to the caller.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace clary::reference {

// Calls function(item) for every item in [0, count), on `threads` threads (0: as many as the machine has). Items are
// independent, so results do not depend on the number of threads. Rethrows the first exception.
template <typename Function>
void parallel_for(int64_t count, int threads, const Function& function) {
    std::atomic<int64_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto work = [&] {
        try {
            for (int64_t item = next++; item < count; item = next++) function(item);
        } catch (...) {
            const std::lock_guard lock(failure_mutex);
            if (!failure) failure = std::current_exception();
        }
    };
    const int64_t wanted = threads > 0 ? threads : static_cast<int64_t>(std::thread::hardware_concurrency());
    std::vector<std::jthread> helpers;
    for (int64_t t = 1; t < std::min(wanted, count); ++t) {
        try {
            helpers.emplace_back(work);
        } catch (const std::system_error&) {
            break;  // no more threads to be had: the ones that run do all the work
        }
    }
    work();
    helpers.clear();  // joins
    if (failure) std::rethrow_exception(failure);
}

}  // namespace clary::reference
