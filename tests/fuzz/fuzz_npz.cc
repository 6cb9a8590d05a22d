// SPDX-License-Identifier: Apache-2.0
// Fuzzes the npz reader; what it accepts must survive a round trip, stored and deflated. Random damage to an array is
// caught by its CRC, so half of the mutants get their CRCs mended: they reach the code behind that check.
#include "io/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "io/zip.h"
#include "round_trip.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

// Sets the CRC of every stored entry in the directory to what its data gives.
void mend_crcs(std::span<uint8_t> archive) {
    using namespace clary::io;
    std::vector<zip::Entry> entries;
    if (!zip::read_directory(std::as_bytes(archive), &entries).is_ok()) return;
    constexpr uint8_t kCentralSignature[] = {'P', 'K', 1, 2};
    constexpr std::ptrdiff_t kCrcOffset = 16;
    for (const zip::Entry& entry : entries) {
        if (entry.method != zip::Method::kStored) continue;
        const auto crc = static_cast<uint32_t>(crc32_z(0, archive.data() + entry.data_offset, entry.data_bytes));
        auto at = archive.begin();
        while ((at = std::search(at, archive.end(), std::begin(kCentralSignature), std::end(kCentralSignature))) !=
               archive.end()) {
            if (archive.end() - at < kCrcOffset + 4) break;
            if (std::memcmp(&at[kCrcOffset], &entry.crc, sizeof(crc)) == 0) {
                std::memcpy(&at[kCrcOffset], &crc, sizeof(crc));
                break;
            }
            ++at;
        }
    }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
    const size_t new_size = LLVMFuzzerMutate(data, size, max_size);
    if (std::minstd_rand random(seed); random() % 2 == 0) mend_crcs({data, new_size});
    return new_size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace clary::io;
    for (const auto compression : {npz::Compression::kNone, npz::Compression::kDeflate}) {
        check_round_trip(std::as_bytes(std::span(data, size)), npz::read,
                         [&](const TensorFile& file, Bytes* out) { return npz::write(file, out, compression); });
    }
    return 0;
}
