// SPDX-License-Identifier: Apache-2.0
// The header is read through a SAX handler that knows exactly three levels (root, entry or metadata, list of integers).
// So nesting is bounded, nothing is built that the format does not define, and a key that occurs twice is seen.
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "io/checks.h"

namespace clary::io::safetensors {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the cap of the format's own reader
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeRow {
    DType dtype;
    std::string_view name;
};
// From the last to the first in a file: the rank in this table is the format's order of data.
constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "BOOL"},    {DType::kU8, "U8"},   {DType::kI8, "I8"},   {DType::kE5M2, "F8_E5M2"},
    {DType::kE4M3, "F8_E4M3"}, {DType::kI16, "I16"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"},
    {DType::kI32, "I32"},      {DType::kF32, "F32"}, {DType::kF64, "F64"}, {DType::kI64, "I64"},
};

const DTypeRow* row_of(DType dtype) {
    return std::find_if(std::begin(kDTypes), std::end(kDTypes),
                        [&](const DTypeRow& row) { return row.dtype == dtype; });
}

struct Entry {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<int64_t> data_offsets;  // {begin, end} in the data section

    int64_t begin() const { return data_offsets[0]; }
    int64_t end() const { return data_offsets[1]; }
    std::size_t byte_count() const { return static_cast<std::size_t>(end() - begin()); }
};

class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
  public:
    std::vector<Entry> entries;
    std::map<std::string, std::string> metadata;
    Status status;  // set where the parse was stopped

    bool null() override { return unexpected("null"); }
    bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
    bool number_integer(number_integer_t value) override { return unexpected(fmt::format("{}", value)); }
    bool number_float(number_float_t, const string_t& text) override { return unexpected(quote(text)); }
    bool binary(binary_t&) override { return unexpected("binary data"); }

    bool number_unsigned(number_unsigned_t value) override {
        constexpr auto kMax = static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max());
        if (level_ != Level::kList || value > kMax) return unexpected(fmt::format("{}", value));
        if (list_->size() == kMaxTensorDims) {
            return stop(fmt::format("'{}' has more than {} values", field_, kMaxTensorDims));
        }
        list_->push_back(static_cast<int64_t>(value));
        return true;
    }

    bool string(string_t& value) override {
        if (level_ == Level::kMetadata) {
            metadata[field_] = std::move(value);
            return true;
        }
        if (level_ != Level::kEntry || field_ != "dtype") return unexpected("the string " + quote(value));
        entries.back().dtype = std::move(value);
        return true;
    }

    bool start_object(std::size_t) override {
        if (level_ == Level::kOutside) {
            level_ = Level::kRoot;
        } else if (level_ == Level::kRoot) {
            level_ = root_key_ == kMetadataKey ? Level::kMetadata : Level::kEntry;
            if (level_ == Level::kEntry) entries.emplace_back().name = root_key_;
            fields_.clear();
        } else {
            return unexpected("an object");
        }
        return true;
    }

    bool end_object() override {
        if (level_ == Level::kEntry) {
            for (const std::string_view field : kFields) {
                if (fields_.find(field) == fields_.end()) return stop(fmt::format("'{}' is missing", field));
            }
            const std::size_t offset_count = entries.back().data_offsets.size();
            if (offset_count != 2) {
                return stop(fmt::format("'data_offsets' has {} values (allowed: 2)", offset_count));
            }
        }
        level_ = level_ == Level::kRoot ? Level::kOutside : Level::kRoot;
        return true;
    }

    bool key(string_t& value) override {
        if (level_ == Level::kRoot) {
            if (!names_.insert(value).second) return fail("header: the name " + quote(value) + " occurs twice");
            root_key_ = std::move(value);
            return true;
        }
        if (level_ == Level::kEntry && std::find(kFields.begin(), kFields.end(), value) == kFields.end()) {
            return stop(fmt::format("unknown field {} (allowed: {})", quote(value), fmt::join(kFields, ", ")));
        }
        if (!fields_.insert(value).second) return stop("the field " + quote(value) + " occurs twice");
        field_ = std::move(value);
        return true;
    }

    bool start_array(std::size_t) override {
        if (level_ != Level::kEntry || field_ == "dtype") return unexpected("a list");
        Entry& entry = entries.back();
        list_ = field_ == "shape" ? &entry.shape : &entry.data_offsets;
        level_ = Level::kList;
        return true;
    }

    bool end_array() override {
        level_ = Level::kEntry;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
        return fail(fmt::format("header: no valid UTF-8 JSON at byte {} of the header", position));
    }

  private:
    enum class Level { kOutside, kRoot, kMetadata, kEntry, kList };
    static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

    bool fail(std::string text) {
        status = invalid_argument(std::move(text));
        return false;
    }
    // Fails with the entry or the metadata named.
    bool stop(std::string text) {
        if (root_key_ == kMetadataKey) return fail(fmt::format("{}: {}", kMetadataKey, text));
        status = in_tensor(root_key_, invalid_argument(std::move(text)));
        return false;
    }
    bool unexpected(const std::string& what) {
        switch (level_) {
            case Level::kOutside:
                return fail("header: " + what + " (allowed: an object)");
            case Level::kRoot:
                return stop("the value is " + what + " (allowed: an object)");
            case Level::kMetadata:
                return stop(quote(field_) + " is " + what + " (allowed: strings)");
            case Level::kEntry:
                return stop(quote(field_) + " is " + what +
                            (field_ == "dtype" ? " (allowed: a string)" : " (allowed: a list of integers)"));
            case Level::kList:
                break;
        }
        return stop(fmt::format("'{}' holds {} (allowed: integers from 0 to {})", field_, what, INT64_MAX));
    }

    Level level_ = Level::kOutside;
    std::string root_key_;
    std::string field_;
    std::vector<int64_t>* list_ = nullptr;
    std::set<std::string> names_;                // of the root
    std::set<std::string, std::less<>> fields_;  // of the entry or the metadata that is being read
};

// The JSON text, and the data after it.
Status split(std::span<const std::byte> file, std::string_view* header, std::span<const std::byte>* data) {
    constexpr std::size_t kLengthBytes = sizeof(uint64_t);
    if (file.size() < kLengthBytes) {
        return invalid_argument(
            fmt::format("file has {} bytes, less than the {} of a safetensors header length "
                        "(truncated file?)",
                        file.size(), kLengthBytes));
    }
    const auto length = load_le<uint64_t>(file, 0);
    if (length > kMaxHeaderBytes) {
        return invalid_argument(fmt::format("header length {} is above the limit of {} bytes (no safetensors file?)",
                                            length, kMaxHeaderBytes));
    }
    const std::span<const std::byte> rest = file.subspan(kLengthBytes);
    if (length > rest.size()) {
        return invalid_argument(
            fmt::format("header length {} exceeds the {} bytes after it (truncated file?)", length, rest.size()));
    }
    *header = text_of(rest.first(length));
    *data = rest.subspan(length);
    if (!header->starts_with('{')) return invalid_argument("header does not start with '{' (no safetensors file?)");
    const std::size_t nul = header->find('\0');  // the JSON parser would take it for the end
    if (nul != std::string_view::npos)
        return invalid_argument(fmt::format("header: NUL at byte {} of the header", nul));
    return Status::ok();
}

// Fills name, dtype and shape of *out; its bytes wait until all entries are known to be sound.
Status check_entry(const Entry& entry, std::size_t data_bytes, Tensor* out) {
    const auto row = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                  [&](const DTypeRow& candidate) { return candidate.name == entry.dtype; });
    if (row == std::end(kDTypes)) {
        std::vector<std::string_view> names;
        for (const DTypeRow& known : kDTypes) names.push_back(known.name);
        return invalid_argument(
            fmt::format("dtype {} is not supported (allowed: {})", quote(entry.dtype), fmt::join(names, ", ")));
    }
    const std::string offsets = shape_text(entry.data_offsets);
    if (entry.begin() > entry.end()) {
        return invalid_argument(fmt::format("data_offsets {} end before they begin", offsets));
    }
    std::size_t byte_count = 0;
    CLARY_RETURN_IF_ERROR(dense_byte_count(row->dtype, entry.shape, &byte_count));
    if (entry.byte_count() != byte_count) {
        return invalid_argument(fmt::format("data_offsets {} hold {} bytes, but shape {} of {} needs {}", offsets,
                                            entry.byte_count(), shape_text(entry.shape), row->name, byte_count));
    }
    if (static_cast<uint64_t>(entry.end()) > data_bytes) {
        return invalid_argument(
            fmt::format("data_offsets {} end after the file's {} data bytes (truncated file?)", offsets, data_bytes));
    }
    out->name = entry.name;
    out->dtype = row->dtype;
    out->shape = entry.shape;
    return Status::ok();
}

// Entries sorted by offset must tile [0, data_bytes): no gap, no overlap, no bytes left over.
Status check_tiling(const std::vector<Entry>& sorted, std::size_t data_bytes) {
    int64_t covered = 0;
    for (const Entry& entry : sorted) {
        if (entry.begin() != covered) {
            return in_tensor(entry.name,
                             invalid_argument(fmt::format(
                                 "data_offsets {} {} (allowed: to begin at {}, where the tensor before it ends)",
                                 shape_text(entry.data_offsets),
                                 entry.begin() < covered ? "overlap the tensor before it" : "leave a gap", covered)));
        }
        covered = entry.end();
    }
    if (static_cast<uint64_t>(covered) != data_bytes) {
        return invalid_argument(fmt::format("file has {} data bytes, but its tensors cover {}", data_bytes, covered));
    }
    return Status::ok();
}

}  // namespace

Status read(std::span<const std::byte> file, TensorFile* out) {
    return guarded([&]() -> Status {
        std::string_view header;
        std::span<const std::byte> data;
        CLARY_RETURN_IF_ERROR(split(file, &header, &data));

        HeaderHandler handler;
        if (!nlohmann::json::sax_parse(header.begin(), header.end(), &handler)) return handler.status;
        std::stable_sort(handler.entries.begin(), handler.entries.end(),
                         [](const Entry& a, const Entry& b) { return a.data_offsets < b.data_offsets; });

        TensorFile result;
        for (const Entry& entry : handler.entries) {
            CLARY_RETURN_IF_ERROR(
                in_tensor(entry.name, check_entry(entry, data.size(), &result.tensors.emplace_back())));
        }
        // From here on entries are disjoint parts of the file, so a header cannot ask for more memory than the file
        // has.
        CLARY_RETURN_IF_ERROR(check_tiling(handler.entries, data.size()));
        for (std::size_t i = 0; i < handler.entries.size(); ++i) {
            const Entry& entry = handler.entries[i];
            Tensor& tensor = result.tensors[i];
            append(&tensor.bytes, data.data() + entry.begin(), entry.byte_count());
            CLARY_RETURN_IF_ERROR(in_tensor(tensor.name, check_tensor(tensor)));
        }
        result.metadata = std::move(handler.metadata);
        *out = std::move(result);
        return Status::ok();
    });
}

Status write(const TensorFile& file, Bytes* out) {
    return guarded([&]() -> Status {
        CLARY_RETURN_IF_ERROR(check_unique_names(file));
        for (const auto& [key, value] : file.metadata) {
            if (!is_utf8(key) || !is_utf8(value)) {
                return invalid_argument(fmt::format("{}: {} is not valid UTF-8", kMetadataKey, quote(key)));
            }
        }
        std::size_t total = 0;
        std::vector<const Tensor*> order;
        for (const Tensor& tensor : file.tensors) {
            CLARY_RETURN_IF_ERROR(in_tensor(tensor.name, check_tensor(tensor)));
            if (!is_utf8(tensor.name) || tensor.name == kMetadataKey) {
                return invalid_argument(fmt::format("tensor name {} (allowed: valid UTF-8 other than '{}')",
                                                    quote(tensor.name), kMetadataKey));
            }
            order.push_back(&tensor);
            total += tensor.bytes.size();
        }
        std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
            const DTypeRow *row_a = row_of(a->dtype), *row_b = row_of(b->dtype);
            return row_a != row_b ? row_a > row_b : a->name < b->name;
        });

        const auto json_text = [](const std::string& text) { return nlohmann::json(text).dump(); };
        std::string header = "{";
        if (!file.metadata.empty()) {
            header += fmt::format("\"{}\":{},", kMetadataKey, nlohmann::json(file.metadata).dump());
        }
        std::size_t offset = 0;
        for (const Tensor* tensor : order) {
            header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                                  json_text(tensor->name), row_of(tensor->dtype)->name, fmt::join(tensor->shape, ","),
                                  offset, offset + tensor->bytes.size());
            offset += tensor->bytes.size();
        }
        if (header.back() == ',') header.pop_back();
        header += '}';
        header.resize((header.size() + 7) / 8 * 8, ' ');
        if (header.size() > kMaxHeaderBytes) {
            return invalid_argument(fmt::format("header needs {} bytes (allowed: {})", header.size(), kMaxHeaderBytes));
        }

        Bytes result;
        result.reserve(sizeof(uint64_t) + header.size() + total);
        append_le<uint64_t>(&result, header.size());
        append(&result, header.data(), header.size());
        for (const Tensor* tensor : order) append(&result, tensor->bytes.data(), tensor->bytes.size());
        *out = std::move(result);
        return Status::ok();
    });
}

}  // namespace clary::io::safetensors
