// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sim/maca/mc_runtime.h"

namespace clary::sim::maca {
namespace {

struct Card {
    const char* name;
    int major;
    gpu::Machine machine;
};
constexpr Card kCards[] = {{"simulated C500", 10, gpu::kXcore1000}, {"simulated C600", 15, gpu::kXcore1500}};

// Those that MACA_VISIBLE_DEVICES names, such as "1" or "1,0"; all where it is not set.
const std::vector<const Card*>& cards() {
    static const std::vector<const Card*> visible = [] {
        std::vector<const Card*> list;
        const char* const wanted = std::getenv("MACA_VISIBLE_DEVICES");
        for (const char* at = wanted == nullptr ? "0,1" : wanted; *at != '\0'; ++at)
            if (*at == '0' || *at == '1') list.push_back(&kCards[*at - '0']);
        return list;
    }();
    return visible;
}
bool exists(int index) { return index >= 0 && index < static_cast<int>(cards().size()); }
const Card& card(int index) { return *cards()[static_cast<size_t>(index)]; }

std::map<const void*, Thunk>& kernels() {
    static std::map<const void*, Thunk> all;
    return all;
}

std::mutex mutex;  // of the two below
Counters counters;
uint64_t launches = 0;

thread_local int device = 0;
thread_local mcError_t last = mcSuccess;
thread_local std::string text = "no failure";

mcError_t fail(mcError_t error, std::string why) {
    text = std::move(why);
    return last = error;
}

}  // namespace

void enrol(const void* kernel, Thunk thunk) { kernels()[kernel] = thunk; }

Counters launched() {
    const std::lock_guard lock(mutex);
    return counters;
}

mcError_t run(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes) {
    const auto found = kernels().find(kernel);
    if (found == kernels().end()) return fail(mcErrorInvalidValue, "no such kernel");
    Options options;
    {
        const std::lock_guard lock(mutex);
        options.seed = ++launches;
        options.one_line = true;
        options.copies = launches % 2 == 0 ? Copies::kEarly : Copies::kLate;
    }
    const Report report =
        launch(card(device).machine, {static_cast<int>(grid.x), static_cast<int>(grid.y), static_cast<int>(grid.z)},
               static_cast<int>(block.x), static_cast<uint32_t>(shared_bytes), options,
               [=, thunk = found->second] { thunk(kernel, arguments); });
    if (!report.ok()) return fail(mcErrorLaunchFailure, report.describe());
    const std::lock_guard lock(mutex);
    add(counters, report.counters);
    return mcSuccess;
}

}  // namespace clary::sim::maca

using namespace clary::sim;

mcError_t mcGetDeviceCount(int* count) {
    *count = static_cast<int>(maca::cards().size());
    return mcSuccess;
}
mcError_t mcGetDeviceProperties(mcDeviceProp_t* properties, int device) {
    if (!maca::exists(device)) return maca::fail(mcErrorInvalidDevice, "no such device");
    *properties = {};
    std::strncpy(properties->name, maca::card(device).name, sizeof properties->name - 1);
    properties->major = maca::card(device).major;
    return mcSuccess;
}
mcError_t mcGetDevice(int* device) {
    *device = maca::device;
    return mcSuccess;
}
mcError_t mcSetDevice(int device) {
    if (!maca::exists(device)) return maca::fail(mcErrorInvalidDevice, "no such device");
    maca::device = device;
    return mcSuccess;
}
mcError_t mcFuncSetAttribute(const void*, mcFuncAttribute, int value) {
    if (static_cast<uint32_t>(value) <= maca::card(maca::device).machine.shared_bytes) return mcSuccess;
    return maca::fail(mcErrorInvalidValue, "more shared memory than the card has");
}
mcError_t mcLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, mcStream_t) {
    return maca::run(kernel, grid, block, arguments, shared_bytes);
}
mcError_t mcDeviceSynchronize() { return mcSuccess; }
mcError_t mcGetLastError() {
    const mcError_t error = maca::last;
    maca::last = mcSuccess;
    return error;
}
const char* mcGetErrorString(mcError_t error) { return error == mcSuccess ? "no error" : maca::text.c_str(); }
mcError_t mcMalloc(void** data, size_t bytes) {
    *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return mcSuccess;
}
mcError_t mcFree(void* data) {
    std::free(data);
    return mcSuccess;
}
mcError_t mcMemcpy(void* to, const void* from, size_t bytes, mcMemcpyKind) {
    std::memcpy(to, from, bytes);
    return mcSuccess;
}
