// SPDX-License-Identifier: Apache-2.0
// The machines that kernels are built for: the numbers that the Target of a chip and its simulation share.
#pragma once

#include <cstdint>

namespace clary::gpu {

enum class Vendor { kNvidia, kMetax };
enum class Chip { kSm75, kSm80, kSm89, kXcore1000, kXcore1500 };

struct Machine {
    Chip chip;  // no text in here: nvcc cannot print a template argument that holds an array
    Vendor vendor;
    int lanes;              // of a wave
    uint32_t shared_bytes;  // that a block may use
    int max_threads;        // of a block
    bool async_copies;      // from global to shared memory; else they go through registers and land at once
    bool fp8;               // products of e4m3, and conversions to it
};

inline constexpr Machine kSm75{Chip::kSm75, Vendor::kNvidia, 32, 64 * 1024, 1024, false, false};
inline constexpr Machine kSm80{Chip::kSm80, Vendor::kNvidia, 32, 163 * 1024, 1024, true, false};
inline constexpr Machine kSm89{Chip::kSm89, Vendor::kNvidia, 32, 99 * 1024, 1024, true, true};
inline constexpr Machine kXcore1000{Chip::kXcore1000, Vendor::kMetax, 64, 64 * 1024, 1024, true, false};
inline constexpr Machine kXcore1500{Chip::kXcore1500, Vendor::kMetax, 64, 128 * 1024, 1024, true, true};

constexpr const char* machine_name(const Machine& machine) {
    switch (machine.chip) {
        case Chip::kSm75:
            return "sm75";
        case Chip::kSm80:
            return "sm80";
        case Chip::kSm89:
            return "sm89";
        case Chip::kXcore1000:
            return "xcore1000";
        case Chip::kXcore1500:
            return "xcore1500";
    }
    return "unknown";
}

}  // namespace clary::gpu
