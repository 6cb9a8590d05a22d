// SPDX-License-Identifier: Apache-2.0
// load and save: format by extension, round trips through the disk, and nothing half written.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "io/checks.h"
#include "io_testing.h"

namespace clary::io {
namespace {

class InTemporaryFolder : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = std::filesystem::temp_directory_path() / "clary_io_test_XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string path(const std::string& name) const { return folder_ / name; }
    std::size_t file_count() const {
        return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
    }

  private:
    std::filesystem::path folder_;
};

TensorFile two_tensors() {
    TensorFile file;
    file.tensors = {counting("q", DType::kF32, {2, 3}), counting("k", DType::kF16, {1, 0, 3})};
    return file;
}

TEST_F(InTemporaryFolder, RoundTripsEveryFormat) {
    TensorFile file = two_tensors();
    TensorFile read;
    expect_ok(save(path("a.npz"), file));
    expect_ok(load(path("a.npz"), &read));
    expect_same(read, file);

    file.metadata["layout"] = "hnd";
    file.tensors.push_back(counting("b", DType::kBF16, {}));
    expect_ok(save(path("a.SafeTensors"), file));
    expect_ok(load(path("a.SafeTensors"), &read));
    expect_same(read, file);

    TensorFile one;
    one.tensors.push_back(counting("layer.0", DType::kI16, {3}));
    expect_ok(save(path("layer.0.npy"), one));
    expect_ok(load(path("layer.0.npy"), &read));
    expect_same(read, one);  // the name comes from the file
    EXPECT_EQ(file_count(), 3u);
}

TEST_F(InTemporaryFolder, EveryDTypeAndShapeRoundTrips) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {1}, {0}, {6}, {2, 3}, {2, 0, 3}, {1, 1, 2, 1, 3, 1}}) {
        for (const DType dtype : kAllDTypes) {
            SCOPED_TRACE(std::string(dtype_name(dtype)) + shape_text(shape));
            TensorFile file;
            file.tensors.push_back(counting("x", dtype, shape));
            const bool in_numpy =
                std::find(std::begin(kNumpyDTypes), std::end(kNumpyDTypes), dtype) != std::end(kNumpyDTypes);
            for (const std::string name : {"x.safetensors", "x.npy", "x.npz"}) {
                if (name != "x.safetensors" && !in_numpy) {
                    expect_error(save(path(name), file), {name, "'x'", dtype_name(dtype), "use .safetensors"});
                    continue;
                }
                TensorFile read;
                expect_ok(save(path(name), file));
                expect_ok(load(path(name), &read));
                expect_same(read, file);
            }
        }
    }
}

TEST_F(InTemporaryFolder, UnknownExtensionsNameTheAllowedOnes) {
    TensorFile file = two_tensors();
    expect_error(save(path("a.bin"), file), {"a.bin", "'.bin'", "allowed: .safetensors, .npy, .npz"});
    expect_error(load(path("a"), &file), {"unknown file extension ''", "allowed: .safetensors, .npy, .npz"});
    EXPECT_EQ(file_count(), 0u);
}

TEST_F(InTemporaryFolder, LoadNamesTheFileAndLeavesTheOutputAlone) {
    TensorFile file = two_tensors();
    expect_error(load(path("none.npz"), &file), {path("none.npz"), "cannot open", "No such file"});
    std::filesystem::create_directory(path("folder.npy"));
    expect_error(load(path("folder.npy"), &file), {"folder.npy", "not a regular file"});
    ASSERT_EQ(::mkfifo(path("pipe.npy").c_str(), 0600), 0);
    expect_error(load(path("pipe.npy"), &file), {"pipe.npy", "not a regular file"});
    std::ofstream(path("short.safetensors")) << "abc";
    expect_error(load(path("short.safetensors"), &file), {path("short.safetensors") + ": ", "3 bytes", "truncated"});
    std::ofstream(path("void.npy")) << "";
    expect_error(load(path("void.npy"), &file), {"void.npy", "magic"});
    expect_same(file, two_tensors());
}

TEST_F(InTemporaryFolder, SaveReplacesTheWholeFile) {
    TensorFile large;
    large.tensors.push_back(counting("x", DType::kI64, {1000}));
    expect_ok(save(path("x.npy"), large));
    TensorFile small;
    small.tensors.push_back(counting("x", DType::kI8, {2}));
    expect_ok(save(path("x.npy"), small));
    TensorFile read;
    expect_ok(load(path("x.npy"), &read));
    expect_same(read, small);
    EXPECT_EQ(file_count(), 1u);
}

TEST_F(InTemporaryFolder, FailedSavesLeaveNothingBehind) {
    TensorFile file = two_tensors();
    expect_error(save(path("none/x.npz"), file), {"none/x.npz", "cannot create"});
    std::filesystem::create_directory(path("folder.npz"));
    expect_error(save(path("folder.npz"), file), {"folder.npz", "cannot replace"});
    expect_ok(save(path("good.npz"), file));
    const Bytes before = read_whole(path("good.npz"));
    file.tensors[0].shape = {7};
    expect_error(save(path("good.npz"), file), {"good.npz", "'q'", "24 bytes", "needs 28"});
    EXPECT_TRUE(read_whole(path("good.npz")) == before);
    EXPECT_EQ(file_count(), 2u);
}

TEST_F(InTemporaryFolder, FixturesLoadByPath) {
    for (const std::string name : {"safetensors/all_dtypes.safetensors", "npz/deflate.npz", "npy/float16.npy"}) {
        TensorFile file;
        expect_ok(load(fixture_path(name), &file));
        EXPECT_FALSE(file.tensors.empty());
    }
}

TEST(MakeTensor, MakesZerosOrSaysWhyNot) {
    Tensor tensor;
    expect_ok(make_tensor("x", DType::kF64, {2, 3}, &tensor));
    EXPECT_EQ(tensor.element_count(), 6);
    EXPECT_EQ(tensor.as<double>().size(), 6u);
    for (const double value : tensor.as<double>()) EXPECT_EQ(value, 0.0);
    expect_error(make_tensor("y", DType::kF32, {2, -1}, &tensor), {"'y'", "[2, -1]", "-1", ">= 0"});
    expect_error(make_tensor("y", DType::kF32, {INT64_MAX, 2}, &tensor), {"'y'", "needs more than"});
    expect_error(make_tensor("y", DType::kNone, {2}, &tensor), {"'y'", "dtype 0"});
    EXPECT_EQ(tensor.name, "x");
}

TEST(Utf8, KnowsValidFromInvalid) {
    for (const char* valid :
         {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x99\x82", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
        EXPECT_TRUE(is_utf8(valid)) << quote(valid);
    }
    for (const char* invalid : {"\x80", "\xc3", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe2\x82", "\xed\xa0\x80",
                                "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xc3z"}) {
        EXPECT_FALSE(is_utf8(invalid)) << quote(invalid);
    }
}

}  // namespace
}  // namespace clary::io
