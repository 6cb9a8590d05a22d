// SPDX-License-Identifier: Apache-2.0
// DLPack to clary_tensor. Only the frozen part of DLPack is spelled out here, so that no version of its header is needed.
#include "capi/edge.h"
#include "core/types.h"

namespace clary {
namespace {

struct DlTensor {  // DLTensor
    void* data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    const int64_t* shape;
    const int64_t* strides;  // in elements; null: C-contiguous
    uint64_t byte_offset;
};

// DLDataTypeCode and width to DType.
struct TypeRow {
    uint8_t code, bits;
    DType dtype;
};
constexpr TypeRow kTypes[] = {
    {0, 8, DType::kI8},    {0, 16, DType::kI16}, {0, 32, DType::kI32},  {0, 64, DType::kI64},
    {1, 8, DType::kU8},    {2, 16, DType::kF16}, {2, 32, DType::kF32},  {2, 64, DType::kF64},
    {4, 16, DType::kBF16}, {6, 8, DType::kBool}, {10, 8, DType::kE4M3},  // kDLFloat8_e4m3fn
    {12, 8, DType::kE5M2},                                               // kDLFloat8_e5m2
};

Status convert(const DlTensor& from, clary_tensor* to) {
    DType dtype = DType::kNone;
    for (const TypeRow& row : kTypes)
        if (row.code == from.code && row.bits == from.bits && from.lanes == 1) dtype = row.dtype;
    if (dtype == DType::kNone)
        return invalid_argument(
            fmt::format("dl_tensor: type code {} with {} bits and {} lanes has no name here; "
                        "allowed: ints of 8 to 64 bits, uint8, floats of 8 to 64 bits, bool",
                        from.code, from.bits, from.lanes));
    int32_t device = CLARY_CPU;
    switch (from.device_type) {
        case 1:  // kDLCPU
        case 3:  // kDLCUDAHost
            break;
        case 2:   // kDLCUDA
        case 13:  // kDLCUDAManaged
            device = CLARY_CUDA;
            break;
        default:
            return invalid_argument(
                fmt::format("dl_tensor: device type {}; allowed: 1 and 3 (host memory), 2 and 13 "
                            "(CUDA)",
                            from.device_type));
    }
    if (from.ndim < 1 || from.ndim > CLARY_MAX_DIMS)
        return invalid_argument(fmt::format("dl_tensor: {} dimensions; allowed: 1..{}", from.ndim, CLARY_MAX_DIMS));
    *to = {};
    to->data = from.data ? static_cast<char*>(from.data) + from.byte_offset : nullptr;
    to->dtype = static_cast<int32_t>(dtype);
    to->device = device;
    to->device_index = device == CLARY_CPU ? 0 : from.device_id;
    to->ndim = from.ndim;
    int64_t contiguous = 1;
    for (int i = from.ndim - 1; i >= 0; --i) {
        to->shape[i] = from.shape[i];
        to->stride[i] = from.strides ? from.strides[i] : contiguous;
        contiguous *= from.shape[i];
    }
    return Status::ok();
}

}  // namespace
}  // namespace clary

extern "C" clary_status clary_tensor_from_dlpack(const void* dl_tensor, clary_tensor* tensor) {
    return clary::at_edge([&]() -> clary::Status {
        if (dl_tensor == nullptr) return clary::null_argument("dl_tensor");
        if (tensor == nullptr) return clary::null_argument("tensor");
        return clary::convert(*static_cast<const clary::DlTensor*>(dl_tensor), tensor);
    });
}
