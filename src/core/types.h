// SPDX-License-Identifier: Apache-2.0
// Element types and the strided tensor view that every layer speaks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "numerics/host_device.h"

namespace clary {

// The values are part of the C ABI (clary_dtype in clary.h); append only.
enum class DType : int32_t {
    kNone = 0,
    kF32 = 1,
    kF16 = 2,
    kBF16 = 3,
    kF64 = 4,
    kI8 = 5,
    kU8 = 6,
    kI16 = 7,
    kI32 = 8,
    kI64 = 9,
    kBool = 10,  // one byte, 0 or 1
    kE4M3 = 11,
    kE5M2 = 12,
};

const char* dtype_name(DType dtype);  // "fp32", "bf16", ...; "unknown" for a value outside the enum

// Bytes; 0 for kNone and unknown values.
CLARY_HD constexpr int64_t dtype_size(DType dtype) {
    switch (dtype) {
        case DType::kF64:
        case DType::kI64:
            return 8;
        case DType::kF32:
        case DType::kI32:
            return 4;
        case DType::kF16:
        case DType::kBF16:
        case DType::kI16:
            return 2;
        case DType::kI8:
        case DType::kU8:
        case DType::kBool:
        case DType::kE4M3:
        case DType::kE5M2:
            return 1;
        case DType::kNone:
            break;
    }
    return 0;
}

enum class DeviceType : int32_t { kCpu = 0, kCuda = 1, kMaca = 2 };

inline constexpr int kMaxDims = 5;

// A strided tensor in memory that the caller owns. Strides count elements; 0 broadcasts. ndim 0 means "not given".
// `data` may be null where only the shape matters (explain, workspace queries).
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::kNone;
    DeviceType device = DeviceType::kCpu;
    int32_t device_index = 0;
    int32_t ndim = 0;
    int64_t shape[kMaxDims] = {};
    int64_t stride[kMaxDims] = {};

    CLARY_HD bool given() const { return ndim != 0; }
};

std::string shape_text(const TensorView& tensor);  // "[1, 9, 2048, 64]"

}  // namespace clary
