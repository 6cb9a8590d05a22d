// SPDX-License-Identifier: Apache-2.0
#include "core/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace clary {
namespace {

constexpr const char* kDTypeNames[] = {"none",  "fp32",  "fp16",  "bf16", "fp64",     "int8",    "uint8",
                                       "int16", "int32", "int64", "bool", "fp8_e4m3", "fp8_e5m2"};

}  // namespace

const char* dtype_name(DType dtype) {
    const auto index = static_cast<size_t>(dtype);
    return index < std::size(kDTypeNames) ? kDTypeNames[index] : "unknown";
}

std::string shape_text(const TensorView& tensor) {
    return fmt::format("[{}]", fmt::join(tensor.shape, tensor.shape + tensor.ndim, ", "));
}

}  // namespace clary
