// SPDX-License-Identifier: Apache-2.0
#include "io/npz.h"

#include <algorithm>

#include "io/checks.h"
#include "io/npy.h"
#include "io/zip.h"

namespace clary::io::npz {
namespace {

constexpr std::string_view kSuffix = ".npy";

Status read_entry(std::span<const std::byte> archive, const zip::Entry& entry, Tensor* out) {
    Bytes content;
    const std::size_t prefix_bytes = std::min<uint64_t>(entry.content_bytes, npy::kMaxPrefixBytes);
    CLARY_RETURN_IF_ERROR(zip::extract(archive, entry, prefix_bytes, &content));
    npy::Header header;
    CLARY_RETURN_IF_ERROR(npy::read_header(content, &header));
    if (header.data_bytes != entry.content_bytes - header.data_offset) {
        return invalid_argument(fmt::format("declared size {} does not fit its npy header: {} + {} bytes",
                                            entry.content_bytes, header.data_offset, header.data_bytes));
    }
    if (prefix_bytes < entry.content_bytes) {
        CLARY_RETURN_IF_ERROR(zip::extract(archive, entry, entry.content_bytes, &content));
    }
    return npy::read_array(content, out);
}

}  // namespace

Status read(std::span<const std::byte> file, TensorFile* out) {
    return guarded([&]() -> Status {
        std::vector<zip::Entry> entries;
        CLARY_RETURN_IF_ERROR(zip::read_directory(file, &entries));
        TensorFile result;
        for (const zip::Entry& entry : entries) {
            if (!entry.name.ends_with(kSuffix)) {
                return invalid_argument(
                    fmt::format("entry {} is no array (allowed: names that end in {})", quote(entry.name), kSuffix));
            }
            Tensor& tensor = result.tensors.emplace_back();
            tensor.name = entry.name.substr(0, entry.name.size() - kSuffix.size());
            CLARY_RETURN_IF_ERROR(in_tensor(tensor.name, read_entry(file, entry, &tensor)));
        }
        CLARY_RETURN_IF_ERROR(check_unique_names(result));
        *out = std::move(result);
        return Status::ok();
    });
}

Status write(const TensorFile& file, Bytes* out, Compression compression) {
    return guarded([&]() -> Status {
        CLARY_RETURN_IF_ERROR(npy::check_no_metadata(file));
        CLARY_RETURN_IF_ERROR(check_unique_names(file));
        const zip::Method method = compression == Compression::kNone ? zip::Method::kStored : zip::Method::kDeflate;
        zip::Writer writer;
        for (const Tensor& tensor : file.tensors) {
            Bytes array;
            CLARY_RETURN_IF_ERROR(in_tensor(tensor.name, npy::write_array(tensor, &array)));
            CLARY_RETURN_IF_ERROR(
                in_tensor(tensor.name, writer.add(tensor.name + std::string(kSuffix), array, method)));
        }
        return writer.finish(out);
    });
}

}  // namespace clary::io::npz
