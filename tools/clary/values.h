// SPDX-License-Identifier: Apache-2.0
// Reading a file's tensor as numbers, whatever its dtype.
#pragma once

#include <cstdint>
#include <vector>

#include "io/tensor_file.h"
#include "numerics/formats.h"

namespace clary::cli {

// Calls visit(double) for every element, in memory order.
template <typename Visit>
void for_each_value(const io::Tensor& tensor, Visit&& visit) {
    const auto plain = [&]<typename T>(T) {
        for (const T value : tensor.as<T>()) visit(static_cast<double>(value));
    };
    const auto coded = [&]<typename Code, typename Bits>(Code, Bits) {
        for (const Bits bits : tensor.as<Bits>()) visit(static_cast<double>(Code{bits}.to_float()));
    };
    switch (tensor.dtype) {
        case DType::kNone:
            break;
        case DType::kF32:
            plain(float{});
            break;
        case DType::kF64:
            plain(double{});
            break;
        case DType::kI8:
            plain(int8_t{});
            break;
        case DType::kU8:
        case DType::kBool:
            plain(uint8_t{});
            break;
        case DType::kI16:
            plain(int16_t{});
            break;
        case DType::kI32:
            plain(int32_t{});
            break;
        case DType::kI64:
            plain(int64_t{});
            break;
        case DType::kF16:
            coded(numerics::Fp16{}, uint16_t{});
            break;
        case DType::kBF16:
            coded(numerics::Bf16{}, uint16_t{});
            break;
        case DType::kE4M3:
            coded(numerics::E4m3{}, uint8_t{});
            break;
        case DType::kE5M2:
            coded(numerics::E5m2{}, uint8_t{});
            break;
    }
}

int64_t count_non_finite(const io::Tensor& tensor);

}  // namespace clary::cli
