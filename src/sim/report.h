// SPDX-License-Identifier: Apache-2.0
// What a simulated launch is told and what it says afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace clary::sim {

struct Grid {
    int x = 1, y = 1, z = 1;
};

// When the bytes of an asynchronous copy reach shared memory. A kernel must be right in both modes.
enum class Copies {
    kEarly,  // when the copy is issued
    kLate    // when a wait forces them; until then their place holds kPoison
};

// Bytes of shared memory that nothing has been written to, and the places of late copies. NaN in every float format.
inline constexpr uint8_t kPoison = 0xff;

struct GlobalRange {
    const void* begin;
    std::size_t bytes;
};

struct Options {
    Copies copies = Copies::kLate;
    uint64_t seed = 0;  // of the order in which waves run
    int threads = 1;    // of the host; each runs whole blocks
    // Excess passes of shared memory accesses are counted instead of being a failure.
    bool allow_bank_conflicts = false;
    // Every access comes from the same line (that of a Target's builtins), which does not tell instructions apart: where
    // lanes took different paths since the last collective, their accesses are not judged.
    bool one_line = false;
    // Where copy16() may read. Empty: anywhere.
    std::vector<GlobalRange> global;
    // Stop in the debugger (SIGTRAP) at the failing access, on the lane's own stack. Environment: CLARY_SIM_TRAP=1.
    bool trap = false;
    std::size_t stack_bytes = std::size_t{256} * 1024;  // of a lane
};

// What went wrong, in the words of docs/simulator.md.
enum class Check {
    kNone,
    kLaunch,           // block size or grid that the machine has not
    kTooMuchShared,    // more shared memory than a block may use
    kDivergence,       // lanes of a wave met at different collectives, or some had left the kernel
    kOutOfRange,       // shared access outside the block's memory
    kMisaligned,       // access not aligned to its size
    kUninitialised,    // read of shared memory that nothing was written to
    kRace,             // conflicting accesses with no sync between
    kPendingCopy,      // access to the destination of a copy that has not been waited for
    kCopyDestination,  // MetaX: a wave's copies must fill consecutive bytes in the order of lanes
    kBankConflict,     // lanes met in a bank
    kGlobalRange,      // copy from outside the registered global memory
    kStuck             // a lane goes on without end
};

const char* check_name(Check check);

struct Failure {
    Check check = Check::kNone;
    std::string text;
    const char* file = "";  // of the kernel
    int line = 0;
    std::array<int, 3> block{};
    int wave = -1;  // -1: not one wave's
    int lane = -1;
};

struct Counters {
    int64_t products = 0;        // mma() of one wave each
    int64_t multiply_adds = 0;   // inside them
    int64_t collectives = 0;     // of one wave each
    int64_t accesses = 0;        // plain loads and stores of one lane each
    int64_t copies = 0;          // copy16() of one wave each
    int64_t bank_conflicts = 0;  // passes beyond those that the bytes need
};
void add(Counters& sum, const Counters& more);

struct Report {
    Failure failure;  // the first one; its block was the last that ran on that host thread
    Counters counters;

    bool ok() const { return failure.check == Check::kNone; }
    // One line: check, file:line, block, wave, lane, text. "ok" and the counters if nothing failed.
    std::string describe() const;
};

}  // namespace clary::sim
