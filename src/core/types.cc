// SPDX-License-Identifier: Apache-2.0
#include "core/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace clary {
namespace {

struct DTypeInfo {
    const char* name;
    int64_t size;  // bytes
};

constexpr DTypeInfo kDTypes[] = {
    {"none", 0},  {"fp32", 4},  {"fp16", 2},  {"bf16", 2}, {"fp64", 8},     {"int8", 1},     {"uint8", 1},
    {"int16", 2}, {"int32", 4}, {"int64", 8}, {"bool", 1}, {"fp8_e4m3", 1}, {"fp8_e5m2", 1},
};

const DTypeInfo* info(DType dtype) {
    const auto index = static_cast<size_t>(dtype);
    return index < std::size(kDTypes) ? &kDTypes[index] : nullptr;
}

}  // namespace

const char* dtype_name(DType dtype) {
    const DTypeInfo* found = info(dtype);
    return found ? found->name : "unknown";
}

int64_t dtype_size(DType dtype) {
    const DTypeInfo* found = info(dtype);
    return found ? found->size : 0;
}

std::string shape_text(const TensorView& tensor) {
    return fmt::format("[{}]", fmt::join(tensor.shape, tensor.shape + tensor.ndim, ", "));
}

}  // namespace clary
