// SPDX-License-Identifier: Apache-2.0
//
// C++20 wrapper of clary.h: header-only, inline code over the C ABI, nothing to link but the library.
//
//   std::vector<float> q(B * H * L * D), ...;
//   clary::Attention attention;
//   attention.q = clary::tensor(q.data(), {B, H, L, D});       // k, v, out likewise
//   attention.causal = CLARY_CAUSAL_BOTTOM_RIGHT;
//   attention.run();                                          // throws clary::Error with one clear line
//   std::cout << clary_last_kernel();
#ifndef CLARY_CLARY_HPP
#define CLARY_CLARY_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "clary/clary.h"

namespace clary {
inline namespace v0 {

// What a failed call throws: clary_last_error() and the status.
class Error : public std::runtime_error {
  public:
    explicit Error(clary_status status) : std::runtime_error(clary_last_error()), status_(status) {}
    clary_status status() const noexcept { return status_; }

  private:
    clary_status status_;
};

inline void check(clary_status status) {
    if (status != CLARY_OK) throw Error(status);
}

// The dtype of C++ element types; 16-bit floats have none and are named by hand.
template <typename T>
constexpr clary_dtype dtype_of() {
    using U = std::remove_cv_t<T>;
    if constexpr (std::is_same_v<U, float>)
        return CLARY_FP32;
    else if constexpr (std::is_same_v<U, double>)
        return CLARY_FP64;
    else if constexpr (std::is_same_v<U, int8_t>)
        return CLARY_INT8;
    else if constexpr (std::is_same_v<U, uint8_t>)
        return CLARY_UINT8;
    else if constexpr (std::is_same_v<U, int16_t>)
        return CLARY_INT16;
    else if constexpr (std::is_same_v<U, int32_t>)
        return CLARY_INT32;
    else if constexpr (std::is_same_v<U, int64_t>)
        return CLARY_INT64;
    else if constexpr (std::is_same_v<U, bool>)
        return CLARY_BOOL;
    else
        static_assert(!sizeof(T), "no clary_dtype for this element type: use tensor(void*, dtype, ...)");
}

// A C-contiguous view of `data`. Throws std::invalid_argument for more than CLARY_MAX_DIMS dimensions.
inline clary_tensor tensor(const void* data, clary_dtype dtype, std::initializer_list<int64_t> shape) {
    if (shape.size() == 0 || shape.size() > CLARY_MAX_DIMS)
        throw std::invalid_argument("clary::tensor: 1..5 dimensions");
    clary_tensor made{};
    made.data = const_cast<void*>(data);  // inputs are never written to
    made.dtype = dtype;
    made.ndim = static_cast<int32_t>(shape.size());
    int32_t axis = 0;
    for (const int64_t extent : shape) made.shape[axis++] = extent;
    int64_t stride = 1;
    for (axis = made.ndim - 1; axis >= 0; --axis) {
        made.stride[axis] = stride;
        stride *= made.shape[axis];
    }
    return made;
}
template <typename T>
requires(!std::is_void_v<T>) clary_tensor tensor(const T* data, std::initializer_list<int64_t> shape) {
    return tensor(static_cast<const void*>(data), dtype_of<T>(), shape);
}

// The same tensor with two axes exchanged: transpose(t, 1, 2) makes [B, L, H, D] memory the logical [B, H, L, D].
inline clary_tensor transpose(clary_tensor t, int32_t a, int32_t b) {
    std::swap(t.shape[a], t.shape[b]);
    std::swap(t.stride[a], t.stride[b]);
    return t;
}

// A DLTensor of any DLPack version.
template <typename DlTensor>
clary_tensor from_dlpack(const DlTensor& dl_tensor) {
    clary_tensor made{};
    check(clary_tensor_from_dlpack(&dl_tensor, &made));
    return made;
}

// Threads of the CPU backend.
class Context {
  public:
    explicit Context(int32_t threads = 0) { check(clary_context_create(threads, &context_)); }
    ~Context() { clary_context_destroy(context_); }
    Context(Context&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
    Context& operator=(Context&& other) noexcept {
        std::swap(context_, other.context_);
        return *this;
    }
    clary_context* get() const noexcept { return context_; }
    int32_t threads() const noexcept { return clary_context_threads(context_); }

  private:
    clary_context* context_ = nullptr;
};

// A packed Q, or a packed K and V: its layout and the memory.
class Packed {
  public:
    Packed() = default;
    Packed(const clary_packed_layout& layout, int64_t kv_capacity)
        : layout_(layout),
          memory_(static_cast<std::byte*>(::operator new (static_cast<size_t>(layout.bytes), std::align_val_t{64}))) {
        packed_.struct_size = sizeof(packed_);
        packed_.data = memory_.get();
        packed_.bytes = static_cast<size_t>(layout.bytes);
        packed_.kv_capacity = kv_capacity;
    }

    const clary_packed_layout& layout() const noexcept { return layout_; }
    const clary_packed* get() const noexcept { return &packed_; }
    void* data() noexcept { return packed_.data; }
    const void* data() const noexcept { return packed_.data; }
    int64_t kv_capacity() const noexcept { return packed_.kv_capacity; }

  private:
    struct Free {
        void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
    };
    clary_packed_layout layout_{};
    clary_packed packed_{};
    std::unique_ptr<std::byte, Free> memory_;
};

// clary_attention_params with its calls. Fill the fields as clary.h describes them.
struct Attention : clary_attention_params {
    Attention() : clary_attention_params{} { struct_size = sizeof(clary_attention_params); }

    void set_scale(double value) {
        scale = value;
        has_scale = 1;
    }

    void run() const { check(clary_attention(this)); }
    size_t workspace_bytes(bool one_shot = true) const {
        size_t bytes = 0;
        check(clary_workspace_size(this, one_shot ? 1 : 0, &bytes));
        return bytes;
    }
    // JSON, see clary_explain.
    std::string explain() const {
        const char* json = nullptr;
        check(clary_explain(this, &json));
        return json;
    }

    // Quantized Q and quantized K and V, to attend with any number of times.
    std::pair<Packed, Packed> quantize() const {
        auto [q_layout, kv_layout] = layouts(0);
        std::pair<Packed, Packed> made{Packed(q_layout, 0), Packed(kv_layout, 0)};
        check(clary_quantize(this, made.first.get(), made.second.get(), nullptr));
        return made;
    }
    // A cache: K and V with room for `capacity` keys. Q, if it has data, gives the statistics.
    Packed quantize_kv(int64_t capacity) const {
        Packed made(layouts(capacity).second, capacity);
        check(clary_quantize(this, nullptr, made.get(), nullptr));
        return made;
    }
    // Q to attend to that cache.
    Packed quantize_q(const Packed& cache) const {
        Packed made(layouts(cache.kv_capacity()).first, cache.kv_capacity());
        check(clary_quantize(this, made.get(), nullptr, cache.get()));
        return made;
    }
    void append_kv(const Packed& cache) const { check(clary_append_kv(this, cache.get())); }
    void attend(const Packed& q_packed, const Packed& kv_packed) const {
        check(clary_attend(this, q_packed.get(), kv_packed.get()));
    }

  private:
    std::pair<clary_packed_layout, clary_packed_layout> layouts(int64_t capacity) const {
        std::pair<clary_packed_layout, clary_packed_layout> made{};
        made.first.struct_size = made.second.struct_size = sizeof(clary_packed_layout);
        check(clary_packed_layouts(this, capacity, &made.first, &made.second));
        return made;
    }
};

}  // namespace v0
}  // namespace clary

#endif  // CLARY_CLARY_HPP
