// SPDX-License-Identifier: Apache-2.0
#include "sim/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <string_view>
#include <utility>

#include "sim/banks.h"

namespace clary::sim {
namespace {

constexpr size_t kMaxAccesses = size_t{1} << 18;  // of a lane between two meetings: it is stuck in a loop

uint64_t bit(int lane) { return uint64_t{1} << lane; }
uint64_t all_lanes(int lanes) { return lanes == 64 ? ~uint64_t{0} : bit(lanes) - 1; }
const char* base_name(const char* path) {
    const std::string_view view = path;
    const size_t slash = view.rfind('/');
    return slash == std::string_view::npos ? path : path + slash + 1;
}

}  // namespace

thread_local Lane* current = nullptr;

Block::Block(const gpu::Machine& machine_, const Options& options_, int threads, std::function<void()> kernel)
    : machine(machine_),
      options(options_),
      waves(static_cast<size_t>(threads / machine_.lanes)),
      kernel_(std::move(kernel)) {
    int index_of_wave = 0;
    for (Wave& wave : waves) {
        wave.block = this;
        wave.index = index_of_wave++;
        wave.lanes = machine.lanes;
        wave.lane = std::vector<Lane>(static_cast<size_t>(machine.lanes));
        int index_of_lane = 0;
        for (Lane& lane : wave.lane) {
            lane.wave = &wave;
            lane.index = index_of_lane++;
            lane.fiber = std::make_unique<Fiber>(options.stack_bytes, [this, &lane] { lane_body(lane); });
        }
    }
}

Block::~Block() {
    stop_ = true;
    for (Wave& wave : waves)
        for (Lane& lane : wave.lane) lane.fiber->resume();
}

// The fibers live as long as the Block: each runs the kernel once per run().
void Block::lane_body(Lane& lane) {
    while (!stop_) {
        try {
            if (healthy()) {
                kernel_();
                leave(lane);
            }
        } catch (const Abandoned&) {
        }
        lane.fiber->yield();
    }
}

bool Block::run(std::array<int, 3> block_index, uint32_t shared_bytes) {
    index = block_index;
    shared.reset(shared_bytes);
    epoch_ = 1;
    waves_done_ = waves_at_sync_ = 0;
    const auto linear = static_cast<uint64_t>(index[0]) + (static_cast<uint64_t>(index[1]) << 20) +
                        (static_cast<uint64_t>(index[2]) << 40);
    random_.seed(
        static_cast<uint32_t>(((options.seed + 1) * 0x9e3779b97f4a7c15u + linear * 0xbf58476d1ce4e5b9u) >> 33));
    for (Wave& wave : waves) {
        wave.step = 0;
        wave.ready = all_lanes(wave.lanes);
        wave.left = 0;
        wave.at_block_sync = false;
        wave.arrived = 0;
        wave.copies.clear();
        wave.groups.clear();
        wave.open = 0;
        for (Lane& lane : wave.lane) lane.accesses.clear();
    }
    std::vector<Wave*> runnable;
    while (healthy()) {
        runnable.clear();
        for (Wave& wave : waves)
            if (wave.ready != 0) runnable.push_back(&wave);
        if (runnable.empty()) break;  // all have left: who waits with nobody to come has been found out on the way
        patience_ = static_cast<int>(random_() % 64) + 1;
        run_wave(*runnable[random_() % runnable.size()]);
    }
    if (healthy()) return true;
    // Lanes that sleep in a meeting leave the kernel by an exception, so that their stacks are free again.
    for (Wave& wave : waves)
        for (Lane& lane : wave.lane) lane.fiber->resume();
    return false;
}

void Block::run_wave(Wave& wave) {
    while (wave.ready != 0 && patience_ > 0 && healthy()) {
        const int index_of_lane = std::countr_zero(wave.ready);
        wave.ready &= ~bit(index_of_lane);
        current = &wave.lane[static_cast<size_t>(index_of_lane)];
        current->fiber->resume();
    }
}

void Block::fail(Check check, Site site, std::string text, int wave, int lane) {
    if (healthy()) failure = {check, std::move(text), site.file, site.line, index, wave, lane};
    if (options.trap) std::raise(SIGTRAP);  // in the debugger: `up` leads to the kernel's line
    throw Abandoned{};
}

bool Block::arrive(Lane& lane, const char* what, Site site, void* arguments) {
    Wave& wave = *lane.wave;
    if (wave.left > 0)
        fail(Check::kDivergence, site,
             fmt::format("{} lanes of the wave have left the kernel before this {}", wave.left, what), wave.index,
             lane.index);
    if (wave.arrived == 0) {
        wave.what = what;
        wave.site = site;
    } else if (wave.what != what || wave.site.line != site.line || wave.site.file != site.file) {
        fail(Check::kDivergence, site,
             fmt::format("{} here, while lane {} waits in {} at {}:{}", what, std::countr_zero(wave.arrived), wave.what,
                         base_name(wave.site.file), wave.site.line),
             wave.index, lane.index);
    }
    wave.arguments[static_cast<size_t>(lane.index)] = arguments;
    wave.arrived |= bit(lane.index);
    if (wave.arrived != all_lanes(wave.lanes)) {
        sleep(lane);
        return false;
    }
    judge_accesses(wave);
    ++counters.collectives;
    --patience_;
    return true;
}

void Block::release(Lane& last) {
    Wave& wave = *last.wave;
    wave.arrived = 0;
    wave.ready |= all_lanes(wave.lanes) & ~bit(last.index);
}

void Block::sleep(Lane& lane) {
    lane.fiber->yield();
    if (!healthy()) throw Abandoned{};
}

void Block::block_sync(Lane& lane, Site site) {
    Wave& wave = *lane.wave;
    if (!arrive(lane, "block_sync()", site, nullptr)) return;
    if (waves_done_ > 0)
        fail(Check::kDivergence, site,
             fmt::format("{} waves of the block have left the kernel before this block_sync()", waves_done_),
             wave.index, lane.index);
    wave.at_block_sync = true;
    if (++waves_at_sync_ < static_cast<int>(waves.size())) {
        sleep(lane);
        return;
    }
    waves_at_sync_ = 0;
    ++epoch_;
    for (Wave& other : waves) {
        other.at_block_sync = false;
        other.arrived = 0;
        other.ready = all_lanes(other.lanes);
    }
    wave.ready &= ~bit(lane.index);
}

void Block::leave(Lane& lane) {
    Wave& wave = *lane.wave;
    const Site end{"", 0};
    if (wave.arrived != 0)
        fail(
            Check::kDivergence, wave.site,
            fmt::format("leaves the kernel, while lane {} waits in {} here", std::countr_zero(wave.arrived), wave.what),
            wave.index, lane.index);
    if (++wave.left < wave.lanes) return;
    judge_accesses(wave);
    if (!wave.copies.empty())
        fail(Check::kPendingCopy, end,
             fmt::format("leaves the kernel with {} copies not waited for", wave.copies.size()), wave.index, -1);
    ++waves_done_;
    for (const Wave& other : waves)
        if (other.at_block_sync)
            fail(Check::kDivergence, other.site,
                 fmt::format("leaves the kernel, while wave {} waits in block_sync() here", other.index), wave.index,
                 -1);
}

void Block::count_access(Lane& lane, Access access, Site site) {
    if (lane.accesses.size() >= kMaxAccesses)
        fail(Check::kStuck, site, fmt::format("{} accesses since the last collective", kMaxAccesses), lane.wave->index,
             lane.index);
    lane.accesses.push_back(access);
    ++counters.accesses;
}

// The k-th access of every lane since the last meeting is taken to be one instruction where size, direction and line agree.
void Block::judge_accesses(Wave& wave) {
    size_t most = 0;
    for (const Lane& lane : wave.lane) most = std::max(most, lane.accesses.size());
    const auto differs = [&](const Lane& lane) { return lane.accesses.size() != most; };
    if (options.one_line && std::any_of(wave.lane.begin(), wave.lane.end(), differs)) most = 0;
    for (size_t k = 0; k < most; ++k) {
        uint64_t rest = 0;
        for (const Lane& lane : wave.lane)
            if (k < lane.accesses.size()) rest |= bit(lane.index);
        while (rest != 0) {
            const Access first = wave.lane[static_cast<size_t>(std::countr_zero(rest))].accesses[k];
            std::array<uint32_t, kMaxLanes> addresses;
            int count = 0;
            for (uint64_t lanes = rest; lanes != 0; lanes &= lanes - 1) {
                const int index_of_lane = std::countr_zero(lanes);
                const Access access = wave.lane[static_cast<size_t>(index_of_lane)].accesses[k];
                if (access.size != first.size || access.write != first.write || access.line != first.line) continue;
                addresses[static_cast<size_t>(count++)] = access.at;
                rest &= ~bit(index_of_lane);
            }
            count_passes(wave, addresses.data(), count, first.size, {wave.site.file, first.line});
        }
    }
    for (Lane& lane : wave.lane) lane.accesses.clear();
}

void Block::count_passes(Wave& wave, const uint32_t* addresses, int count, uint32_t bytes, Site site) {
    const int excess = excess_passes(machine.vendor, addresses, count, bytes);
    if (excess == 0) return;
    counters.bank_conflicts += excess;
    if (!options.allow_bank_conflicts)
        fail(Check::kBankConflict, site,
             fmt::format("{} passes more than the {} bytes of {} lanes need", excess, bytes, count), wave.index, -1);
}

void Block::start_copies(Wave& wave, const WaveCopy& copy, Site site) {
    ++counters.copies;
    std::array<uint32_t, kMaxLanes> addresses;
    int active = 0;
    for (int lane = 0; lane < wave.lanes; ++lane) {
        const auto l = static_cast<size_t>(lane);
        if (!copy.active[l]) continue;
        const uint32_t at = copy.to[l].byte;
        addresses[static_cast<size_t>(active++)] = at;
        if (machine.vendor == gpu::Vendor::kMetax && at != copy.to[0].byte + 16 * static_cast<uint32_t>(lane))
            fail(
                Check::kCopyDestination, site,
                fmt::format("copies to byte {}, but the wave's {} bytes begin at {}: lane {}'s place is {}", at,
                            16 * wave.lanes, copy.to[0].byte, lane, copy.to[0].byte + 16 * static_cast<uint32_t>(lane)),
                wave.index, lane);
        const void* from = copy.from[l];
        const auto address = reinterpret_cast<uintptr_t>(from);
        if (from != nullptr) {
            if (address % 16 != 0)
                fail(Check::kMisaligned, site, "copies from global memory that is not aligned to 16 bytes", wave.index,
                     lane);
            const auto holds = [&](const GlobalRange& range) {
                const auto begin = reinterpret_cast<uintptr_t>(range.begin);
                return address >= begin && address + 16 <= begin + range.bytes;
            };
            if (!options.global.empty() && std::none_of(options.global.begin(), options.global.end(), holds))
                fail(Check::kGlobalRange, site, fmt::format("copies from {}, outside the global buffers", from),
                     wave.index, lane);
        }
        SharedMemory::Fault fault;
        if (!shared.begin_copy(stamp(wave, static_cast<uint32_t>(lane)), at, fault))
            fail(fault.check, site, "copy16() " + fault.text, wave.index, lane);
        if (options.copies == Copies::kEarly) shared.deliver(at, from);
    }
    count_passes(wave, addresses.data(), active, 16, site);
    wave.copies.push_back(copy);
    ++wave.open;
}

void Block::land_copies(Wave& wave, size_t left_pending) {
    while (wave.copies.size() > left_pending) {
        const WaveCopy& copy = wave.copies.front();
        for (int lane = 0; lane < wave.lanes; ++lane) {
            const auto l = static_cast<size_t>(lane);
            if (!copy.active[l]) continue;
            if (options.copies == Copies::kLate) shared.deliver(copy.to[l].byte, copy.from[l]);
            shared.end_copy(stamp(wave, static_cast<uint32_t>(lane)), copy.to[l].byte);
        }
        wave.copies.pop_front();
    }
}

}  // namespace clary::sim
