// SPDX-License-Identifier: Apache-2.0
// Damaged files: every truncation is refused, and random damage never crashes a reader (run under sanitizers) nor makes
// it accept something that it could not write.
#include <random>

#include "io/npy.h"
#include "io/npz.h"
#include "io/safetensors.h"
#include "io_testing.h"

namespace clary::io {
namespace {

using Reader = Status (*)(std::span<const std::byte>, TensorFile*);

struct Case {
    const char* fixture;
    Reader read;
};
constexpr Case kCases[] = {
    {"safetensors/all_dtypes.safetensors", safetensors::read},
    {"safetensors/one.safetensors", safetensors::read},
    {"npy/float32.npy", npy::read},
    {"npy/fortran.npy", npy::read},
    {"npy/version2.npy", npy::read},
    {"npy/version3.npy", npy::read},
    {"npy/bool.npy", npy::read},
    {"npz/stored.npz", npz::read},
    {"npz/deflate.npz", npz::read},
    {"npz/zip64.npz", npz::read},
    {"npz/streamed.npz", npz::read},
};

class Damaged : public testing::TestWithParam<Case> {
  protected:
    // An exact copy on the heap, so that AddressSanitizer sees a read past the end.
    Status read(std::span<const std::byte> bytes, TensorFile* out) {
        const Bytes copy(bytes.begin(), bytes.end());
        return GetParam().read(copy, out);
    }
    Bytes original = fixture(GetParam().fixture);
    std::mt19937 random{20240607};
};

TEST_P(Damaged, EveryTruncationIsRefused) {
    for (std::size_t size = 0; size < original.size(); ++size) {
        TensorFile file;
        const Status status = read(std::span(original).first(size), &file);
        ASSERT_FALSE(status.is_ok()) << "accepted the first " << size << " of " << original.size() << " bytes";
        expect_error(status, {});
        EXPECT_TRUE(file.tensors.empty());
    }
    TensorFile file;
    expect_ok(read(original, &file));
}

TEST_P(Damaged, TrailingBytesAreRefused) {
    for (const char value : {'\0', ' ', 'P', '\xff'}) {
        Bytes longer = original;
        longer.push_back(static_cast<std::byte>(value));
        TensorFile file;
        expect_error(read(longer, &file), {});
    }
}

TEST_P(Damaged, RandomDamageNeverCrashes) {
    constexpr uint8_t kTelling[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '-', '9', '"', '{', '['};
    int refused = 0;
    constexpr int kRounds = 3000;
    for (int round = 0; round < kRounds; ++round) {
        Bytes bytes = original;
        for (uint32_t i = 0; i <= random() % 3; ++i) {
            const std::size_t at = random() % bytes.size();
            switch (random() % 4) {
                case 0:
                    bytes[at] ^= static_cast<std::byte>(1u << random() % 8);
                    break;
                case 1:
                    bytes[at] = static_cast<std::byte>(kTelling[random() % std::size(kTelling)]);
                    break;
                case 2:
                    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
                    break;
                default:
                    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::byte>(random()));
            }
        }
        TensorFile file;
        const Status status = read(bytes, &file);
        if (status.is_ok()) {
            Bytes written;
            expect_ok(safetensors::write(file, &written));  // holds every tensor that a reader may accept
        } else {
            ++refused;
            expect_error(status, {});
            EXPECT_TRUE(file.tensors.empty());
        }
    }
    EXPECT_GT(refused, kRounds / 4);  // the damage reaches what is checked
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Damaged, testing::ValuesIn(kCases), [](const auto& test) {
    std::string name = test.param.fixture;
    for (char& c : name) {
        if (c == '/' || c == '.') c = '_';
    }
    return name;
});

}  // namespace
}  // namespace clary::io
