// SPDX-License-Identifier: Apache-2.0
// safetensors: content and bytes as the format's own writer makes them, and every lie that a header can tell.
#include "io/safetensors.h"

#include "io_testing.h"

namespace clary::io {
namespace {

// A file from its JSON header and `data_bytes` bytes of 0.
Bytes file_of(const std::string& header, std::size_t data_bytes) {
    const uint64_t length = header.size();
    Bytes file(sizeof(length) + header.size() + data_bytes);
    std::memset(file.data(), 0, file.size());
    std::memcpy(file.data(), &length, sizeof(length));
    std::memcpy(file.data() + sizeof(length), header.data(), header.size());
    return file;
}

void expect_refused(const std::string& header, std::size_t data_bytes, std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(header.substr(0, 200));
    TensorFile file;
    file.metadata["untouched"] = "yes";
    expect_error(safetensors::read(file_of(header, data_bytes), &file), parts);
    EXPECT_EQ(file.metadata.count("untouched"), 1u);
}

void expect_accepted(const std::string& header, std::size_t data_bytes) {
    SCOPED_TRACE(header);
    TensorFile file;
    expect_ok(safetensors::read(file_of(header, data_bytes), &file));
}

// {"x": {...}} with the given fields.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"x\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
}

TensorFile expected_all_dtypes() {
    TensorFile file;
    const char* const names[] = {"float32", "float16", "bfloat16", "float64", "int8",          "uint8",
                                 "int16",   "int32",   "int64",    "bool",    "float8_e4m3fn", "float8_e5m2"};
    for (std::size_t i = 0; i < std::size(kAllDTypes); ++i) {
        file.tensors.push_back(counting(names[i], kAllDTypes[i], {2, 3}));
    }
    file.tensors.push_back(counting("scalar", DType::kF32, {}));
    file.tensors.push_back(counting("empty", DType::kF16, {2, 0, 3}));
    file.tensors.push_back(counting("layer.0 \"q\" \xc3\xa9", DType::kF32, {4}));
    file.metadata["layout"] = "hnd\n\"\xc3\xa9\"";
    return file;
}

TEST(Safetensors, ReadsWhatTheFormatsOwnWriterMakes) {
    TensorFile file;
    expect_ok(safetensors::read(fixture("safetensors/all_dtypes.safetensors"), &file));
    expect_same(file, expected_all_dtypes());
    expect_ok(safetensors::read(fixture("safetensors/none.safetensors"), &file));
    EXPECT_TRUE(file.tensors.empty());
}

TEST(Safetensors, WritesTheSameBytesAsTheFormatsOwnWriter) {
    Bytes written;
    expect_ok(safetensors::write(expected_all_dtypes(), &written));
    EXPECT_EQ(text_in(written), text_in(fixture("safetensors/all_dtypes.safetensors")));
    TensorFile one;
    one.tensors.push_back(counting("x", DType::kF32, {4}));
    expect_ok(safetensors::write(one, &written));
    EXPECT_EQ(text_in(written), text_in(fixture("safetensors/one.safetensors")));
    expect_ok(safetensors::write(TensorFile(), &written));
    EXPECT_EQ(text_in(written), text_in(fixture("safetensors/none.safetensors")));
}

TEST(Safetensors, DataIsAlignedInFileAndMemory) {
    Bytes written;
    expect_ok(safetensors::write(expected_all_dtypes(), &written));
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, written.data(), sizeof(header_bytes));
    EXPECT_EQ(header_bytes % 8, 0u);
    TensorFile file;
    expect_ok(safetensors::read(written, &file));
    for (const Tensor& tensor : file.tensors) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) % kAlignment, 0u) << tensor.name;
    }
}

TEST(Safetensors, RefusesFilesThatAreTooShortForTheirHeader) {
    TensorFile file;
    expect_error(safetensors::read({}, &file), {"0 bytes", "truncated"});
    expect_error(safetensors::read(bytes_of("1234567"), &file), {"7 bytes", "truncated"});
    expect_error(safetensors::read(bytes_of(std::string("\x10\0\0\0\0\0\0\0{}", 10)), &file),
                 {"header length 16", "2 bytes", "truncated"});
    expect_error(safetensors::read(bytes_of("\xff\xff\xff\xff\xff\xff\xff\xff{}"), &file),
                 {"18446744073709551615", "limit", "100000000"});
    expect_error(safetensors::read(bytes_of(std::string("\0\0\0\0\0\0\0\0", 8)), &file), {"does not start with '{'"});
}

TEST(Safetensors, RefusesHeadersThatAreNotJson) {
    expect_refused("[]", 0, {"does not start with '{'"});
    expect_refused(" {}", 0, {"does not start with '{'"});
    expect_refused("{", 0, {"JSON"});
    expect_refused("{}}", 0, {"JSON at byte 3"});
    expect_refused("{\"a\xff\":{}}", 0, {"UTF-8"});
    expect_refused("{\"a\\ud800\":{}}", 0, {"JSON"});
    expect_refused(std::string("{}\0{", 4), 0, {"NUL at byte 2"});
    expect_refused(std::string("{\"\0\":{}}", 8), 0, {"NUL at byte 2"});
    expect_refused("{/**/}", 0, {"JSON"});
    expect_refused("{\"x\":NaN}", 0, {"JSON"});
    expect_refused(entry("\"F32\"", "[1e999]", "[0,4]"), 4, {"JSON"});
    expect_accepted("{}   ", 0);
    expect_accepted("{ \"x\" : {\"shape\":[],\n \"data_offsets\":[0,4],\"dtype\":\"F32\"} }", 4);
}

TEST(Safetensors, RefusesNestingBombs) {
    const std::string opened(1'000'000, '[');
    expect_refused("{\"x\":" + opened, 0, {"'x'", "a list", "allowed: an object"});
    expect_refused(entry("\"F32\"", opened, "[0,4]"), 4, {"'shape' holds a list"});
    std::string objects = "{";
    for (int i = 0; i < 200'000; ++i) objects += "\"x\":{";
    expect_refused(objects, 0, {"'x'", "unknown field 'x'"});
    expect_refused("{\"__metadata__\":{\"a\":{\"b\":1}}}", 0, {"__metadata__", "'a'", "allowed: strings"});
}

TEST(Safetensors, RefusesWrongStructure) {
    expect_refused("{\"x\":1}", 0, {"'x'", "the value is 1", "an object"});
    expect_refused("{\"x\":null}", 0, {"'x'", "null"});
    expect_refused("{\"x\":\"y\"}", 0, {"'x'", "the string 'y'"});
    expect_refused("{\"__metadata__\":[]}", 0, {"__metadata__", "an object"});
    expect_refused("{\"__metadata__\":{\"a\":1}}", 0, {"__metadata__", "'a' is 1", "allowed: strings"});
    expect_refused("{\"x\":{}}", 0, {"'x'", "'dtype' is missing"});
    expect_refused("{\"x\":{\"dtype\":\"F32\"}}", 0, {"'x'", "'shape' is missing"});
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, {"'x'", "'data_offsets' is missing"});
    expect_refused("{\"x\":{\"strides\":[1]}}", 0, {"'x'", "unknown field 'strides'", "dtype, shape, data_offsets"});
    expect_refused(entry("1", "[1]", "[0,4]"), 4, {"'dtype' is 1", "a string"});
    expect_refused(entry("[1]", "[1]", "[0,4]"), 4, {"'dtype' is a list", "a string"});
    expect_refused(entry("\"F32\"", "1", "[0,4]"), 4, {"'shape' is 1", "a list of integers"});
    expect_refused(entry("\"F32\"", "\"1\"", "[0,4]"), 4, {"'shape' is the string '1'"});
    expect_refused(entry("\"F32\"", "[1.5]", "[0,4]"), 4, {"'shape' holds '1.5'", "integers"});
    expect_refused(entry("\"F32\"", "[true]", "[0,4]"), 4, {"'shape' holds true"});
    expect_refused(entry("\"F32\"", "[\"1\"]", "[0,4]"), 4, {"'shape' holds the string '1'"});
    expect_refused(entry("\"F32\"", "[1]", "[0]"), 4, {"'data_offsets' has 1 values", "allowed: 2"});
    expect_refused(entry("\"F32\"", "[1]", "[0,4,8]"), 4, {"'data_offsets' has 3 values"});
    expect_refused(entry("\"F32\"", "[1]", "[]"), 4, {"'data_offsets' has 0 values"});
}

TEST(Safetensors, RefusesNamesThatOccurTwice) {
    const std::string x = "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
    const std::string y = "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}";
    expect_refused("{" + x + "," + y + "}", 2, {"'x' occurs twice"});
    expect_refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, {"'__metadata__' occurs twice"});
    expect_refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, {"__metadata__", "'a' occurs twice"});
    for (const char* field : {"\"dtype\":\"F32\"", "\"shape\":[]", "\"data_offsets\":[0,4]"}) {
        expect_refused(std::string("{\"x\":{") + field + "," + field + "}}", 4, {"'x'", "occurs twice"});
    }
}

TEST(Safetensors, RefusesUnknownDTypes) {
    expect_refused(entry("\"U32\"", "[1]", "[0,4]"), 4, {"'x'", "dtype 'U32'", "F8_E4M3", "BOOL"});
    expect_refused(entry("\"f32\"", "[1]", "[0,4]"), 4, {"dtype 'f32'"});
    expect_refused(entry("\"F32\\n\"", "[1]", "[0,4]"), 4, {"dtype 'F32\\x0a'"});
    expect_refused(entry("\"" + std::string(5000, 'F') + "\"", "[1]", "[0,4]"), 4, {"FFF...'"});
}

TEST(Safetensors, RefusesImpossibleShapes) {
    expect_refused(entry("\"F32\"", "[-1]", "[0,4]"), 4, {"'shape' holds -1"});
    expect_refused(entry("\"F32\"", "[9223372036854775808]", "[0,4]"), 4, {"9223372036854775808"});
    expect_refused(entry("\"F32\"", "[18446744073709551617]", "[0,4]"), 4, {"'shape' holds '18446744073709551617'"});
    expect_refused(entry("\"F32\"", "[4611686018427387905]", "[0,4]"), 4, {"4611686018427387905", "needs more than"});
    expect_refused(entry("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, {"needs more than"});
    expect_refused(entry("\"U8\"", "[0,4294967296,4294967296]", "[0,0]"), 0, {"needs more than"});
    std::string sizes = "1";
    for (std::size_t i = 1; i < kMaxTensorDims; ++i) sizes += ",1";
    expect_accepted(entry("\"U8\"", "[" + sizes + "]", "[0,1]"), 1);
    expect_refused(entry("\"U8\"", "[" + sizes + ",1]", "[0,1]"), 1, {"'shape' has more than 64"});
}

TEST(Safetensors, RefusesOffsetsThatDoNotFit) {
    TensorFile file;
    expect_error(safetensors::read(file_of(entry("\"F32\"", "[2,1024,1024]", "[0,8388608]"), 1048576), &file),
                 {"tensor 'x': data_offsets [0, 8388608] end after the file's 1048576 data bytes (truncated file?)"});
    expect_refused(entry("\"F32\"", "[1]", "[4,0]"), 4, {"data_offsets [4, 0] end before they begin"});
    expect_refused(entry("\"F32\"", "[2]", "[0,4]"), 4, {"[0, 4] hold 4 bytes", "shape [2] of F32 needs 8"});
    expect_refused(entry("\"F32\"", "[1]", "[0,8]"), 8, {"hold 8 bytes", "needs 4"});
    expect_refused(entry("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]"), 8, {"end after the file's 8"});
    expect_refused(entry("\"F32\"", "[1]", "[4,8]"), 8, {"'x'", "leave a gap", "begin at 0"});
    expect_refused(entry("\"F32\"", "[1]", "[0,4]"), 5, {"5 data bytes", "cover 4"});
    expect_refused("{}", 1, {"1 data bytes", "cover 0"});
    const auto pair = [](const std::string& a, const std::string& b) {
        return "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + a +
               "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + b + "}}";
    };
    expect_refused(pair("[0,4]", "[0,4]"), 4, {"'b'", "overlap"});
    expect_refused(pair("[2,6]", "[0,4]"), 6, {"'a'", "overlap", "begin at 4"});
    expect_refused(pair("[0,4]", "[5,9]"), 9, {"'b'", "gap"});
    expect_accepted(pair("[4,8]", "[0,4]"), 8);
}

TEST(Safetensors, RefusesBoolsOtherThanZeroAndOne) {
    Bytes file = file_of(entry("\"BOOL\"", "[3]", "[0,3]"), 3);
    file.back() = std::byte{2};
    TensorFile read;
    expect_error(safetensors::read(file, &read), {"'x'", "bool element 2 holds 2", "allowed: 0, 1"});
}

TEST(Safetensors, WriterRefusesWhatItCouldNotReadBack) {
    Bytes written = bytes_of("untouched");
    const auto refuse = [&](const Tensor& tensor, std::initializer_list<std::string_view> parts) {
        TensorFile file;
        file.tensors.push_back(tensor);
        expect_error(safetensors::write(file, &written), parts);
    };
    refuse(counting("__metadata__", DType::kU8, {1}), {"__metadata__"});
    refuse(counting("a\xff", DType::kU8, {1}), {"'a\\xff'", "UTF-8"});
    Tensor wrong = counting("x", DType::kF32, {3});
    wrong.shape = {4};
    refuse(wrong, {"'x'", "12 bytes", "needs 16"});
    wrong.shape = {-3, -1};
    refuse(wrong, {"-3", "allowed: >= 0"});
    wrong.dtype = DType::kNone;
    refuse(wrong, {"dtype 0"});
    TensorFile file;
    file.tensors = {counting("x", DType::kU8, {1}), counting("x", DType::kU8, {1})};
    expect_error(safetensors::write(file, &written), {"'x'", "twice"});
    file.tensors.clear();
    file.metadata["k\xc0\x80"] = "";
    expect_error(safetensors::write(file, &written), {"__metadata__", "UTF-8"});
    EXPECT_EQ(text_in(written), "untouched");
}

}  // namespace
}  // namespace clary::io
