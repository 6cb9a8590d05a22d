// SPDX-License-Identifier: Apache-2.0
// The machines that kernels are built for: the numbers that the Target of a chip and its simulation share.
#pragma once

#include <cstdint>

namespace clary::gpu {

enum class Vendor { kNvidia, kMetax };

struct Machine {
    char name[12];  // an array, so that a Machine can be a template argument
    Vendor vendor;
    int lanes;              // of a wave
    uint32_t shared_bytes;  // that a block may use
    int max_threads;        // of a block
    bool async_copies;      // from global to shared memory; else they go through registers and land at once
};

inline constexpr Machine kSm75{"sm75", Vendor::kNvidia, 32, 64 * 1024, 1024, false};
inline constexpr Machine kSm80{"sm80", Vendor::kNvidia, 32, 163 * 1024, 1024, true};
inline constexpr Machine kSm89{"sm89", Vendor::kNvidia, 32, 99 * 1024, 1024, true};
inline constexpr Machine kXcore1000{"xcore1000", Vendor::kMetax, 64, 64 * 1024, 1024, true};
inline constexpr Machine kXcore1500{"xcore1500", Vendor::kMetax, 64, 128 * 1024, 1024, true};

}  // namespace clary::gpu
