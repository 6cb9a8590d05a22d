// SPDX-License-Identifier: Apache-2.0
// Stands for MetaX's header of this name where there is no SDK: the device language and the builtins that src/maca uses, as
// calls into the simulator, and the runtime's functions on host memory, whose kernels run there (runtime.cc). So the very
// files that mxcc compiles are compiled by g++ and clang, and run.
//
// What a builtin does is written down here a second time, from its documented meaning and not from gpu/target/atoms.h: a
// target that means something else gets other results than sim::Sim does. Lanes that meet at a builtin are checked like
// those of sim.h; the place that a report names is the builtin's caller, in src/maca.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "sim/sim.h"

// The names are MetaX's.
// NOLINTBEGIN(bugprone-reserved-identifier)

// -- language --
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __NATIVE_VECTOR__(count, type) type __attribute__((vector_size((count) * sizeof(type))))
#define CLARY_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace clary::sim::maca {

using Machine = Sim<gpu::kXcore1000>;  // for what all of the vendor's chips do alike
using V2u = __NATIVE_VECTOR__(2, uint32_t);
using V4i = __NATIVE_VECTOR__(4, int32_t);
using V2f = __NATIVE_VECTOR__(2, float);
using V4f = __NATIVE_VECTOR__(4, float);

inline unsigned number(int x) { return static_cast<unsigned>(x); }
inline dim3 thread_index() { return {number(Machine::wave() * Machine::kLanes + Machine::lane()), 0, 0}; }
inline dim3 block_index() { return {number(Machine::block(0)), number(Machine::block(1)), number(Machine::block(2))}; }
inline dim3 block_size() { return {number(Machine::waves() * Machine::kLanes), 1, 1}; }

enum class Compare { kEqual = 32 };  // LLVM's numbers of predicates

// Defined in builtins.cc. x, y: the operands' registers of the calling lane, `registers` each.
void multiply(const char* what, gpu::Element type, int registers, const uint32_t* x, const uint32_t* y, V4i* d,
              Site site);
void multiply(const char* what, gpu::Element type, int registers, const uint32_t* x, const uint32_t* y, V4f* d,
              Site site);
void copy(uint32_t to, const void* from, bool active, bool zeros, Site site);
int64_t load_transposed(uint32_t from, Site site);
// Fails on another chip than this one, which alone has the instruction.
void only_on(gpu::Chip chip, const char* what, Site site);

// How mcLaunchKernel comes from a kernel's address to a call of it.
using Thunk = void (*)(const void* kernel, void** arguments);
void enrol(const void* kernel, Thunk thunk);

}  // namespace clary::sim::maca

#define threadIdx (::clary::sim::maca::thread_index())
#define blockIdx (::clary::sim::maca::block_index())
#define blockDim (::clary::sim::maca::block_size())
inline constexpr clary::sim::maca::Compare MACA_ICMP_EQ = clary::sim::maca::Compare::kEqual;

// -- what has no spelling of its own: see maca/language.h --
namespace clary::maca {

// Reads and writes through it are checked.
template <typename V>
class SharedPointer {
  public:
    explicit SharedPointer(uint32_t byte, CLARY_SITE) : byte_(byte), site_{file, line} {}
    class Place {
      public:
        explicit Place(const SharedPointer& at) : at_(at) {}
        operator V() const { return sim::maca::Machine::load<V>({at_.byte_}, at_.site_.file, at_.site_.line); }
        void operator=(V value) const {
            sim::maca::Machine::store<V>({at_.byte_}, value, at_.site_.file, at_.site_.line);
        }

      private:
        SharedPointer at_;
    };
    Place operator*() const { return Place(*this); }
    uint32_t byte() const { return byte_; }

  private:
    uint32_t byte_;
    sim::Site site_;
};
template <typename V>
SharedPointer<V> shared_pointer(uint32_t byte, CLARY_SITE) {
    return SharedPointer<V>(byte, file, line);
}

// A kernel of one parameter as the runtime knows it.
template <class Params>
const void* kernel_symbol(void (*kernel)(Params)) {
    const auto symbol = reinterpret_cast<const void*>(kernel);
    sim::maca::enrol(symbol, [](const void* self, void** arguments) {
        reinterpret_cast<void (*)(Params)>(const_cast<void*>(self))(*static_cast<Params*>(arguments[0]));
    });
    return symbol;
}

}  // namespace clary::maca

// -- matrix products: D = X Y^T + C, with g = lane / 16 and r = lane % 16: X(r, n g + i), Y(r, n g + i), D(4 g + i, r) --
inline clary::sim::maca::V4i __builtin_mxc_mma_16x16x16i8(int32_t x, int32_t y, clary::sim::maca::V4i c, CLARY_SITE) {
    const auto a = static_cast<uint32_t>(x), b = static_cast<uint32_t>(y);
    clary::sim::maca::only_on(clary::gpu::Chip::kXcore1000, "mma_16x16x16i8", {file, line});
    clary::sim::maca::multiply("mma_16x16x16i8", clary::gpu::Element::kS8, 1, &a, &b, &c, {file, line});
    return c;
}
#define CLARY_MMA_OF_TWO(name, element, Result, check)                                                     \
    inline clary::sim::maca::Result __builtin_mxc_##name(clary::sim::maca::V2u x, clary::sim::maca::V2u y, \
                                                         clary::sim::maca::Result c, CLARY_SITE) {         \
        const uint32_t a[2] = {x[0], x[1]}, b[2] = {y[0], y[1]};                                           \
        check;                                                                                             \
        clary::sim::maca::multiply(#name, clary::gpu::Element::element, 2, a, b, &c, {file, line});        \
        return c;                                                                                          \
    }
#define CLARY_ONLY_XCORE1500(name) clary::sim::maca::only_on(clary::gpu::Chip::kXcore1500, name, {file, line})
CLARY_MMA_OF_TWO(mma_16x16x16f16, kF16, V4f, static_cast<void>(0))
CLARY_MMA_OF_TWO(mma_16x16x16bf16, kBf16, V4f, static_cast<void>(0))
CLARY_MMA_OF_TWO(mma_16x16x32i8, kS8, V4i, CLARY_ONLY_XCORE1500("mma_16x16x32i8"))
CLARY_MMA_OF_TWO(mma_16x16x32f8, kE4m3, V4f, CLARY_ONLY_XCORE1500("mma_16x16x32f8"))
#undef CLARY_MMA_OF_TWO

// -- memory --
// Lanes where a == b copy; the others' places become zeros, or stay where !zeros. All of it asynchronous.
template <typename V>
void __builtin_mxc_ldg_b128_bsm_predicator(clary::maca::SharedPointer<V> to, const void* from, int, bool zeros, bool,
                                           bool, bool, int a, int b, clary::sim::maca::Compare, CLARY_SITE) {
    clary::sim::maca::copy(to.byte(), from, a == b, zeros, {file, line});
}
inline void __builtin_mxc_arrive_gvmcnt(int pending, CLARY_SITE) {
    char none{};
    clary::sim::meet("arrive_gvmcnt", {file, line}, none, [=](clary::sim::Met<char> met) {
        met.wave.block->land_copies(met.wave, static_cast<size_t>(pending));
    });
}
inline void __builtin_mxc_arrive_bsmcnt(int) {}  // loads and stores happen at once here
inline void __builtin_mxc_barrier_inst(CLARY_SITE) { clary::sim::maca::Machine::block_sync(file, line); }
inline void __syncwave(CLARY_SITE) { clary::sim::maca::Machine::wave_sync(file, line); }
// Of a group of 16 lanes, lane s gives the place of row s / 4, columns 4 (s % 4) .. + 3, and d gets column d of 4 rows.
template <typename V>
int64_t __builtin_mxc_load_shared_trans_4x16_i64(clary::maca::SharedPointer<V> from, CLARY_SITE) {
    CLARY_ONLY_XCORE1500("load_shared_trans_4x16");
    return clary::sim::maca::load_transposed(from.byte(), {file, line});
}

// -- between lanes: groups are of 64 where the mask is of 64 bits --
template <typename X>
X __shfl_xor_sync(uint64_t, X x, int mask, CLARY_SITE) {
    return clary::sim::maca::Machine::shuffle_xor(x, mask, file, line);
}
inline uint64_t __ballot_sync(uint64_t, bool predicate, CLARY_SITE) {
    return clary::sim::maca::Machine::any(predicate, file, line);  // nobody asks more of it than whether it is 0
}
// Control 0x0b1: lanes 1, 0, 3, 2 of each quad.
inline uint32_t __builtin_mxc_mov_raw_shfl(uint32_t x, int control, int, int, bool, CLARY_SITE) {
    return clary::sim::maca::Machine::shuffle_xor(x, control == 0x0b1 ? 1 : -1, file, line);
}

// -- numbers --
struct __half {
    uint16_t bits;
};
inline __half __float2half_rn(float x) { return {clary::numerics::Fp16::from_float(x).bits}; }
inline float __half2float(__half x) { return clary::numerics::Fp16{x.bits}.to_float(); }
inline int __float2int_rn(float x) {
    if (std::isnan(x)) return 0;
    const float whole = clary::numerics::round_half_even(x);
    return whole >= 0x1p31f ? INT32_MAX : whole < -0x1p31f ? INT32_MIN : static_cast<int>(whole);
}
inline uint32_t __builtin_mxc_cvt_pk_f32tobf16(clary::sim::maca::V2f x) {
    return clary::sim::maca::Machine::pack2<clary::gpu::Element::kBf16>(x[0], x[1]);
}
inline uint32_t __builtin_mxc_cvt_pk4_f32tof8(clary::sim::maca::V4f x, CLARY_SITE) {
    CLARY_ONLY_XCORE1500("cvt_pk4_f32tof8");
    return clary::sim::maca::Machine::pack4<clary::gpu::Element::kE4m3>(x[0], x[1], x[2], x[3]);
}
// Byte i of the result is the one that byte i of `select` names: 0..3 of low, 4..7 of high.
inline uint32_t __builtin_mxc_byte_perm(uint32_t high, uint32_t low, uint32_t select) {
    const uint64_t all = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 32; i += 8) result |= static_cast<uint32_t>(all >> (select >> i & 7u) * 8 & 255u) << i;
    return result;
}
inline float __builtin_mxc_rcpf(float x) { return 1.0f / x; }
inline float __log2f(float x) { return std::log2(x); }
inline int atomicMax(int* at, int x) {
    std::atomic_ref<int> shared(*at);
    int before = shared.load();
    while (before < x && !shared.compare_exchange_weak(before, x)) {
    }
    return before;
}

#undef CLARY_ONLY_XCORE1500
#undef CLARY_SITE

// -- the runtime: two cards, a C500 (device 0) and a C600 (device 1), of which MACA_VISIBLE_DEVICES may choose. Their memory
// is the host's. A launch has ended when the call returns; copies land late and early in turn --
enum mcError_t { mcSuccess = 0, mcErrorInvalidValue = 1, mcErrorInvalidDevice = 101, mcErrorLaunchFailure = 719 };
enum mcMemcpyKind { mcMemcpyHostToDevice = 1, mcMemcpyDeviceToHost = 2 };
enum mcFuncAttribute { mcFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct mcDeviceProp_t {
    char name[256];
    int major, minor;
};
using mcStream_t = struct mcStream*;
mcError_t mcGetDeviceCount(int* count);
mcError_t mcGetDeviceProperties(mcDeviceProp_t* properties, int device);
mcError_t mcGetDevice(int* device);
mcError_t mcSetDevice(int device);
mcError_t mcFuncSetAttribute(const void* kernel, mcFuncAttribute attribute, int value);
mcError_t mcLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                         mcStream_t stream);
mcError_t mcDeviceSynchronize();
mcError_t mcGetLastError();
const char* mcGetErrorString(mcError_t error);  // of a failed launch: the simulator's report
mcError_t mcMalloc(void** data, size_t bytes);
mcError_t mcFree(void* data);
mcError_t mcMemcpy(void* to, const void* from, size_t bytes, mcMemcpyKind kind);

namespace clary::sim::maca {

// Of all launches of this process.
Counters launched();

}  // namespace clary::sim::maca

// NOLINTEND(bugprone-reserved-identifier)
