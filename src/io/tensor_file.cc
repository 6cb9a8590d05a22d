// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "io/checks.h"
#include "io/npy.h"
#include "io/npz.h"
#include "io/safetensors.h"

namespace clary::io {
namespace {

struct Format {
    std::string_view extension;
    Status (*read)(std::span<const std::byte>, TensorFile*);
    Status (*write)(const TensorFile&, Bytes*);
};
constexpr Format kFormats[] = {
    {".safetensors", safetensors::read, safetensors::write},
    {".npy", npy::read, npy::write},
    {".npz", npz::read, [](const TensorFile& file, Bytes* out) { return npz::write(file, out); }},
};

Status find_format(const std::string& path, const Format** out) {
    std::string extension = std::filesystem::path(path).extension().string();
    std::transform(extension.begin(), extension.end(), extension.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    for (const Format& format : kFormats) {
        if (format.extension == extension) {
            *out = &format;
            return Status::ok();
        }
    }
    return invalid_argument(
        fmt::format("unknown file extension {} (allowed: .safetensors, .npy, .npz)", quote(extension)));
}

Status system_error(std::string_view action) {  // of the last failed call
    return invalid_argument(fmt::format("{}: {}", action, std::generic_category().message(errno)));
}

// A file descriptor that closes itself.
class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() { close(); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int get() const { return fd_; }
    bool close() {  // false with errno set where delayed writes failed
        const int fd = std::exchange(fd_, -1);
        return fd < 0 || ::close(fd) == 0;
    }

  private:
    int fd_;
};

Status read_file(const std::string& path, Bytes* out) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not hang the open
    if (file.get() < 0) return system_error("cannot open");
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) return system_error("cannot open");
    if (!S_ISREG(info.st_mode)) return invalid_argument("not a regular file");
    out->resize(static_cast<std::size_t>(info.st_size));
    for (std::size_t done = 0; done < out->size();) {
        const ssize_t count = ::read(file.get(), out->data() + done, out->size() - done);
        if (count == 0) return invalid_argument("the file shrank while it was read");
        if (count < 0 && errno != EINTR) return system_error("cannot read");
        if (count > 0) done += static_cast<std::size_t>(count);
    }
    return Status::ok();
}

Status write_all(int fd, std::span<const std::byte> bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t count = ::write(fd, bytes.data() + done, bytes.size() - done);
        if (count < 0 && errno != EINTR) return system_error("cannot write");
        if (count > 0) done += static_cast<std::size_t>(count);
    }
    return Status::ok();
}

// Synced before the rename, so that not even a crash leaves a short file under the final name.
Status write_and_rename(const std::string& temporary, const std::string& path, std::span<const std::byte> bytes) {
    Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0) return system_error("cannot create a file in its folder");
    Status status = write_all(file.get(), bytes);
    if (status.is_ok() && ::fsync(file.get()) != 0) status = system_error("cannot write");
    if (!file.close() && status.is_ok()) status = system_error("cannot write");
    if (status.is_ok() && std::rename(temporary.c_str(), path.c_str()) != 0) status = system_error("cannot replace");
    if (!status.is_ok()) ::unlink(temporary.c_str());
    return status;
}

Status in_file(const std::string& path, Status status) {
    if (status.is_ok()) return status;
    return {status.code(), fmt::format("{}: {}", path, status.text())};
}

}  // namespace

int64_t Tensor::element_count() const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
}

const Tensor* TensorFile::find(const std::string& name) const {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
    return found == tensors.end() ? nullptr : &*found;
}

Status make_tensor(std::string name, DType dtype, std::vector<int64_t> shape, Tensor* out) {
    return guarded([&]() -> Status {
        std::size_t byte_count = 0;
        CLARY_RETURN_IF_ERROR(in_tensor(name, dense_byte_count(dtype, shape, &byte_count)));
        Tensor tensor{std::move(name), dtype, std::move(shape), Bytes(byte_count, std::byte{0})};
        *out = std::move(tensor);
        return Status::ok();
    });
}

Status load(const std::string& path, TensorFile* out) {
    return guarded([&]() -> Status {
        const Format* format = nullptr;
        CLARY_RETURN_IF_ERROR(in_file(path, find_format(path, &format)));
        Bytes bytes;
        CLARY_RETURN_IF_ERROR(in_file(path, read_file(path, &bytes)));
        TensorFile result;
        CLARY_RETURN_IF_ERROR(in_file(path, format->read(bytes, &result)));
        if (format->read == npy::read) result.tensors[0].name = std::filesystem::path(path).stem().string();
        *out = std::move(result);
        return Status::ok();
    });
}

Status save(const std::string& path, const TensorFile& file) {
    return guarded([&]() -> Status {
        const Format* format = nullptr;
        CLARY_RETURN_IF_ERROR(in_file(path, find_format(path, &format)));
        Bytes bytes;
        CLARY_RETURN_IF_ERROR(in_file(path, format->write(file, &bytes)));
        static std::atomic<unsigned> counter = 0;  // two threads may save to one path
        const std::string temporary = fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter++);
        return in_file(path, write_and_rename(temporary, path, bytes));
    });
}

}  // namespace clary::io
