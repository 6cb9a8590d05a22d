// SPDX-License-Identifier: Apache-2.0
// Shared memory of one block with a shadow: for each byte, who wrote it last and who has read it since, and when.
//
// Time of a block is its number of block_sync()s (the epoch), time of a wave its number of wave_sync()s (the step).
// Two accesses are ordered if their epochs differ, or if they are one wave's and it has taken a step between, or one
// lane's. Two that are not ordered, one of them a write, are a race. Shuffles, products and votes order nothing: the
// machines promise no memory order for them.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sim/report.h"

namespace clary::sim {

// Who accesses, and when; also the shadow's entry, in 64 bits.
struct Stamp {
    enum State : uint32_t { kNever = 0, kDone = 1, kPending = 2 };  // kPending: a copy's, not waited for yet
    static constexpr uint32_t kMany = 0xff;                         // lanes of a wave, or waves of a block

    uint64_t bits = 0;

    static constexpr Stamp make(State state, uint32_t epoch, uint32_t step, uint32_t wave, uint32_t lane) {
        return {static_cast<uint64_t>(state) << 62 | static_cast<uint64_t>(epoch & 0x7fffff) << 39 |
                static_cast<uint64_t>(step & 0x7fffff) << 16 | wave << 8 | lane};
    }
    constexpr uint32_t state() const { return static_cast<uint32_t>(bits >> 62); }
    constexpr uint32_t epoch() const { return static_cast<uint32_t>(bits >> 39) & 0x7fffff; }
    constexpr uint32_t step() const { return static_cast<uint32_t>(bits >> 16) & 0x7fffff; }
    constexpr uint32_t wave() const { return static_cast<uint32_t>(bits >> 8) & 0xff; }
    constexpr uint32_t lane() const { return static_cast<uint32_t>(bits) & 0xff; }

    // `earlier` cannot disturb an access at this stamp.
    constexpr bool ordered_after(Stamp earlier) const {
        if (earlier.epoch() != epoch()) return true;
        if (earlier.wave() != wave() || wave() == kMany) return false;
        return earlier.step() != step() || (earlier.lane() == lane() && lane() != kMany);
    }
};

class SharedMemory {
  public:
    // What is wrong with an access; kNone if nothing is.
    struct Fault {
        Check check = Check::kNone;
        std::string text;
    };

    // Forgets everything; all bytes become poison.
    void reset(uint32_t bytes);
    uint32_t bytes() const { return bytes_; }

    // Reads or writes `size` bytes in the name of `who`. False: `fault` says why; then nothing was done.
    template <uint32_t size>
    bool read(Stamp who, uint32_t at, void* to, Fault& fault) {
        if (!in_place(at, size, fault)) return false;
        const Stamp* written = &written_[at];
        if (!(same<size>(written) && readable(who, *written)) && !readable_bytes(who, at, size, fault)) return false;
        Stamp* read = &read_[at];
        if (same<size>(read)) {
            fill<size>(read, with_reader(*read, who));
        } else {
            for (uint32_t i = 0; i < size; ++i) read[i] = with_reader(read[i], who);
        }
        std::memcpy(to, &data_[at], size);
        return true;
    }
    template <uint32_t size>
    bool write(Stamp who, uint32_t at, const void* from, Fault& fault) {
        if (!claim<size>(who, at, fault)) return false;
        std::memcpy(&data_[at], from, size);
        return true;
    }

    // An asynchronous copy of 16 bytes: its place belongs to it from `begin_copy` until `end_copy` delivers the bytes.
    bool begin_copy(Stamp who, uint32_t at, Fault& fault);
    void deliver(uint32_t at, const void* from);  // null: zeros
    void end_copy(Stamp who, uint32_t at);

  private:
    static constexpr Stamp done(Stamp who) {
        return {(who.bits & ~(uint64_t{3} << 62)) | uint64_t{Stamp::kDone} << 62};
    }
    static constexpr bool readable(Stamp who, Stamp written) {
        return written.state() == Stamp::kDone && who.ordered_after(written);
    }
    static constexpr bool writable(Stamp who, Stamp written, Stamp read) {
        return written.state() != Stamp::kPending && (written.state() == Stamp::kNever || who.ordered_after(written)) &&
               (read.state() == Stamp::kNever || who.ordered_after(read));
    }
    // Entry of readers after one more of them.
    static constexpr Stamp with_reader(Stamp readers, Stamp who) {
        if (readers.state() == Stamp::kNever || readers.epoch() != who.epoch()) return done(who);
        if (readers.wave() != who.wave()) return Stamp::make(Stamp::kDone, who.epoch(), 0, Stamp::kMany, Stamp::kMany);
        if (readers.step() != who.step() || readers.lane() == who.lane()) return done(who);
        return Stamp::make(Stamp::kDone, who.epoch(), who.step(), who.wave(), Stamp::kMany);
    }
    template <uint32_t size>
    static bool same(const Stamp* stamps) {
        uint64_t difference = 0;
        for (uint32_t i = 1; i < size; ++i) difference |= stamps[i].bits ^ stamps[0].bits;
        return difference == 0;
    }
    template <uint32_t size>
    static void fill(Stamp* stamps, Stamp value) {
        for (uint32_t i = 0; i < size; ++i) stamps[i] = value;
    }
    template <uint32_t size>
    bool claim(Stamp who, uint32_t at, Fault& fault) {
        if (!in_place(at, size, fault)) return false;
        Stamp* written = &written_[at];
        const bool free = same<size>(written) && same<size>(&read_[at]) && writable(who, *written, read_[at]);
        if (!free && !writable_bytes(who, at, size, fault)) return false;
        fill<size>(written, done(who));
        return true;
    }

    bool in_place(uint32_t at, uint32_t size, Fault& fault) const {
        if (at % size == 0 && at < bytes_ && size <= bytes_ - at) return true;
        return explain_place(at, size, fault);
    }
    bool explain_place(uint32_t at, uint32_t size, Fault& fault) const;
    // The slow ways: byte for byte, with a text if one is not allowed.
    bool readable_bytes(Stamp who, uint32_t at, uint32_t size, Fault& fault) const;
    bool writable_bytes(Stamp who, uint32_t at, uint32_t size, Fault& fault) const;

    uint32_t bytes_ = 0;
    std::vector<uint8_t> data_;
    std::vector<Stamp> written_, read_;
};

}  // namespace clary::sim
