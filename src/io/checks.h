// SPDX-License-Identifier: Apache-2.0
// What the format readers and writers share: checked sizes, little-endian fields, printable names, and the guard that
// keeps exceptions inside the module.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "io/tensor_file.h"

namespace clary::io {

static_assert(std::endian::native == std::endian::little, "file data is little-endian and copied as it is");

// *out = bytes of a dense tensor. Dimensions of 0 count as 1 for the overflow check, so that strides never overflow.
Status dense_byte_count(DType dtype, std::span<const int64_t> shape, std::size_t* out);

// What every tensor, read or about to be written, must satisfy: a known dtype, a legal shape, exactly the shape's
// bytes, and bools that are 0 or 1. The text does not name the tensor.
Status check_tensor(const Tensor& tensor);

// invalid_argument where two tensors bear one name.
Status check_unique_names(const TensorFile& file);

bool is_utf8(std::string_view text);

// 'name' for a message: one line, control and non-ASCII bytes as \xNN, long names cut.
std::string quote(std::string_view name);
std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

// The status with "tensor 'name': " before its text; ok stays ok.
Status in_tensor(std::string_view name, Status status);

// Precondition: offset + sizeof(T) <= bytes.size().
template <class T>
T load_le(std::span<const std::byte> bytes, std::size_t offset) {
    static_assert(std::is_integral_v<T>);
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
    return value;
}

void append(Bytes* out, const void* data, std::size_t size);

template <class T>
void append_le(Bytes* out, T value) {
    static_assert(std::is_integral_v<T>);
    append(out, &value, sizeof(T));
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Runs `body` and turns what it throws (in practice: no memory) into a Status.
template <class Body>
Status guarded(Body&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return {StatusCode::kOutOfMemory, "out of memory"};  // short enough to need none
    } catch (const std::exception& error) {
        return {StatusCode::kInternal, error.what()};
    }
}

}  // namespace clary::io
