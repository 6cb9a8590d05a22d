// SPDX-License-Identifier: Apache-2.0
// A running block: lanes (one fiber each) in waves, where lanes meet, and the checks that belong to the meeting.
//
// A lane runs alone until it reaches a collective. There it waits until all lanes of its wave have come; the last one does
// the work for all of them and goes on, the others become ready. block_sync() is such a meeting of each wave and then one
// of all waves.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu/target/machines.h"
#include "gpu/target/target.h"
#include "sim/fiber.h"
#include "sim/report.h"
#include "sim/shared_memory.h"

namespace clary::sim {

inline constexpr int kMaxLanes = 64;

// A place in the kernel's source.
struct Site {
    const char* file;
    int line;
};

// Thrown through a kernel to leave it after a failure.
struct Abandoned {};

class Block;
struct Wave;

// One plain access, kept until the next meeting to see which lanes' accesses share a bank.
struct Access {
    uint32_t at;
    uint8_t size;
    bool write;
    uint16_t line;  // low bits: enough to tell neighbours apart
    friend bool operator==(const Access&, const Access&) = default;
};

struct Lane {
    Wave* wave = nullptr;
    int index = 0;
    std::unique_ptr<Fiber> fiber;
    std::vector<Access> accesses;
};

// One copy16() of a wave.
struct WaveCopy {
    std::array<gpu::SharedAddress, kMaxLanes> to;
    std::array<const void*, kMaxLanes> from;  // null: zeros
    std::array<bool, kMaxLanes> active;       // others copy nothing
};

struct Wave {
    Block* block = nullptr;
    int index = 0;
    int lanes = 0;
    uint32_t step = 0;
    std::vector<Lane> lane;
    uint64_t ready = 0;  // bit per lane
    int left = 0;        // lanes that have left the kernel
    bool at_block_sync = false;

    // The meeting that lanes are arriving at.
    const char* what = nullptr;
    Site site{};
    uint64_t arrived = 0;
    std::array<void*, kMaxLanes> arguments{};

    std::deque<WaveCopy> copies;  // not waited for, oldest first
    std::deque<int> groups;       // copies in each closed group, oldest first
    int open = 0;                 // copies since the last commit
};

// What all lanes brought to a meeting.
template <class Arguments>
struct Met {
    Wave& wave;
    Arguments& operator[](int lane) const {
        return *static_cast<Arguments*>(wave.arguments[static_cast<size_t>(lane)]);
    }
};

class Block {
  public:
    Block(const gpu::Machine& machine, const Options& options, int threads, std::function<void()> kernel);
    ~Block();

    // Runs the kernel for one block; false after a failure.
    bool run(std::array<int, 3> index, uint32_t shared_bytes);

    const gpu::Machine& machine;
    const Options& options;
    std::array<int, 3> index{};
    std::vector<Wave> waves;
    SharedMemory shared;
    Failure failure;
    Counters counters;

    [[noreturn]] void fail(Check check, Site site, std::string text, int wave, int lane);

    // -- called on a lane --
    // True: this is the last lane, which now does the work and then calls release(). False: the work has been done.
    bool arrive(Lane& lane, const char* what, Site site, void* arguments);
    void release(Lane& last);
    void block_sync(Lane& lane, Site site);
    void count_access(Lane& lane, Access access, Site site);

    // -- work of meetings --
    void start_copies(Wave& wave, const WaveCopy& copy, Site site);
    void land_copies(Wave& wave, size_t left_pending);
    // Passes beyond those needed when lanes access `bytes` bytes each at the addresses together.
    void count_passes(Wave& wave, const uint32_t* addresses, int count, uint32_t bytes, Site site);

    Stamp stamp(const Wave& wave, uint32_t lane) const {
        return Stamp::make(Stamp::kDone, epoch_, wave.step, static_cast<uint32_t>(wave.index), lane);
    }

  private:
    void lane_body(Lane& lane);
    void leave(Lane& lane);
    void run_wave(Wave& wave);
    void judge_accesses(Wave& wave);
    void sleep(Lane& lane);  // until a meeting's work is done
    bool healthy() const { return failure.check == Check::kNone; }

    std::function<void()> kernel_;
    uint32_t epoch_ = 0;
    int waves_done_ = 0, waves_at_sync_ = 0;
    int patience_ = 0;  // meetings until another wave gets its turn
    bool stop_ = false;
    std::minstd_rand random_;
};

// The lane that runs on this host thread.
extern thread_local Lane* current;

// All lanes of the wave meet; `together(Met<Arguments>)` does the work once.
template <class Arguments, class Together>
void meet(const char* what, Site site, Arguments& mine, Together together) {
    Lane& lane = *current;
    Block& block = *lane.wave->block;
    if (block.arrive(lane, what, site, &mine)) {
        together(Met<Arguments>{*lane.wave});
        block.release(lane);
    }
}

}  // namespace clary::sim
