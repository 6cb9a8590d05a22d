// SPDX-License-Identifier: Apache-2.0
#include "sim/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "sim/block.h"

namespace clary::sim {
namespace {

Failure refuse(const gpu::Machine& machine, Grid grid, int threads, uint32_t shared_bytes) {
    Failure failure;
    const auto because = [&](Check check, std::string text) {
        failure.check = check;
        failure.text = std::move(text);
        return failure;
    };
    if (threads <= 0 || threads > machine.max_threads || threads % machine.lanes != 0)
        return because(Check::kLaunch, fmt::format("{} threads a block; {} takes multiples of {} up to {}", threads,
                                                   machine_name(machine), machine.lanes, machine.max_threads));
    if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0 || grid.y > 65535 || grid.z > 65535)
        return because(Check::kLaunch, fmt::format("grid {} x {} x {}; each is at least 1, y and z at most 65535",
                                                   grid.x, grid.y, grid.z));
    if (shared_bytes > machine.shared_bytes)
        return because(Check::kTooMuchShared, fmt::format("{} bytes a block; {} has {}", shared_bytes,
                                                          gpu::machine_name(machine), machine.shared_bytes));
    return failure;
}

}  // namespace

void add(Counters& sum, const Counters& more) {
    sum.products += more.products;
    sum.multiply_adds += more.multiply_adds;
    sum.collectives += more.collectives;
    sum.accesses += more.accesses;
    sum.copies += more.copies;
    sum.bank_conflicts += more.bank_conflicts;
}

Report launch(const gpu::Machine& machine, Grid grid, int threads, uint32_t shared_bytes, const Options& given,
              std::function<void()> kernel) {
    Report report;
    report.failure = refuse(machine, grid, threads, shared_bytes);
    if (!report.ok()) return report;
    Options options = given;
    const char* trap = std::getenv("CLARY_SIM_TRAP");
    options.trap = options.trap || (trap != nullptr && *trap == '1');

    const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    const auto work = [&] {
        Block block(machine, options, threads, kernel);
        bool healthy = true;
        for (int64_t i = next++; healthy && i < blocks; i = next++)
            healthy = block.run({static_cast<int>(i % grid.x), static_cast<int>(i / grid.x % grid.y),
                                 static_cast<int>(i / grid.x / grid.y)},
                                shared_bytes);
        const std::lock_guard lock(mutex);
        add(report.counters, block.counters);
        if (healthy) return;
        next = blocks;  // the others stop after their present blocks
        if (report.ok()) report.failure = block.failure;
    };
    const auto helpers = std::min<int64_t>(options.threads, blocks) - 1;
    std::vector<std::thread> pool;
    for (int64_t i = 0; i < helpers; ++i) pool.emplace_back(work);
    work();
    for (std::thread& thread : pool) thread.join();
    return report;
}

}  // namespace clary::sim
