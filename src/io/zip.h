// SPDX-License-Identifier: Apache-2.0
// The part of the zip format that npz needs: entries stored or deflated, zip64 when reading. Definition: PKWARE
// APPNOTE.TXT 6.3. Split, encrypted and otherwise compressed archives are refused, and so are entries that overlap.
#pragma once

#include <span>

#include "io/tensor_file.h"

namespace clary::io::zip {

enum class Method : uint16_t { kStored = 0, kDeflate = 8 };

struct Entry {
    std::string name;  // valid UTF-8
    Method method = Method::kStored;
    uint32_t crc = 0;  // CRC-32 of the content
    uint64_t header_offset = 0;
    uint64_t data_offset = 0;
    uint64_t data_bytes = 0;     // as stored in the archive
    uint64_t content_bytes = 0;  // as declared; deflate cannot make more than 1032 times data_bytes
};

// The entries of an archive in the order of its directory. Every range lies inside the archive and they are disjoint.
Status read_directory(std::span<const std::byte> archive, std::vector<Entry>* out);

// The first `count` bytes (<= content_bytes) of an entry; when that is all of them, end of stream and CRC are checked.
Status extract(std::span<const std::byte> archive, const Entry& entry, std::size_t count, Bytes* out);

// Builds an archive below 4 GiB in memory. Dates are fixed, so equal content gives equal bytes.
class Writer {
  public:
    Status add(const std::string& name, std::span<const std::byte> content, Method method);
    Status finish(Bytes* out);  // ends the archive and moves it to *out

  private:
    Bytes archive_;
    Bytes directory_;
    std::size_t entry_count_ = 0;
};

}  // namespace clary::io::zip
