// SPDX-License-Identifier: Apache-2.0
#include "io/zip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "io/checks.h"

namespace clary::io::zip {
namespace {

// Records: signature, fixed size in bytes, and the offsets of the fields that are used (APPNOTE 4.3.7 to 4.3.16).
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr std::size_t kLocalBytes = 30;  // flags 6, method 8, name length 26, extra length 28
constexpr uint32_t kCentralSignature = 0x02014b50;
// flags 8, method 10, crc 16, data bytes 20, content bytes 24, name 28, extra 30, comment 32, disk 34, local header 42
constexpr std::size_t kCentralBytes = 46;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr std::size_t kEndBytes = 22;  // disks 4 and 6, entries 8 and 10, directory bytes 12, offset 16, comment 20
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr std::size_t kLocator64Bytes = 20;  // end record's disk 4, offset 8, disks 16
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr std::size_t kEnd64Bytes = 56;  // size of the rest 4, disks 16 and 20, entries 24 and 32, bytes 40, offset 48
constexpr uint16_t kZip64Extra = 0x0001;

constexpr uint16_t kMax16 = std::numeric_limits<uint16_t>::max();
constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();

constexpr uint16_t kFlagEncrypted = 1u << 0;
constexpr uint16_t kFlagStrongEncryption = 1u << 6;
constexpr uint16_t kFlagUtf8 = 1u << 11;
constexpr uint16_t kFlagMaskedHeaders = 1u << 13;

// A deflate match makes at most 258 bytes and takes at least 2 bits.
constexpr uint64_t kMaxDeflateRatio = 1032;

struct Directory {
    uint64_t entry_count = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t end = 0;  // where it must end: the offset of the first end record
};

bool has_record(std::span<const std::byte> archive, uint64_t offset, std::size_t bytes, uint32_t signature) {
    return offset <= archive.size() && bytes <= archive.size() - offset &&
           load_le<uint32_t>(archive, offset) == signature;
}

// The end record is the last thing in the file but for its own comment of at most 64 KiB.
Status find_end(std::span<const std::byte> archive, uint64_t* out) {
    for (std::size_t comment = 0; comment <= kMax16 && comment + kEndBytes <= archive.size(); ++comment) {
        const std::size_t offset = archive.size() - kEndBytes - comment;
        if (has_record(archive, offset, kEndBytes, kEndSignature) &&
            load_le<uint16_t>(archive, offset + 20) == comment) {
            *out = offset;
            return Status::ok();
        }
    }
    return invalid_argument("no zip directory at the end of the file (no .npz file, or truncated?)");
}

Status find_directory(std::span<const std::byte> archive, Directory* out) {
    uint64_t end = 0;
    CLARY_RETURN_IF_ERROR(find_end(archive, &end));
    Status split_archive = invalid_argument("zip archive is split over several files (allowed: one)");
    if (load_le<uint16_t>(archive, end + 4) != 0 || load_le<uint16_t>(archive, end + 6) != 0) return split_archive;
    *out = {.entry_count = load_le<uint16_t>(archive, end + 10),
            .offset = load_le<uint32_t>(archive, end + 16),
            .bytes = load_le<uint32_t>(archive, end + 12),
            .end = end};
    if (end < kLocator64Bytes || !has_record(archive, end - kLocator64Bytes, kLocator64Bytes, kLocator64Signature)) {
        const bool needs_zip64 = out->entry_count == kMax16 || out->offset == kMax32 || out->bytes == kMax32;
        return needs_zip64 ? invalid_argument("zip64 directory has no locator record") : Status::ok();
    }
    // A zip64 end record stands before the plain one and replaces it.
    const auto end64 = load_le<uint64_t>(archive, end - kLocator64Bytes + 8);
    if (!has_record(archive, end64, kEnd64Bytes, kEnd64Signature)) {
        return invalid_argument(fmt::format("zip64 locator points to offset {}, where no end record is", end64));
    }
    if (load_le<uint32_t>(archive, end64 + 16) != 0 || load_le<uint32_t>(archive, end64 + 20) != 0)
        return split_archive;
    *out = {.entry_count = load_le<uint64_t>(archive, end64 + 32),
            .offset = load_le<uint64_t>(archive, end64 + 48),
            .bytes = load_le<uint64_t>(archive, end64 + 40),
            .end = end64};
    return Status::ok();
}

// Replaces the fields that are at their 32-bit maximum by the values of the zip64 extra field, which come in this
// order.
Status apply_zip64_extra(std::span<const std::byte> extra, std::initializer_list<uint64_t*> fields) {
    const auto wanted = std::count_if(fields.begin(), fields.end(), [](uint64_t* field) { return *field == kMax32; });
    if (wanted == 0) return Status::ok();
    for (std::size_t at = 0; at + 4 <= extra.size();) {
        const auto id = load_le<uint16_t>(extra, at);
        const std::size_t size = load_le<uint16_t>(extra, at + 2);
        at += 4;
        if (size > extra.size() - at) break;
        if (id == kZip64Extra) {
            if (size < static_cast<std::size_t>(wanted) * sizeof(uint64_t)) break;
            for (uint64_t* field : fields) {
                if (*field != kMax32) continue;
                *field = load_le<uint64_t>(extra, at);
                at += sizeof(uint64_t);
            }
            return Status::ok();
        }
        at += size;
    }
    return invalid_argument("zip64 sizes are missing from its extra field");
}

Status check_method(uint16_t flags, uint16_t method) {
    if ((flags & (kFlagEncrypted | kFlagStrongEncryption | kFlagMaskedHeaders)) != 0) {
        return invalid_argument("entry is encrypted (allowed: unencrypted)");
    }
    if (method != static_cast<uint16_t>(Method::kStored) && method != static_cast<uint16_t>(Method::kDeflate)) {
        return invalid_argument(
            fmt::format("compression method {} is not supported (allowed: 0 stored, 8 deflate)", method));
    }
    return Status::ok();
}

// Checks one directory record against its local header and sets entry->data_offset.
Status check_entry(std::span<const std::byte> archive, std::span<const std::byte> record,
                   std::span<const std::byte> extra, uint64_t directory_offset, Entry* entry) {
    const auto method = load_le<uint16_t>(record, 10);
    CLARY_RETURN_IF_ERROR(check_method(load_le<uint16_t>(record, 8), method));
    if (!is_utf8(entry->name)) return invalid_argument("name is not valid UTF-8");
    if (load_le<uint16_t>(record, 34) != 0) return invalid_argument("entry lies on another disk (allowed: one file)");
    entry->method = static_cast<Method>(method);
    entry->crc = load_le<uint32_t>(record, 16);
    entry->data_bytes = load_le<uint32_t>(record, 20);
    entry->content_bytes = load_le<uint32_t>(record, 24);
    entry->header_offset = load_le<uint32_t>(record, 42);
    CLARY_RETURN_IF_ERROR(apply_zip64_extra(extra, {&entry->content_bytes, &entry->data_bytes, &entry->header_offset}));

    const std::span<const std::byte> before_directory = archive.first(directory_offset);
    if (!has_record(before_directory, entry->header_offset, kLocalBytes, kLocalSignature)) {
        return invalid_argument(fmt::format("no local header at its offset {}", entry->header_offset));
    }
    const std::span<const std::byte> local = before_directory.subspan(entry->header_offset);
    const std::size_t name_bytes = load_le<uint16_t>(local, 26);
    const std::size_t local_bytes = kLocalBytes + name_bytes + load_le<uint16_t>(local, 28);
    if (local_bytes > local.size() || text_of(local.subspan(kLocalBytes, name_bytes)) != entry->name ||
        load_le<uint16_t>(local, 8) != method) {
        return invalid_argument("local header and directory differ in name or method");
    }
    CLARY_RETURN_IF_ERROR(check_method(load_le<uint16_t>(local, 6), method));
    if (entry->data_bytes > local.size() - local_bytes) {
        return invalid_argument(fmt::format("its {} bytes end after the {} before the directory", entry->data_bytes,
                                            local.size() - local_bytes));
    }
    entry->data_offset = entry->header_offset + local_bytes;
    const bool size_is_possible = entry->method == Method::kStored
                                      ? entry->content_bytes == entry->data_bytes
                                      : entry->content_bytes / kMaxDeflateRatio <= entry->data_bytes;
    if (!size_is_possible) {
        return invalid_argument(fmt::format("declared size {} cannot come from {} {} bytes", entry->content_bytes,
                                            entry->data_bytes,
                                            entry->method == Method::kStored ? "stored" : "deflated"));
    }
    return Status::ok();
}

// Entries that share bytes would let a small file unpack into a huge one.
Status check_disjoint(const std::vector<Entry>& entries) {
    std::vector<const Entry*> sorted(entries.size());
    std::transform(entries.begin(), entries.end(), sorted.begin(), [](const Entry& entry) { return &entry; });
    std::sort(sorted.begin(), sorted.end(),
              [](const Entry* a, const Entry* b) { return a->header_offset < b->header_offset; });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
        if (sorted[i]->header_offset < sorted[i - 1]->data_offset + sorted[i - 1]->data_bytes) {
            return in_tensor(sorted[i]->name, invalid_argument("entry overlaps " + quote(sorted[i - 1]->name)));
        }
    }
    return Status::ok();
}

constexpr uInt chunk_of(std::size_t bytes) {  // zlib counts in 32 bits
    return static_cast<uInt>(std::min<std::size_t>(bytes, std::numeric_limits<uInt>::max()));
}

Bytef* zlib_pointer(const std::byte* bytes) {  // zlib reads input through a pointer to mutable, and leaves it alone
    return const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes));
}

// A zlib stream that ends itself; `end` is inflateEnd or deflateEnd.
struct Stream : z_stream {
    explicit Stream(int (*end_function)(z_stream*)) : z_stream{}, end(end_function) {}
    ~Stream() { end(this); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    int (*end)(z_stream*);
};

// Runs inflate or deflate from `source` into `target` until either is spent or the stream ends; *written = bytes made.
int pump(Stream* stream, int (*step)(z_stream*, int), int last_flush, std::span<const std::byte> source,
         std::span<std::byte> target, std::size_t* read, std::size_t* written) {
    *read = *written = 0;
    for (;;) {
        const uInt in = chunk_of(source.size() - *read);
        const uInt room = chunk_of(target.size() - *written);
        stream->next_in = zlib_pointer(source.data() + *read);
        stream->avail_in = in;
        stream->next_out = reinterpret_cast<Bytef*>(target.data() + *written);
        stream->avail_out = room;
        const int result = step(stream, in == source.size() - *read ? last_flush : Z_NO_FLUSH);
        *read += in - stream->avail_in;
        *written += room - stream->avail_out;
        if (result != Z_OK || (stream->avail_in == in && stream->avail_out == room)) return result;
    }
}

}  // namespace

Status read_directory(std::span<const std::byte> archive, std::vector<Entry>* out) {
    return guarded([&]() -> Status {
        Directory directory;
        CLARY_RETURN_IF_ERROR(find_directory(archive, &directory));
        if (directory.offset > directory.end || directory.bytes != directory.end - directory.offset) {
            return invalid_argument(
                fmt::format("zip directory of {} bytes at offset {} does not end at {}, where its "
                            "end record is",
                            directory.bytes, directory.offset, directory.end));
        }
        std::span<const std::byte> rest = archive.subspan(directory.offset, directory.bytes);
        std::vector<Entry> entries;
        while (!rest.empty()) {
            if (!has_record(rest, 0, kCentralBytes, kCentralSignature)) {
                return invalid_argument(fmt::format("zip directory has no valid record {}", entries.size()));
            }
            const std::size_t name_bytes = load_le<uint16_t>(rest, 28);
            const std::size_t extra_bytes = load_le<uint16_t>(rest, 30);
            const std::size_t record_bytes = kCentralBytes + name_bytes + extra_bytes + load_le<uint16_t>(rest, 32);
            if (record_bytes > rest.size()) {
                return invalid_argument(fmt::format("zip directory ends within its record {}", entries.size()));
            }
            Entry& entry = entries.emplace_back();
            entry.name = text_of(rest.subspan(kCentralBytes, name_bytes));
            CLARY_RETURN_IF_ERROR(
                in_tensor(entry.name, check_entry(archive, rest, rest.subspan(kCentralBytes + name_bytes, extra_bytes),
                                                  directory.offset, &entry)));
            rest = rest.subspan(record_bytes);
        }
        if (entries.size() != directory.entry_count) {
            return invalid_argument(fmt::format("zip directory has {} records, its end record says {}", entries.size(),
                                                directory.entry_count));
        }
        CLARY_RETURN_IF_ERROR(check_disjoint(entries));
        *out = std::move(entries);
        return Status::ok();
    });
}

Status extract(std::span<const std::byte> archive, const Entry& entry, std::size_t count, Bytes* out) {
    return guarded([&]() -> Status {
        const std::span<const std::byte> data = archive.subspan(entry.data_offset, entry.data_bytes);
        Bytes content;
        content.resize(count);
        if (entry.method == Method::kStored) {
            std::copy_n(data.begin(), count, content.begin());
        } else {
            Stream stream(inflateEnd);
            if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return {StatusCode::kOutOfMemory, "zlib found no memory"};
            // One byte more than declared, so that a stream which goes on is seen.
            content.resize(count + 1);
            std::size_t read = 0;
            std::size_t written = 0;
            const int result = pump(&stream, inflate, Z_NO_FLUSH, data, content, &read, &written);
            const bool is_whole = count == entry.content_bytes;
            const bool is_good =
                is_whole ? result == Z_STREAM_END && written == count && read == data.size() : written >= count;
            if (!is_good) {
                return invalid_argument(
                    fmt::format("deflate stream is corrupt: {} of {} bytes give {} of the {} "
                                "declared",
                                read, data.size(), written, count));
            }
            content.resize(count);
        }
        if (count == entry.content_bytes) {
            const auto crc = static_cast<uint32_t>(crc32_z(0, zlib_pointer(content.data()), content.size()));
            if (crc != entry.crc) {
                return invalid_argument(
                    fmt::format("CRC is {:08x}, the directory says {:08x} (corrupt file?)", crc, entry.crc));
            }
        }
        *out = std::move(content);
        return Status::ok();
    });
}

Status Writer::add(const std::string& name, std::span<const std::byte> content, Method method) {
    return guarded([&]() -> Status {
        if (name.size() > kMax16 || !is_utf8(name)) {
            return invalid_argument(
                fmt::format("name of {} bytes (allowed: at most {} of valid UTF-8)", name.size(), kMax16));
        }
        Bytes deflated;
        std::span<const std::byte> data = content;
        if (method == Method::kDeflate) {
            Stream stream(deflateEnd);
            constexpr int kMemoryLevel = 8;  // zlib's default
            if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, kMemoryLevel,
                             Z_DEFAULT_STRATEGY) != Z_OK) {
                return {StatusCode::kOutOfMemory, "zlib found no memory"};
            }
            deflated.resize(deflateBound(&stream, content.size()));
            std::size_t read = 0;
            std::size_t written = 0;
            if (pump(&stream, deflate, Z_FINISH, content, deflated, &read, &written) != Z_STREAM_END) {
                return {StatusCode::kInternal, "zlib did not finish its stream"};
            }
            data = std::span(deflated).first(written);
        }
        const uint64_t archive_end = archive_.size() + kLocalBytes + name.size() + data.size();
        const uint64_t directory_end = archive_end + directory_.size() + kCentralBytes + name.size() + kEndBytes;
        if (content.size() >= kMax32 || directory_end >= kMax32 || entry_count_ + 1 >= kMax16) {
            return invalid_argument(
                fmt::format("archive would need {} bytes and {} entries (allowed: below {} and {}): "
                            "use .safetensors",
                            std::max<uint64_t>(directory_end, content.size()), entry_count_ + 1, kMax32, kMax16));
        }

        const auto header_offset = static_cast<uint32_t>(archive_.size());
        const auto append_common = [&](Bytes* out) {  // the fields that both headers hold, from version to extra length
            constexpr uint16_t kVersionNeeded = 20;   // 2.0: deflate
            constexpr uint16_t kDosDate = (1 << 5) | 1;  // 1980-01-01
            append_le<uint16_t>(out, kVersionNeeded);
            append_le<uint16_t>(out, kFlagUtf8);
            append_le<uint16_t>(out, static_cast<uint16_t>(method));
            append_le<uint16_t>(out, 0);  // time 00:00
            append_le<uint16_t>(out, kDosDate);
            append_le<uint32_t>(out, static_cast<uint32_t>(crc32_z(0, zlib_pointer(content.data()), content.size())));
            append_le<uint32_t>(out, static_cast<uint32_t>(data.size()));
            append_le<uint32_t>(out, static_cast<uint32_t>(content.size()));
            append_le<uint16_t>(out, static_cast<uint16_t>(name.size()));
            append_le<uint16_t>(out, 0);  // no extra field
        };
        append_le<uint32_t>(&archive_, kLocalSignature);
        append_common(&archive_);
        append(&archive_, name.data(), name.size());
        append(&archive_, data.data(), data.size());

        append_le<uint32_t>(&directory_, kCentralSignature);
        append_le<uint16_t>(&directory_, 20);  // made by: 2.0, MS-DOS attributes
        append_common(&directory_);
        append_le<uint16_t>(&directory_, 0);  // no comment
        append_le<uint16_t>(&directory_, 0);  // disk
        append_le<uint16_t>(&directory_, 0);  // internal attributes
        append_le<uint32_t>(&directory_, 0);  // external attributes
        append_le<uint32_t>(&directory_, header_offset);
        append(&directory_, name.data(), name.size());
        ++entry_count_;
        return Status::ok();
    });
}

Status Writer::finish(Bytes* out) {
    return guarded([&]() -> Status {
        const auto directory_offset = static_cast<uint32_t>(archive_.size());
        append(&archive_, directory_.data(), directory_.size());
        append_le<uint32_t>(&archive_, kEndSignature);
        append_le<uint32_t>(&archive_, 0);  // disks
        append_le<uint16_t>(&archive_, static_cast<uint16_t>(entry_count_));
        append_le<uint16_t>(&archive_, static_cast<uint16_t>(entry_count_));
        append_le<uint32_t>(&archive_, static_cast<uint32_t>(directory_.size()));
        append_le<uint32_t>(&archive_, directory_offset);
        append_le<uint16_t>(&archive_, 0);  // no comment
        *out = std::move(archive_);
        *this = Writer();
        return Status::ok();
    });
}

}  // namespace clary::io::zip
