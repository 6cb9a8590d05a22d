// SPDX-License-Identifier: Apache-2.0
// NVFP4: groups of 16 values along the contracted axis, E2m1 codes under one Ue4m3 scale.
//
//   scale = Ue4m3(amax / 6)   code = E2m1(x / scale)   value = code * scale
//
// There is no second scale for the tensor: an amax above 448 * 6 = 2688 saturates, one up to 6 * 2^-10 gives scale 0
// and a group of zeros. P comes in two levels: each row is first multiplied so that its largest value is kPFp4RowMax.
#pragma once

#include <cstdint>

#include "numerics/constants.h"
#include "numerics/formats.h"
#include "numerics/host_device.h"

namespace clary::numerics {

inline constexpr int kNvfp4Group = 16;  // values per scale

// Scale of a group whose largest magnitude is amax. NaN for an infinite or NaN amax, so that the group decodes to NaN
// rather than to finite garbage.
CLARY_HD constexpr Ue4m3 nvfp4_scale(float amax) {
    return Ue4m3::from_float(amax < bit_cast<float>(detail::kFloatInfinity) ? amax / kE2m1Max : detail::quiet_nan());
}

// Code of x in a group with this scale, `scale.to_float()` being `scale`.
CLARY_HD constexpr E2m1 nvfp4_code(float x, float scale) { return E2m1::from_float(scale > 0 ? x / scale : 0.0f); }

// Quantizes one group: writes its 16 codes (one per byte, not packed) and returns its scale. A value that is not finite
// makes the scale NaN.
CLARY_HD constexpr Ue4m3 nvfp4_quantize(const float* x, E2m1* codes) {
    uint32_t amax_bits = 0;  // magnitudes compare as integers, and NaN is above all
    for (int i = 0; i < kNvfp4Group; ++i) {
        const uint32_t magnitude = detail::magnitude_bits(x[i]);
        amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
    }
    const Ue4m3 scale = nvfp4_scale(bit_cast<float>(amax_bits));
    for (int i = 0; i < kNvfp4Group; ++i) codes[i] = nvfp4_code(x[i], scale.to_float());
    return scale;
}

CLARY_HD constexpr float nvfp4_decode(E2m1 code, Ue4m3 scale) { return code.to_float() * scale.to_float(); }

}  // namespace clary::numerics
