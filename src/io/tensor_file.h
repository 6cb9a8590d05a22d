// SPDX-License-Identifier: Apache-2.0
// Named tensors in files: the one door through which the CLI and the tests reach safetensors, npy and npz.
// Files are untrusted input: every length is checked before it is used, and no exception leaves this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/types.h"

namespace clary::io {

inline constexpr std::size_t kAlignment = 64;      // bytes: a cache line, and the widest vector load
inline constexpr std::size_t kMaxTensorDims = 64;  // numpy's own maximum

// Aligned to kAlignment; elements made by resize() are left uninitialized, because readers overwrite all of them.
template <class T>
struct AlignedAllocator {
    using value_type = T;

    AlignedAllocator() = default;
    template <class U>
    AlignedAllocator(const AlignedAllocator<U>&) noexcept {}

    T* allocate(std::size_t count) {
        if (count > static_cast<std::size_t>(PTRDIFF_MAX) / sizeof(T)) throw std::bad_alloc();
        return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{kAlignment}));
    }
    void deallocate(T* pointer, std::size_t) noexcept { ::operator delete (pointer, std::align_val_t{kAlignment}); }

    template <class U>
    void construct(U* place) noexcept {
        ::new (static_cast<void*>(place)) U;
    }
    template <class U, class... Args>
    void construct(U* place, Args&&... args) {
        ::new (static_cast<void*>(place)) U(std::forward<Args>(args)...);
    }

    friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

using Bytes = std::vector<std::byte, AlignedAllocator<std::byte>>;

// A dense tensor in C order (last index fastest) that owns its bytes, little-endian. shape [] is a scalar of one
// element; a dimension of 0 is legal and holds no bytes.
struct Tensor {
    std::string name;
    DType dtype = DType::kNone;
    std::vector<int64_t> shape;
    Bytes bytes;  // element_count() * dtype_size(dtype) bytes

    int64_t element_count() const;

    // The elements as T, which the caller chooses to fit dtype (sizeof(T) == dtype_size(dtype)).
    template <class T>
    std::span<const T> as() const {
        return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
    template <class T>
    std::span<T> as() {
        return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
};

struct TensorFile {
    std::vector<Tensor> tensors;  // in the file's order; names are unique
    std::map<std::string, std::string> metadata;

    const Tensor* find(const std::string& name) const;  // null where there is none
};

// A tensor of zeros. invalid_argument: kNone, a negative size, more than kMaxTensorDims dimensions, or a byte count
// above int64.
Status make_tensor(std::string name, DType dtype, std::vector<int64_t> shape, Tensor* out);

// Reads a whole file; the extension (.safetensors, .npy, .npz; any case) says the format. The tensor of a .npy file
// is named after the file ("q.npy" -> "q"). Peak memory is the file and its tensors (.npz: and one array more). On
// failure *out is unchanged, and the one-line text starts with the path.
Status load(const std::string& path, TensorFile* out);

// Writes into a temporary file beside `path` and renames it, so `path` holds either what it held before or all of
// `file`. invalid_argument where the format cannot hold the content: .npy holds one tensor; .npy and .npz hold neither
// metadata nor bf16 and fp8.
Status save(const std::string& path, const TensorFile& file);

}  // namespace clary::io
