// SPDX-License-Identifier: Apache-2.0
// npy: content and bytes as numpy makes them, and headers that lie.
#include "io/npy.h"

#include "io_testing.h"

namespace clary::io {
namespace {

struct NamedDType {
    const char* numpy_name;
    DType dtype;
};
constexpr NamedDType kNumpyNames[] = {{"float32", DType::kF32}, {"float16", DType::kF16}, {"float64", DType::kF64},
                                      {"int8", DType::kI8},     {"uint8", DType::kU8},    {"int16", DType::kI16},
                                      {"int32", DType::kI32},   {"int64", DType::kI64},   {"bool", DType::kBool}};

Tensor read_fixture(const std::string& name) {
    TensorFile file;
    expect_ok(npy::read(fixture("npy/" + name + ".npy"), &file));
    return file.tensors.size() == 1 ? file.tensors[0] : Tensor();
}

// A version 1.0 file from its dict text and `data_bytes` bytes of 0.
Bytes file_of(const std::string& dict, std::size_t data_bytes) {
    std::string text("\x93NUMPY\x01\x00", 8);
    text += static_cast<char>(dict.size() % 256);
    text += static_cast<char>(dict.size() / 256);
    return bytes_of(text + dict + std::string(data_bytes, '\0'));
}

std::string dict(const std::string& descr, const std::string& shape, const std::string& order = "False") {
    return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

void expect_refused(const std::string& dict_text, std::size_t data_bytes,
                    std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(dict_text.substr(0, 200));
    TensorFile file;
    file.metadata["untouched"] = "yes";
    expect_error(npy::read(file_of(dict_text, data_bytes), &file), parts);
    EXPECT_EQ(file.metadata.count("untouched"), 1u);
}

void expect_accepted(const std::string& dict_text, std::size_t data_bytes) {
    SCOPED_TRACE(dict_text);
    TensorFile file;
    expect_ok(npy::read(file_of(dict_text, data_bytes), &file));
}

TEST(Npy, ReadsWhatNumpyWrites) {
    for (const auto& [name, dtype] : kNumpyNames) expect_same(read_fixture(name), counting("", dtype, {2, 3}));
    expect_same(read_fixture("scalar"), counting("", DType::kF32, {}));
    expect_same(read_fixture("vector"), counting("", DType::kF32, {5}));
    expect_same(read_fixture("empty"), counting("", DType::kF32, {2, 0, 3}));
    expect_same(read_fixture("dims6"), counting("", DType::kF16, {1, 2, 1, 3, 1, 1}));
    expect_same(read_fixture("version2"), counting("", DType::kF32, {2, 3}));
    expect_same(read_fixture("version3"), counting("", DType::kF32, {2, 3}));
}

TEST(Npy, ConvertsFortranOrder) { expect_same(read_fixture("fortran"), counting("", DType::kI16, {2, 3, 4})); }

TEST(Npy, ConvertsFortranOrderOfEveryElementSize) {
    for (const auto& [descr, dtype] : {std::pair("'|u1'", DType::kU8), std::pair("'<i2'", DType::kI16),
                                       std::pair("'<i4'", DType::kI32), std::pair("'<i8'", DType::kI64)}) {
        const auto size = static_cast<std::size_t>(dtype_size(dtype));
        Bytes file = file_of(dict(descr, "(2, 3)", "True"), 6 * size);
        for (std::size_t i = 0; i < 6; ++i) file[file.size() - (6 - i) * size] = static_cast<std::byte>(i);
        TensorFile read;
        expect_ok(npy::read(file, &read));
        ASSERT_EQ(read.tensors.size(), 1u);
        std::vector<int> values;
        for (std::size_t i = 0; i < 6; ++i) values.push_back(std::to_integer<int>(read.tensors[0].bytes[i * size]));
        EXPECT_EQ(values, (std::vector<int>{0, 2, 4, 1, 3, 5}));
    }
    expect_accepted(dict("'<f4'", "(0, 3)", "True"), 0);
    expect_accepted(dict("'<f4'", "()", "True"), 4);
}

TEST(Npy, WritesTheSameBytesAsNumpy) {
    const auto expect_bytes = [](const std::string& name, const Tensor& tensor) {
        SCOPED_TRACE(name);
        TensorFile file;
        file.tensors.push_back(tensor);
        Bytes written;
        expect_ok(npy::write(file, &written));
        EXPECT_EQ(text_in(written), text_in(fixture("npy/" + name + ".npy")));
    };
    for (const auto& [name, dtype] : kNumpyNames) expect_bytes(name, counting("", dtype, {2, 3}));
    expect_bytes("scalar", counting("", DType::kF32, {}));
    expect_bytes("vector", counting("", DType::kF32, {5}));
    expect_bytes("empty", counting("", DType::kF32, {2, 0, 3}));
    expect_bytes("dims6", counting("", DType::kF16, {1, 2, 1, 3, 1, 1}));
}

TEST(Npy, RefusesDTypesWithoutAPlace) {
    TensorFile file;
    expect_error(npy::read(fixture("npy/big_endian.npy"), &file), {"'>f4'", "big-endian", "<f4"});
    expect_error(npy::read(fixture("npy/structured.npy"), &file), {"structured", "<f4"});
    expect_error(npy::read(fixture("npy/complex.npy"), &file), {"'<c8'", "allowed: <f4"});
    expect_refused(dict("'<V2'", "(1,)"), 2, {"'<V2'", "bf16", ".safetensors"});
    expect_refused(dict("'<u4'", "(1,)"), 4, {"'<u4'"});
    expect_refused(dict("'O'", "(1,)"), 8, {"'O'"});
}

TEST(Npy, WriterRefusesWhatNpyCannotHold) {
    Bytes written = bytes_of("untouched");
    TensorFile file;
    expect_error(npy::write(file, &written), {"0 tensors", "allowed: 1"});
    for (const DType dtype : {DType::kBF16, DType::kE4M3, DType::kE5M2}) {
        file.tensors = {counting("q", dtype, {2})};
        expect_error(npy::write(file, &written), {"'q'", dtype_name(dtype), "use .safetensors"});
    }
    file.tensors = {counting("q", DType::kF32, {2}), counting("k", DType::kF32, {2})};
    expect_error(npy::write(file, &written), {"2 tensors", "allowed: 1", ".npz"});
    file.tensors.pop_back();
    file.metadata["layout"] = "hnd";
    expect_error(npy::write(file, &written), {"metadata 'layout'", ".safetensors"});
    EXPECT_EQ(text_in(written), "untouched");
}

TEST(Npy, RefusesBadPrefixes) {
    TensorFile file;
    expect_error(npy::read({}, &file), {"magic"});
    expect_error(npy::read(bytes_of("\x93NUMPX\x01"), &file), {"magic"});
    expect_error(npy::read(bytes_of("\x93NUMPY\x01"), &file), {"7 bytes", "version", "truncated"});
    expect_error(npy::read(bytes_of(std::string("\x93NUMPY\x04\0\x10\0", 10)), &file),
                 {"version 4.0", "1.0, 2.0, 3.0"});
    expect_error(npy::read(bytes_of(std::string("\x93NUMPY\x01\x01\x10\0", 10)), &file), {"version 1.1"});
    expect_error(npy::read(bytes_of(std::string("\x93NUMPY\x00\0\x10\0", 10)), &file), {"version 0.0"});
    expect_error(npy::read(bytes_of(std::string("\x93NUMPY\x01\0\x10", 9)), &file), {"header length", "needs 10"});
    expect_error(npy::read(bytes_of(std::string("\x93NUMPY\x01\0\x10\0{", 11)), &file), {"header needs 26"});
    expect_error(npy::read(bytes_of(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{", 13)), &file),
                 {"4294967295", "limit"});
}

TEST(Npy, RefusesDictsThatAreNone) {
    expect_refused("", 0, {"its end", "'{'"});
    expect_refused("[]", 0, {"'['"});
    expect_refused("{}", 0, {"lacks the key 'descr'"});
    expect_refused("{'descr': '<f4', 'shape': (1,)}", 4, {"lacks the key 'fortran_order'"});
    expect_refused("{'descr': '<f4', 'fortran_order': False}", 4, {"lacks the key 'shape'"});
    expect_refused("{'descr': '<f4', 'descr': '<f4'}", 4, {"'descr' twice"});
    expect_refused("{'weird': 1}", 4, {"unknown key 'weird'", "descr, fortran_order, shape"});
    expect_refused("{descr: '<f4'}", 4, {"'d' at byte 1", "a string"});
    expect_refused("{'descr: ", 4, {"a string that ends"});
    expect_refused("{'descr' '<f4'}", 4, {"':'"});
    expect_refused("{'descr': '<f4' 'shape': (1,)}", 4, {"',' or '}'"});
    expect_refused(dict("1", "(1,)"), 4, {"a string"});
    expect_refused(dict("'<f4'", "(1,)", "false"), 4, {"True or False"});
    expect_refused(dict("'<f4'", "(1,)") + "junk", 4, {"'j'", "the end"});
    expect_refused(dict("'<f4'", "(1,)") + std::string("\0junk", 5), 4, {"'\\x00'", "the end"});
    expect_accepted("{\"shape\":(1,),'fortran_order':False,'descr':'<f4'}", 4);
}

TEST(Npy, RefusesShapesThatAreNone) {
    expect_refused(dict("'<f4'", "3"), 12, {"'('"});
    expect_refused(dict("'<f4'", "(3)"), 12, {"','"});
    expect_refused(dict("'<f4'", "(,)"), 12, {"a size"});
    expect_refused(dict("'<f4'", "(3,,)"), 12, {"a size"});
    expect_refused(dict("'<f4'", "(1.0,)"), 4, {"'.'"});
    expect_refused(dict("'<f4'", "(1, 2"), 4, {"npy dict"});
    expect_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1,", 4, {"its end"});
    expect_refused(dict("'<f4'", "(-1,)"), 4, {"negative"});
    expect_refused(dict("'<f4'", "(9223372036854775808,)"), 4, {"above 9223372036854775807"});
    expect_refused(dict("'<f4'", "(9223372036854775807,)"), 4, {"9223372036854775807", "needs more than"});
    expect_refused(dict("'|u1'", "(4294967296, 4294967296, 0)"), 0, {"needs more than"});
    std::string sizes;
    for (std::size_t i = 0; i < kMaxTensorDims; ++i) sizes += "1, ";
    expect_accepted(dict("'|u1'", "(" + sizes + ")"), 1);
    expect_refused(dict("'|u1'", "(" + sizes + "1)"), 1, {"65 dimensions", "0 to 64"});
    expect_accepted(dict("'<f4'", "(2L, 3L)"), 24);
}

TEST(Npy, RefusesDataOfTheWrongSize) {
    expect_refused(dict("'<f4'", "(2, 3)"), 23, {"23 data bytes", "shape [2, 3] of fp32 needs 24", "truncated"});
    expect_refused(dict("'<f4'", "(2, 3)"), 25, {"25 data bytes", "needs 24"});
    expect_refused(dict("'<f4'", "(1000000000000,)"), 4, {"needs 4000000000000"});
    Bytes file = file_of(dict("'|b1'", "(3,)"), 3);
    file.back() = std::byte{255};
    TensorFile read;
    expect_error(npy::read(file, &read), {"bool element 2 holds 255"});
}

}  // namespace
}  // namespace clary::io
