// SPDX-License-Identifier: Apache-2.0
#include "io/checks.h"

#include <algorithm>
#include <set>

namespace clary::io {

Status dense_byte_count(DType dtype, std::span<const int64_t> shape, std::size_t* out) {
    if (dtype_size(dtype) == 0) {
        return invalid_argument(fmt::format("dtype {} is no element type", static_cast<int32_t>(dtype)));
    }
    if (shape.size() > kMaxTensorDims) {
        return invalid_argument(
            fmt::format("shape has {} dimensions (allowed: 0 to {})", shape.size(), kMaxTensorDims));
    }
    int64_t extent = dtype_size(dtype);  // with every 0 taken as 1
    bool empty = false;
    for (const int64_t size : shape) {
        if (size < 0) {
            return invalid_argument(fmt::format("shape {} has the size {} (allowed: >= 0)", shape_text(shape), size));
        }
        empty = empty || size == 0;
        if (__builtin_mul_overflow(extent, std::max<int64_t>(size, 1), &extent)) {
            return invalid_argument(fmt::format("shape {} of {} needs more than {} bytes", shape_text(shape),
                                                dtype_name(dtype), INT64_MAX));
        }
    }
    *out = empty ? 0 : static_cast<std::size_t>(extent);
    return Status::ok();
}

Status check_tensor(const Tensor& tensor) {
    std::size_t byte_count = 0;
    CLARY_RETURN_IF_ERROR(dense_byte_count(tensor.dtype, tensor.shape, &byte_count));
    if (tensor.bytes.size() != byte_count) {
        return invalid_argument(fmt::format("{} bytes given, but shape {} of {} needs {}", tensor.bytes.size(),
                                            shape_text(tensor.shape), dtype_name(tensor.dtype), byte_count));
    }
    if (tensor.dtype == DType::kBool) {
        const auto is_bad = [](std::byte value) { return value > std::byte{1}; };
        const auto bad = std::find_if(tensor.bytes.begin(), tensor.bytes.end(), is_bad);
        if (bad != tensor.bytes.end()) {
            return invalid_argument(fmt::format("bool element {} holds {} (allowed: 0, 1)", bad - tensor.bytes.begin(),
                                                std::to_integer<int>(*bad)));
        }
    }
    return Status::ok();
}

Status check_unique_names(const TensorFile& file) {
    std::set<std::string_view> names;
    for (const Tensor& tensor : file.tensors) {
        if (!names.insert(tensor.name).second) {
            return in_tensor(tensor.name, invalid_argument("the name occurs twice (allowed: once)"));
        }
    }
    return Status::ok();
}

bool is_utf8(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const std::size_t length = lead < 0x80   ? 1
                                   : lead < 0xc2 ? 0
                                   : lead < 0xe0 ? 2
                                   : lead < 0xf0 ? 3
                                   : lead < 0xf5 ? 4
                                                 : 0;
        if (length == 0 || length > text.size() - i) return false;
        for (std::size_t k = 1; k < length; ++k) {
            if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
        }
        if (length > 2) {  // overlong forms, UTF-16 surrogates and code points above U+10FFFF
            const auto second = static_cast<unsigned char>(text[i + 1]);
            if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second >= 0xa0) ||
                (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second >= 0x90)) {
                return false;
            }
        }
        i += length;
    }
    return true;
}

std::string quote(std::string_view name) {
    constexpr std::size_t kMaxShown = 100;
    std::string text = "'";
    for (const char c : name.substr(0, kMaxShown)) {
        if (c >= ' ' && c <= '~') {
            text += c;
        } else {
            text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        }
    }
    return text + (name.size() > kMaxShown ? "...'" : "'");
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Status in_tensor(std::string_view name, Status status) {
    if (status.is_ok()) return status;
    return {status.code(), fmt::format("tensor {}: {}", quote(name), status.text())};
}

void append(Bytes* out, const void* data, std::size_t size) {
    if (size == 0) return;
    const std::size_t old_size = out->size();
    out->resize(old_size + size);
    std::memcpy(out->data() + old_size, data, size);
}

}  // namespace clary::io
