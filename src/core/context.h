// SPDX-License-Identifier: Apache-2.0
// Context: the CPU backend's threads. Results never depend on their number: work is cut into pieces by the problem
// alone, and each piece is computed by one thread from start to end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace clary {

class Context {
  public:
    explicit Context(int threads);  // 0: the default count
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    static Context& default_context();
    // CLARY_NUM_THREADS, or the number of cores this process may run on.
    static int default_thread_count();

    int threads() const { return threads_; }

    // Calls work(piece, thread) once for each piece in 0..pieces-1, in rising order of start; thread is 0..threads-1
    // and names the scratch memory to use. The caller takes part. Concurrent calls on one context take turns.
    void parallel_for(int64_t pieces, const std::function<void(int64_t piece, int thread)>& work);

  private:
    class Pool;
    Pool& pool();
    int threads_;
    std::atomic<Pool*> pool_{nullptr};  // owned; null with one thread
};

}  // namespace clary
