// SPDX-License-Identifier: Apache-2.0
// npz and the zip records under it: archives of Python's zipfile and numpy, and archives that lie about sizes.
#include "io/npz.h"

#include <algorithm>

#include "io/npy.h"
#include "io/zip.h"
#include "io_testing.h"

namespace clary::io {
namespace {

TensorFile expected_arrays() {
    TensorFile file;
    file.tensors = {counting("q", DType::kF32, {2, 3}), counting("mask", DType::kBool, {2, 2}),
                    counting("gr\xc3\xb6\xc3\x9f\x65", DType::kI64, {}), counting("empty", DType::kI8, {0})};
    return file;
}

TensorFile read_fixture(const std::string& name) {
    TensorFile file;
    expect_ok(npz::read(fixture("npz/" + name + ".npz"), &file));
    return file;
}

constexpr std::string_view kLocal = "PK\x03\x04";
constexpr std::string_view kCentral = "PK\x01\x02";
constexpr std::string_view kEnd = "PK\x05\x06";

// Overwrites a little-endian field `offset` bytes after the `nth` record with this signature.
template <class T>
void patch(Bytes* archive, std::string_view signature, std::size_t offset, T value, std::size_t nth = 0) {
    const std::string text = text_in(*archive);
    std::size_t at = text.find(signature);
    for (std::size_t i = 0; i < nth; ++i) at = text.find(signature, at + 1);
    ASSERT_NE(at, std::string::npos);
    std::memcpy(archive->data() + at + offset, &value, sizeof(value));
}

Bytes archive_of(const TensorFile& file, npz::Compression compression = npz::Compression::kNone) {
    Bytes archive;
    expect_ok(npz::write(file, &archive, compression));
    return archive;
}

void expect_refused(const Bytes& archive, std::initializer_list<std::string_view> parts) {
    TensorFile file;
    file.metadata["untouched"] = "yes";
    expect_error(npz::read(archive, &file), parts);
    EXPECT_EQ(file.metadata.count("untouched"), 1u);
}

TEST(Npz, ReadsWhatNumpyWrites) {
    expect_same(read_fixture("stored"), expected_arrays());
    expect_same(read_fixture("zip64"), expected_arrays());
    EXPECT_TRUE(read_fixture("none").tensors.empty());
    TensorFile with_zeros = expected_arrays();
    expect_ok(make_tensor("zeros", DType::kF32, {64, 64}, &with_zeros.tensors.emplace_back()));
    expect_same(read_fixture("deflate"), with_zeros);
    TensorFile one;
    one.tensors.push_back(counting("q", DType::kF32, {2, 3}));
    expect_same(read_fixture("streamed"), one);
}

TEST(Npz, RoundTripsEveryDTypeStoredAndDeflated) {
    TensorFile file;
    for (const DType dtype : kNumpyDTypes) {
        file.tensors.push_back(counting(dtype_name(dtype), dtype, {2, 3}));
        file.tensors.push_back(counting(std::string("scalar ") + dtype_name(dtype), dtype, {}));
        file.tensors.push_back(counting(std::string("empty.npy ") + dtype_name(dtype), dtype, {3, 0}));
    }
    file.tensors.push_back(counting("large", DType::kI32, {300, 200}));  // more than one header prefix
    for (const auto compression : {npz::Compression::kNone, npz::Compression::kDeflate}) {
        TensorFile read;
        expect_ok(npz::read(archive_of(file, compression), &read));
        expect_same(read, file);
    }
    EXPECT_LT(archive_of(file, npz::Compression::kDeflate).size(), archive_of(file).size());
}

TEST(Npz, WriterRefusesWhatNpzCannotHold) {
    Bytes written = bytes_of("untouched");
    TensorFile file;
    file.tensors = {counting("q", DType::kBF16, {2})};
    expect_error(npz::write(file, &written), {"'q'", "bf16", "use .safetensors"});
    file.tensors = {counting("q", DType::kF32, {2}), counting("q", DType::kF32, {2})};
    expect_error(npz::write(file, &written), {"'q'", "twice"});
    file.tensors = {counting("q\xff", DType::kF32, {2})};
    expect_error(npz::write(file, &written), {"UTF-8"});
    file.tensors = {counting(std::string(65536, 'q'), DType::kF32, {2})};
    expect_error(npz::write(file, &written), {"65540 bytes", "65535"});
    file.tensors.clear();
    file.metadata["layout"] = "hnd";
    expect_error(npz::write(file, &written), {"metadata 'layout'", ".safetensors"});
    EXPECT_EQ(text_in(written), "untouched");
}

TEST(Npz, RefusesWhatIsNoArchive) {
    expect_refused({}, {"no zip directory"});
    expect_refused(bytes_of("PK"), {"no zip directory", "truncated"});
    expect_refused(fixture("npy/vector.npy"), {"no zip directory"});
    expect_refused(fixture("npz/bzip2.npz"), {"tensor 'q.npy'", "method 12", "0 stored, 8 deflate"});
}

TEST(Npz, RefusesEntriesThatAreNoArrays) {
    zip::Writer writer;
    Bytes archive;
    expect_ok(writer.add("readme.txt", bytes_of("hello"), zip::Method::kStored));
    expect_ok(writer.finish(&archive));
    expect_refused(archive, {"'readme.txt'", ".npy"});
    expect_ok(writer.add("q.npy", bytes_of("hello"), zip::Method::kStored));
    expect_ok(writer.finish(&archive));
    expect_refused(archive, {"'q'", "magic"});
}

TEST(Npz, RefusesTheSameNameTwice) {
    zip::Writer writer;
    Bytes array;
    Bytes archive;
    expect_ok(npy::write_array(counting("", DType::kU8, {1}), &array));
    expect_ok(writer.add("q.npy", array, zip::Method::kStored));
    expect_ok(writer.add("q.npy", array, zip::Method::kStored));
    expect_ok(writer.finish(&archive));
    expect_refused(archive, {"'q'", "twice"});
}

class NpzPatched : public testing::Test {
  protected:
    Bytes stored = archive_of(expected_arrays());
    Bytes deflated = archive_of(expected_arrays(), npz::Compression::kDeflate);
};

TEST_F(NpzPatched, RefusesEncryptedAndSplitArchives) {
    Bytes archive = stored;
    patch<uint16_t>(&archive, kCentral, 8, 0x801);
    expect_refused(archive, {"'q.npy'", "encrypted"});
    archive = stored;
    patch<uint16_t>(&archive, kLocal, 6, 0x801);
    expect_refused(archive, {"'q.npy'", "encrypted"});
    archive = stored;
    patch<uint16_t>(&archive, kEnd, 4, 1);
    expect_refused(archive, {"split"});
    archive = stored;
    patch<uint16_t>(&archive, kCentral, 34, 1);
    expect_refused(archive, {"another disk"});
}

TEST_F(NpzPatched, RefusesAWrongCrc) {
    for (Bytes archive : {stored, deflated}) {
        patch<uint32_t>(&archive, kCentral, 16, 0x12345678);
        expect_refused(archive, {"'q'", "CRC", "12345678"});
    }
    Bytes archive = stored;
    const std::string text = text_in(archive);
    archive[text.find(kLocal, 1) - 1] ^= std::byte{1};  // the last byte of q
    expect_refused(archive, {"'q'", "CRC"});
}

TEST_F(NpzPatched, RefusesSizesThatLie) {
    Bytes archive = stored;
    patch<uint32_t>(&archive, kCentral, 24, 1000);
    expect_refused(archive, {"'q.npy'", "declared size 1000", "152 stored"});
    archive = stored;
    patch<uint32_t>(&archive, kCentral, 20, 100'000);
    expect_refused(archive, {"'q.npy'", "100000 bytes end after"});
    archive = stored;
    patch<uint32_t>(&archive, kCentral, 20, 151);
    patch<uint32_t>(&archive, kCentral, 24, 151);
    expect_refused(archive, {"'q'", "CRC"});
    archive = stored;
    patch<uint32_t>(&archive, kCentral, 20, 0xffffffff);
    expect_refused(archive, {"'q.npy'", "zip64 sizes are missing"});
    archive = deflated;
    patch<uint32_t>(&archive, kCentral, 24, 153);
    expect_refused(archive, {"'q'", "deflate stream is corrupt"});
    archive = deflated;
    patch<uint32_t>(&archive, kCentral, 24, 151);
    expect_refused(archive, {"'q'", "deflate stream is corrupt"});
    archive = deflated;
    patch<uint32_t>(&archive, kCentral, 24, 0xfffffffe);
    expect_refused(archive, {"'q.npy'", "declared size 4294967294 cannot come from"});
}

TEST_F(NpzPatched, RefusesDirectoriesThatLie) {
    Bytes archive = stored;
    patch<uint16_t>(&archive, kEnd, 10, 3);
    expect_refused(archive, {"4 records", "says 3"});
    archive = stored;
    patch<uint16_t>(&archive, kEnd, 10, 0xffff);
    expect_refused(archive, {"zip64", "locator"});
    archive = stored;
    patch<uint32_t>(&archive, kEnd, 16, 0xfffffff0);
    expect_refused(archive, {"offset 4294967280"});
    archive = stored;
    patch<uint32_t>(&archive, kEnd, 16, 0);
    expect_refused(archive, {"does not end at"});
    archive = stored;
    patch<uint16_t>(&archive, kEnd, 20, 1);
    expect_refused(archive, {"no zip directory"});
    archive = stored;
    patch<uint16_t>(&archive, kCentral, 28, 0xffff);
    expect_refused(archive, {"ends within its record 0"});
    archive = stored;
    patch<uint8_t>(&archive, kCentral, 2, 9, 1);
    expect_refused(archive, {"no valid record 1"});
    archive = stored;
    patch<uint32_t>(&archive, kCentral, 42, 1);
    expect_refused(archive, {"'q.npy'", "no local header at its offset 1"});
    archive = stored;
    patch<uint8_t>(&archive, kLocal, 30, 'x');
    expect_refused(archive, {"'q.npy'", "differ in name or method"});
    archive = stored;
    patch<uint16_t>(&archive, kLocal, 28, 0xffff);
    expect_refused(archive, {"'q.npy'", "differ in name or method"});
    archive = stored;
    patch<uint8_t>(&archive, kLocal, 30, 0xff);
    patch<uint8_t>(&archive, kCentral, 46, 0xff);
    expect_refused(archive, {"'\\xff.npy'", "UTF-8"});
}

TEST_F(NpzPatched, RefusesZip64RecordsThatLie) {
    constexpr std::string_view kLocator64 = "PK\x06\x07";
    constexpr std::string_view kEnd64 = "PK\x06\x06";
    const Bytes zip64 = fixture("npz/zip64.npz");
    Bytes archive = zip64;
    patch<uint64_t>(&archive, kLocator64, 8, ~uint64_t{0});
    expect_refused(archive, {"offset 18446744073709551615"});
    archive = zip64;
    patch<uint64_t>(&archive, kEnd64, 48, ~uint64_t{0});
    expect_refused(archive, {"does not end at"});
    archive = zip64;
    patch<uint64_t>(&archive, kEnd64, 32, 5);
    expect_refused(archive, {"4 records", "says 5"});
    // Extra field of the first record: content and archived size after name "q.npy", header id and length.
    archive = zip64;
    patch<uint64_t>(&archive, kCentral, 46 + 5 + 4 + 8, ~uint64_t{0});
    expect_refused(archive, {"'q.npy'", "18446744073709551615 bytes end after"});
    archive = zip64;
    patch<uint64_t>(&archive, kCentral, 46 + 5 + 4, ~uint64_t{0});
    expect_refused(archive, {"'q.npy'", "declared size 18446744073709551615"});
    archive = zip64;
    patch<uint16_t>(&archive, kCentral, 46 + 5 + 2, 8);
    expect_refused(archive, {"'q.npy'", "zip64 sizes are missing"});
    archive = zip64;
    patch<uint64_t>(&archive, kCentral, 46 + 8 + 4 + 16, ~uint64_t{0}, 1);
    expect_refused(archive, {"'mask.npy'", "no local header at its offset 18446744073709551615"});
}

// Records of the directory that share one local entry would unpack it once each.
TEST(Npz, RefusesEntriesThatOverlap) {
    TensorFile file;
    file.tensors = {counting("a", DType::kF32, {8}), counting("a2", DType::kF32, {8})};
    Bytes archive = archive_of(file);
    const std::string text = text_in(archive);
    const std::size_t first = text.find(kCentral);
    const std::size_t second = text.find(kCentral, first + 1);
    std::string twice = text.substr(0, second) + text.substr(first, second - first) + text.substr(text.find(kEnd));
    archive = bytes_of(twice);
    patch<uint32_t>(&archive, kEnd, 12, static_cast<uint32_t>(2 * (second - first)));
    expect_refused(archive, {"'a.npy'", "overlaps"});
}

TEST(Npz, RefusesAnArrayThatClaimsMoreThanItsStreamHolds) {
    // The npy header and the directory agree on 1 MB of zeros, but the stream stops early.
    TensorFile file;
    expect_ok(make_tensor("q", DType::kU8, {1'000'000}, &file.tensors.emplace_back()));
    Bytes whole;
    expect_ok(npy::write_array(file.tensors[0], &whole));
    zip::Writer writer;
    Bytes archive;
    expect_ok(writer.add("q.npy", std::span(whole).first(600'000), zip::Method::kDeflate));
    expect_ok(writer.finish(&archive));
    expect_refused(archive, {"'q'", "declared size 600000", "128 + 1000000"});
    patch<uint32_t>(&archive, kCentral, 24, 1'000'128);
    expect_refused(archive, {"'q.npy'", "declared size 1000128 cannot come from"});
}

TEST(Npz, ReadsTheStrongestCompressionThatDeflateAllows) {
    TensorFile file;
    expect_ok(make_tensor("q", DType::kU8, {8'000'000}, &file.tensors.emplace_back()));
    TensorFile read;
    expect_ok(npz::read(archive_of(file, npz::Compression::kDeflate), &read));
    expect_same(read, file);
}

}  // namespace
}  // namespace clary::io
