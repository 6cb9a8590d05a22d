// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every platform: a counter hashed by SplitMix64's finalizer, normals by
// Box-Muller. Only log, cos and sqrt come from the C library, so values agree to an ulp of double and, rounded to fp32,
// practically always.
#pragma once

#include <cmath>
#include <cstdint>

namespace clary::synthetic {

class Random {
  public:
    // `stream` separates independent sequences of one seed.
    explicit Random(uint64_t seed, uint64_t stream = 0) : state_(mix(seed) ^ mix(stream + kGolden)) {}

    uint64_t bits() { return mix(state_ += kGolden); }
    // In the open interval (0, 1), 53 bits.
    double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
    double sign() { return (bits() >> 63) != 0 ? -1.0 : 1.0; }
    double normal() {
        if (has_spare_) {
            has_spare_ = false;
            return spare_;
        }
        const double radius = std::sqrt(-2 * std::log(uniform()));
        const double angle = 6.283185307179586477 * uniform();
        spare_ = radius * std::sin(angle);
        has_spare_ = true;
        return radius * std::cos(angle);
    }

  private:
    static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
    static constexpr uint64_t mix(uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    uint64_t state_;
    double spare_ = 0;
    bool has_spare_ = false;
};

}  // namespace clary::synthetic
