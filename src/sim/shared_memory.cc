// SPDX-License-Identifier: Apache-2.0
#include "sim/shared_memory.h"

#include <fmt/format.h>

namespace clary::sim {
namespace {

std::string who_text(Stamp stamp) {
    if (stamp.wave() == Stamp::kMany) return "several waves";
    if (stamp.lane() == Stamp::kMany) return fmt::format("several lanes of wave {}", stamp.wave());
    return fmt::format("wave {} lane {}", stamp.wave(), stamp.lane());
}

// What should have stood between two accesses.
const char* missing_sync(Stamp earlier, Stamp now) {
    return earlier.wave() == now.wave() ? "with no wave_sync() between" : "with no block_sync() between";
}

}  // namespace

void SharedMemory::reset(uint32_t bytes) {
    bytes_ = bytes;
    data_.assign(bytes, kPoison);
    written_.assign(bytes, Stamp{});
    read_.assign(bytes, Stamp{});
}

bool SharedMemory::explain_place(uint32_t at, uint32_t size, Fault& fault) const {
    if (at >= bytes_ || size > bytes_ - at)
        fault = {Check::kOutOfRange, fmt::format("{} bytes at {} of {} bytes of shared memory", size, at, bytes_)};
    else
        fault = {Check::kMisaligned, fmt::format("{} bytes at {}, not a multiple of {}", size, at, size)};
    return false;
}

bool SharedMemory::readable_bytes(Stamp who, uint32_t at, uint32_t size, Fault& fault) const {
    for (uint32_t byte = at; byte < at + size; ++byte) {
        const Stamp written = written_[byte];
        if (readable(who, written)) continue;
        if (written.state() == Stamp::kNever)
            fault = {Check::kUninitialised, fmt::format("reads byte {}, which nothing was written to", byte)};
        else if (written.state() == Stamp::kPending)
            fault = {Check::kPendingCopy,
                     fmt::format("reads byte {}, whose copy by {} has not been waited for", byte, who_text(written))};
        else
            fault = {Check::kRace, fmt::format("reads byte {}, written by {} {}", byte, who_text(written),
                                               missing_sync(written, who))};
        return false;
    }
    return true;
}

bool SharedMemory::writable_bytes(Stamp who, uint32_t at, uint32_t size, Fault& fault) const {
    for (uint32_t byte = at; byte < at + size; ++byte) {
        const Stamp written = written_[byte], read = read_[byte];
        if (writable(who, written, read)) continue;
        if (written.state() == Stamp::kPending)
            fault = {Check::kPendingCopy,
                     fmt::format("writes byte {}, whose copy by {} has not been waited for", byte, who_text(written))};
        else if (written.state() == Stamp::kDone && !who.ordered_after(written))
            fault = {Check::kRace, fmt::format("writes byte {}, written by {} {}", byte, who_text(written),
                                               missing_sync(written, who))};
        else
            fault = {Check::kRace,
                     fmt::format("writes byte {}, read by {} {}", byte, who_text(read), missing_sync(read, who))};
        return false;
    }
    return true;
}

bool SharedMemory::begin_copy(Stamp who, uint32_t at, Fault& fault) {
    if (!claim<16>(who, at, fault)) return false;
    fill<16>(&written_[at], Stamp::make(Stamp::kPending, who.epoch(), who.step(), who.wave(), who.lane()));
    std::memset(&data_[at], kPoison, 16);
    return true;
}

void SharedMemory::deliver(uint32_t at, const void* from) {
    if (from != nullptr)
        std::memcpy(&data_[at], from, 16);
    else
        std::memset(&data_[at], 0, 16);
}

void SharedMemory::end_copy(Stamp who, uint32_t at) { fill<16>(&written_[at], done(who)); }

}  // namespace clary::sim
