// SPDX-License-Identifier: Apache-2.0
#include "core/context.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace clary {

// Workers sleep between jobs, so that a framework's own pool beside ours has the cores. The caller waits for those alone that
// took part: one that wakes when all pieces are taken finds no job, so a short job does not last as long as waking does. After
// fork() a child has no workers: it notices by its process id and starts its own.
class Context::Pool {
  public:
    explicit Pool(int threads) : threads_(threads) {}

    ~Pool() {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

    bool usable_here() const { return owner_ == getpid(); }
    std::mutex& turn() { return turn_; }

    void run(int64_t pieces, const std::function<void(int64_t, int)>& work) {
        start_workers();
        {
            std::lock_guard lock(mutex_);
            work_ = &work;
            pieces_ = pieces;
            next_.store(0, std::memory_order_relaxed);
            ++job_;
        }
        wake_.notify_all();
        take_pieces(work, pieces, 0);
        std::unique_lock lock(mutex_);
        work_ = nullptr;
        done_.wait(lock, [this] { return busy_ == 0; });
    }

  private:
    void start_workers() {
        while (static_cast<int>(workers_.size()) < threads_ - 1) {
            const int index = static_cast<int>(workers_.size()) + 1;
            try {
                workers_.emplace_back([this, index] { serve(index); });
            } catch (const std::system_error&) {
                return;  // the system gives no more threads: fewer do the same work
            }
        }
    }

    void take_pieces(const std::function<void(int64_t, int)>& work, int64_t pieces, int thread) {
        for (int64_t piece; (piece = next_.fetch_add(1, std::memory_order_relaxed)) < pieces;) work(piece, thread);
    }

    void serve(int thread) {
        uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stop_ || (work_ && job_ != seen); });
            if (stop_) return;
            seen = job_;
            ++busy_;
            const auto* work = work_;
            const int64_t pieces = pieces_;
            lock.unlock();
            take_pieces(*work, pieces, thread);
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    const int threads_;
    const pid_t owner_ = getpid();
    std::mutex turn_;  // one job at a time

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    const std::function<void(int64_t, int)>* work_ = nullptr;  // null: no job, or nothing left of it
    int64_t pieces_ = 0;
    uint64_t job_ = 0;
    int busy_ = 0;  // workers at the job
    bool stop_ = false;
    std::atomic<int64_t> next_{0};
    std::vector<std::thread> workers_;
};

Context::Context(int threads) : threads_(threads > 0 ? threads : default_thread_count()) {
    if (threads_ > 1) pool_ = new Pool(threads_);
}

// The copy of a parent's pool in a forked child is left alone: destroying the condition variables that its threads
// wait on would wait for those threads for ever.
Context::~Context() {
    Pool* const owned = pool_.load();
    if (owned != nullptr && owned->usable_here()) delete owned;
}

int Context::default_thread_count() {
    if (const char* text = std::getenv("CLARY_NUM_THREADS")) {
        const long count = std::strtol(text, nullptr, 10);
        if (count >= 1 && count <= 4096) return static_cast<int>(count);
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    const unsigned cores = std::thread::hardware_concurrency();
    return cores > 0 ? static_cast<int>(cores) : 1;
}

// Never destroyed: a host may still call from another thread while static destructors run.
Context& Context::default_context() {
    static Context* context = new Context(0);
    return *context;
}

// The pool of this process. A forked child finds its parent's, whose locks may be held for ever in this copy: it leaves
// that one alone and makes its own. Several threads may find that at once; one pool wins.
Context::Pool& Context::pool() {
    Pool* found = pool_.load(std::memory_order_acquire);
    while (!found->usable_here()) {
        auto fresh = std::make_unique<Pool>(threads_);
        if (pool_.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
    }
    return *found;
}

void Context::parallel_for(int64_t pieces, const std::function<void(int64_t, int)>& work) {
    if (threads_ == 1 || pieces <= 1) {
        for (int64_t piece = 0; piece < pieces; ++piece) work(piece, 0);
        return;
    }
    Pool& workers = pool();
    std::lock_guard lock(workers.turn());
    workers.run(pieces, work);
}

}  // namespace clary
