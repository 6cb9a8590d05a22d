// SPDX-License-Identifier: Apache-2.0
// What the tests of the file layer share: fixtures, tensors of known content, and checks on error texts.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "io/tensor_file.h"

namespace clary::io {

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16,  DType::kBF16, DType::kF64,
                                       DType::kI8,  DType::kU8,   DType::kI16,  DType::kI32,
                                       DType::kI64, DType::kBool, DType::kE4M3, DType::kE5M2};
inline constexpr DType kNumpyDTypes[] = {DType::kF32, DType::kF16, DType::kF64, DType::kI8,  DType::kU8,
                                         DType::kI16, DType::kI32, DType::kI64, DType::kBool};

inline Bytes bytes_of(std::string_view text) {
    Bytes bytes(text.size());
    if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}

inline std::string text_in(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

inline Bytes read_whole(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    return bytes_of(std::string(std::istreambuf_iterator<char>(file), {}));
}

// A file of tests/io/data, which make_fixtures.py there has written.
inline std::string fixture_path(const std::string& name) { return std::string(CLARY_IO_DATA_DIR) + "/" + name; }
inline Bytes fixture(const std::string& name) { return read_whole(fixture_path(name)); }

// The bits of 0, 1, 2, ... as `dtype` (bool: 0, 1, 0, ...). Floats narrower than fp32 are written out up to 5.
inline uint64_t bits_of_count(DType dtype, uint64_t value) {
    constexpr uint16_t kF16Bits[] = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500};
    constexpr uint8_t kE4M3Bits[] = {0x00, 0x38, 0x40, 0x44, 0x48, 0x4a};
    const auto as_float = static_cast<float>(value);
    const auto as_double = static_cast<double>(value);
    uint32_t float_bits = 0;
    uint64_t double_bits = 0;
    std::memcpy(&float_bits, &as_float, sizeof(float_bits));
    std::memcpy(&double_bits, &as_double, sizeof(double_bits));
    switch (dtype) {
        case DType::kF32:
            return float_bits;
        case DType::kBF16:
            return float_bits >> 16;
        case DType::kF64:
            return double_bits;
        case DType::kF16:
            return kF16Bits[value % 6];
        case DType::kE5M2:
            return static_cast<uint64_t>(kF16Bits[value % 6] >> 8);
        case DType::kE4M3:
            return kE4M3Bits[value % 6];
        case DType::kBool:
            return value % 2;
        default:
            return value;
    }
}

// Counts 0, 1, 2, ... in C order: the content of the fixtures.
inline Tensor counting(std::string name, DType dtype, std::vector<int64_t> shape) {
    Tensor tensor;
    const Status status = make_tensor(std::move(name), dtype, std::move(shape), &tensor);
    EXPECT_TRUE(status.is_ok()) << status.text();
    const auto size = static_cast<std::size_t>(dtype_size(dtype));
    for (std::size_t i = 0; i * size < tensor.bytes.size(); ++i) {
        const uint64_t bits = bits_of_count(dtype, i);
        std::memcpy(tensor.bytes.data() + i * size, &bits, size);
    }
    return tensor;
}

inline void expect_same(const Tensor& actual, const Tensor& expected) {
    SCOPED_TRACE("tensor " + expected.name);
    EXPECT_EQ(actual.name, expected.name);
    EXPECT_EQ(actual.dtype, expected.dtype);
    EXPECT_EQ(actual.shape, expected.shape);
    EXPECT_TRUE(actual.bytes == expected.bytes);
}

// Same tensors in any order, same metadata.
inline void expect_same(const TensorFile& actual, const TensorFile& expected) {
    EXPECT_EQ(actual.tensors.size(), expected.tensors.size());
    EXPECT_EQ(actual.metadata, expected.metadata);
    for (const Tensor& tensor : expected.tensors) {
        const Tensor* found = actual.find(tensor.name);
        ASSERT_NE(found, nullptr) << tensor.name;
        expect_same(*found, tensor);
    }
}

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.is_ok()) << status.text(); }

// Every part of `parts` occurs in the one line of an invalid_argument.
inline void expect_error(const Status& status, std::initializer_list<std::string_view> parts) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.text();
    EXPECT_EQ(status.text().find('\n'), std::string::npos) << status.text();
    EXPECT_FALSE(status.text().empty());
    for (const std::string_view part : parts) {
        EXPECT_NE(status.text().find(part), std::string::npos) << "'" << part << "' is not in: " << status.text();
    }
}

}  // namespace clary::io
