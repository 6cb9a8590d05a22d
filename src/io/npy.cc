// SPDX-License-Identifier: Apache-2.0
#include "io/npy.h"

#include <algorithm>
#include <array>
#include <optional>

#include "io/checks.h"

namespace clary::io::npy {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kVersionEnd = kMagic.size() + 2;  // major, minor
constexpr std::size_t kHeaderAlignment = 64;            // numpy pads the prefix to it so that the data can be mapped

struct DTypeRow {
    DType dtype;
    std::string_view descr;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kF32, "<f4"}, {DType::kF16, "<f2"}, {DType::kF64, "<f8"}, {DType::kI8, "|i1"},   {DType::kU8, "|u1"},
    {DType::kI16, "<i2"}, {DType::kI32, "<i4"}, {DType::kI64, "<i8"}, {DType::kBool, "|b1"},
};

std::string allowed_descrs() {
    std::vector<std::string_view> names;
    for (const DTypeRow& row : kDTypes) names.push_back(row.descr);
    return fmt::format("(allowed: {})", fmt::join(names, ", "));
}

// Reads the one dict literal that an npy header is; not a Python parser.
class DictParser {
  public:
    explicit DictParser(std::string_view text) : text_(text) {}

    Status parse(std::string* descr, bool* fortran_order, std::vector<int64_t>* shape) {
        if (!accept('{')) return unexpected("'{'");
        std::array<bool, 3> seen{};
        while (!accept('}')) {
            std::string key;
            CLARY_RETURN_IF_ERROR(parse_string(&key));
            const auto place = std::find(kKeys.begin(), kKeys.end(), key);
            if (place == kKeys.end()) {
                return invalid_argument(
                    fmt::format("header has the unknown key {} (allowed: {})", quote(key), fmt::join(kKeys, ", ")));
            }
            bool& is_known = seen[static_cast<std::size_t>(place - kKeys.begin())];
            if (is_known) return invalid_argument("header has the key " + quote(key) + " twice");
            is_known = true;
            if (!accept(':')) return unexpected("':'");
            CLARY_RETURN_IF_ERROR(key == "descr"           ? parse_descr(descr)
                                  : key == "fortran_order" ? parse_bool(fortran_order)
                                                           : parse_shape(shape));
            if (!accept(',') && peek() != '}') return unexpected("',' or '}'");
        }
        for (std::size_t i = 0; i < kKeys.size(); ++i) {
            if (!seen[i]) return invalid_argument(fmt::format("header lacks the key '{}'", kKeys[i]));
        }
        peek();
        if (at_ != text_.size()) return unexpected("the end");
        return Status::ok();
    }

  private:
    static constexpr std::array<std::string_view, 3> kKeys = {"descr", "fortran_order", "shape"};

    // The next character after white space; NUL where the text ends (or holds one).
    char peek() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    bool accept(char wanted) {
        if (peek() != wanted) return false;
        ++at_;
        return true;
    }
    bool accept_word(std::string_view word) {
        peek();
        if (!text_.substr(at_).starts_with(word)) return false;
        at_ += word.size();
        return true;
    }
    Status unexpected(std::string_view wanted) const {
        return invalid_argument(fmt::format("header is no npy dict: {} at byte {} of it (expected: {})",
                                            at_ < text_.size() ? quote(text_.substr(at_, 1)) : "its end", at_, wanted));
    }

    Status parse_string(std::string* out) {
        const char quote = peek();
        if (quote != '\'' && quote != '"') return unexpected("a string");
        const std::size_t end = text_.find(quote, at_ + 1);
        if (end == std::string_view::npos) return unexpected("a string that ends");
        *out = text_.substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return Status::ok();
    }

    Status parse_descr(std::string* out) {
        if (peek() == '[') return invalid_argument("descr is a structured dtype " + allowed_descrs());
        return parse_string(out);
    }

    Status parse_bool(bool* out) {
        *out = accept_word("True");
        if (!*out && !accept_word("False")) return unexpected("True or False");
        return Status::ok();
    }

    // (), (n,), (n, m), ...; a trailing L on a number comes from Python 2.
    Status parse_shape(std::vector<int64_t>* out) {
        if (!accept('(')) return unexpected("'('");
        while (!accept(')')) {
            if (peek() == '-') return invalid_argument("shape has a negative size (allowed: >= 0)");
            if (peek() < '0' || peek() > '9') return unexpected("a size");
            int64_t size = 0;
            for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
                if (__builtin_mul_overflow(size, 10, &size) || __builtin_add_overflow(size, text_[at_] - '0', &size)) {
                    return invalid_argument(fmt::format("shape has a size above {}", INT64_MAX));
                }
            }
            if (at_ < text_.size() && text_[at_] == 'L') ++at_;
            out->push_back(size);
            if (!accept(',') && (peek() != ')' || out->size() == 1)) return unexpected("','");
        }
        return Status::ok();
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

Status dtype_of(const std::string& descr, DType* out) {
    for (const DTypeRow& row : kDTypes) {
        if (row.descr == descr) {
            *out = row.dtype;
            return Status::ok();
        }
    }
    std::string_view hint;
    if (descr.starts_with('>')) {
        hint = "big-endian, only little-endian is read; ";
    } else if (descr.find('V') != std::string::npos || descr == "<f1") {
        hint = "raw bytes: numpy loses bf16 and fp8, keep them in .safetensors; ";
    }
    return invalid_argument(fmt::format("dtype {} is not supported: {}{}", quote(descr), hint, allowed_descrs()));
}

// Copies an array whose first index runs fastest into C order.
template <std::size_t kElementBytes>
void from_fortran_order(std::span<const int64_t> shape, const std::byte* source, std::byte* target, std::size_t count) {
    std::array<std::size_t, kMaxTensorDims> index{};
    std::array<std::size_t, kMaxTensorDims> stride{1};  // elements, in the source
    for (std::size_t d = 1; d < shape.size(); ++d) stride[d] = stride[d - 1] * static_cast<std::size_t>(shape[d - 1]);
    std::size_t from = 0;
    for (std::size_t to = 0; to < count; ++to) {
        std::memcpy(target + to * kElementBytes, source + from * kElementBytes, kElementBytes);
        for (std::size_t d = shape.size(); d-- > 0;) {
            from += stride[d];
            if (++index[d] < static_cast<std::size_t>(shape[d])) break;
            from -= stride[d] * index[d];
            index[d] = 0;
        }
    }
}

void from_fortran_order(const Header& header, const std::byte* source, std::byte* target) {
    const auto element_bytes = static_cast<std::size_t>(dtype_size(header.dtype));
    const std::size_t count = header.data_bytes / element_bytes;
    switch (element_bytes) {
        case 1:
            return from_fortran_order<1>(header.shape, source, target, count);
        case 2:
            return from_fortran_order<2>(header.shape, source, target, count);
        case 4:
            return from_fortran_order<4>(header.shape, source, target, count);
        default:
            return from_fortran_order<8>(header.shape, source, target, count);
    }
}

}  // namespace

Status read_header(std::span<const std::byte> prefix, Header* out) {
    const auto truncated = [&](std::string_view what, std::size_t needed) {
        return invalid_argument(
            fmt::format("file has {} bytes, but its npy {} needs {} (truncated file?)", prefix.size(), what, needed));
    };
    if (!text_of(prefix).starts_with(kMagic)) {
        return invalid_argument("file does not start with the npy magic \\x93NUMPY (no npy file, or truncated?)");
    }
    if (prefix.size() < kVersionEnd) return truncated("version", kVersionEnd);
    const int major = std::to_integer<int>(prefix[kMagic.size()]);
    const int minor = std::to_integer<int>(prefix[kMagic.size() + 1]);
    if (major < 1 || major > 3 || minor != 0) {
        return invalid_argument(
            fmt::format("npy version {}.{} is not supported (allowed: 1.0, 2.0, 3.0)", major, minor));
    }
    const std::size_t dict_offset = kVersionEnd + (major == 1 ? sizeof(uint16_t) : sizeof(uint32_t));
    if (prefix.size() < dict_offset) return truncated("header length", dict_offset);
    const std::size_t dict_bytes =
        major == 1 ? load_le<uint16_t>(prefix, kVersionEnd) : load_le<uint32_t>(prefix, kVersionEnd);
    if (dict_bytes > kMaxPrefixBytes - dict_offset) {
        return invalid_argument(
            fmt::format("npy header length {} is above the limit of {}", dict_bytes, kMaxPrefixBytes - dict_offset));
    }
    if (prefix.size() - dict_offset < dict_bytes) return truncated("header", dict_offset + dict_bytes);

    Header header;
    std::string descr;
    DictParser parser(text_of(prefix.subspan(dict_offset, dict_bytes)));
    CLARY_RETURN_IF_ERROR(parser.parse(&descr, &header.fortran_order, &header.shape));
    CLARY_RETURN_IF_ERROR(dtype_of(descr, &header.dtype));
    CLARY_RETURN_IF_ERROR(dense_byte_count(header.dtype, header.shape, &header.data_bytes));
    header.data_offset = dict_offset + dict_bytes;
    *out = std::move(header);
    return Status::ok();
}

Status read_array(std::span<const std::byte> file, Tensor* out) {
    return guarded([&]() -> Status {
        Header header;
        CLARY_RETURN_IF_ERROR(read_header(file, &header));
        const std::span<const std::byte> data = file.subspan(header.data_offset);
        if (data.size() != header.data_bytes) {
            return invalid_argument(fmt::format("{} data bytes follow the npy header, but shape {} of {} needs {}{}",
                                                data.size(), shape_text(header.shape), dtype_name(header.dtype),
                                                header.data_bytes,
                                                data.size() < header.data_bytes ? " (truncated file?)" : ""));
        }
        Tensor tensor;
        tensor.name = out->name;
        tensor.dtype = header.dtype;
        tensor.shape = header.shape;
        tensor.bytes.resize(data.size());
        if (header.fortran_order) {
            from_fortran_order(header, data.data(), tensor.bytes.data());
        } else {
            std::copy(data.begin(), data.end(), tensor.bytes.begin());
        }
        CLARY_RETURN_IF_ERROR(check_tensor(tensor));
        *out = std::move(tensor);
        return Status::ok();
    });
}

Status write_array(const Tensor& tensor, Bytes* out) {
    return guarded([&]() -> Status {
        CLARY_RETURN_IF_ERROR(check_tensor(tensor));
        const auto row = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                      [&](const DTypeRow& candidate) { return candidate.dtype == tensor.dtype; });
        if (row == std::end(kDTypes)) {
            return invalid_argument(
                fmt::format("dtype {} cannot be written to .npy or .npz: use .safetensors", dtype_name(tensor.dtype)));
        }
        std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", row->descr,
                                       fmt::join(tensor.shape, ", "), tensor.shape.size() == 1 ? "," : "");
        // As numpy does: room for the first size to grow to 21 digits, then spaces (at least one) and a line feed.
        constexpr std::size_t kGrowthDigits = 21;
        if (!tensor.shape.empty()) dict.append(kGrowthDigits - fmt::formatted_size("{}", tensor.shape[0]), ' ');
        const std::size_t dict_offset = kVersionEnd + sizeof(uint16_t);
        const std::size_t unpadded = dict_offset + dict.size() + 1;
        dict.append(kHeaderAlignment - unpadded % kHeaderAlignment, ' ');
        dict += '\n';

        Bytes result;
        result.reserve(dict_offset + dict.size() + tensor.bytes.size());
        append(&result, kMagic.data(), kMagic.size());
        append_le<uint8_t>(&result, 1);
        append_le<uint8_t>(&result, 0);
        append_le<uint16_t>(&result, static_cast<uint16_t>(dict.size()));  // at most 64 sizes of 20 digits: fits
        append(&result, dict.data(), dict.size());
        append(&result, tensor.bytes.data(), tensor.bytes.size());
        *out = std::move(result);
        return Status::ok();
    });
}

Status read(std::span<const std::byte> file, TensorFile* out) {
    return guarded([&]() -> Status {
        TensorFile result;
        CLARY_RETURN_IF_ERROR(read_array(file, &result.tensors.emplace_back()));
        *out = std::move(result);
        return Status::ok();
    });
}

Status write(const TensorFile& file, Bytes* out) {
    return guarded([&]() -> Status {
        CLARY_RETURN_IF_ERROR(check_no_metadata(file));
        if (file.tensors.size() != 1) {
            return invalid_argument(
                fmt::format("{} tensors cannot be written to .npy (allowed: 1): use .npz or "
                            ".safetensors",
                            file.tensors.size()));
        }
        return in_tensor(file.tensors[0].name, write_array(file.tensors[0], out));
    });
}

Status check_no_metadata(const TensorFile& file) {
    if (file.metadata.empty()) return Status::ok();
    return invalid_argument(fmt::format("metadata {} cannot be written to .npy or .npz: use .safetensors, or drop it",
                                        quote(file.metadata.begin()->first)));
}

}  // namespace clary::io::npy
