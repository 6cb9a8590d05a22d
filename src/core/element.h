// SPDX-License-Identifier: Apache-2.0
// One element of a tensor of the float types that attention takes: fp32, fp16, bf16.
#pragma once

#include <cstring>

#include "core/types.h"
#include "numerics/formats.h"

namespace clary {

CLARY_HD inline float load_element(const void* at, DType dtype) {
    uint16_t half = 0;
    switch (dtype) {
        case DType::kF16:
            std::memcpy(&half, at, sizeof(half));
            return numerics::Fp16{half}.to_float();
        case DType::kBF16:
            std::memcpy(&half, at, sizeof(half));
            return numerics::Bf16{half}.to_float();
        default:
            break;
    }
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
}

CLARY_HD inline void store_element(void* at, DType dtype, float value) {
    uint16_t half = 0;
    switch (dtype) {
        case DType::kF16:
            half = numerics::Fp16::from_float(value).bits;
            break;
        case DType::kBF16:
            half = numerics::Bf16::from_float(value).bits;
            break;
        default:
            std::memcpy(at, &value, sizeof(value));
            return;
    }
    std::memcpy(at, &half, sizeof(half));
}

}  // namespace clary
