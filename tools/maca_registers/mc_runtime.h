// SPDX-License-Identifier: Apache-2.0
// Stands for MetaX's header of this name where clang compiles src/maca for AMD's gfx90a, which has 64 lanes and products of
// the same 16 x 16 x 16 layouts: for the registers that it allocates, and for its view of which functions are the device's.
// Nothing of this is run.
#pragma once

// What the device's own library has: before the host's headers, whose `using` would not see it later.
__attribute__((device, always_inline)) inline void* memcpy(void* to, const void* from, decltype(sizeof(0)) bytes) {
    return __builtin_memcpy(to, from, bytes);
}
__attribute__((device, always_inline)) inline float log2f(float x) { return __builtin_log2f(x); }
__attribute__((device, always_inline)) inline float logf(float x) { return __builtin_logf(x); }
__attribute__((device, always_inline)) inline float expf(float x) { return __builtin_expf(x); }
__attribute__((device, always_inline)) inline float ceilf(float x) { return __builtin_ceilf(x); }
__attribute__((device, always_inline)) inline float rintf(float x) { return __builtin_rintf(x); }
__attribute__((device, always_inline)) inline float fabsf(float x) { return __builtin_fabsf(x); }

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// NOLINTBEGIN(bugprone-reserved-identifier)
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#ifdef CLARY_256_REGISTERS
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(2, 2)))
#else
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#endif
#define __NATIVE_VECTOR__(count, type) type __attribute__((ext_vector_type(count)))
#define CLARY_STAND_IN __device__ __forceinline__

struct dim3 {
    unsigned x, y, z;
};
#define threadIdx (dim3{__builtin_amdgcn_workitem_id_x(), 0, 0})
#define blockIdx \
    (dim3{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()})
#define blockDim (dim3{__builtin_amdgcn_workgroup_size_x(), 1, 1})

namespace stand_in {

using V2u = __NATIVE_VECTOR__(2, uint32_t);
using V4i = __NATIVE_VECTOR__(4, int32_t);
using V2f = __NATIVE_VECTOR__(2, float);
using V4f = __NATIVE_VECTOR__(4, float);
using V4h = __NATIVE_VECTOR__(4, _Float16);
using V4s = __NATIVE_VECTOR__(4, short);

CLARY_STAND_IN int lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }

}  // namespace stand_in

inline constexpr int MACA_ICMP_EQ = 32;

// -- products --
CLARY_STAND_IN stand_in::V4i __builtin_mxc_mma_16x16x16i8(int32_t x, int32_t y, stand_in::V4i c) {
    return __builtin_amdgcn_mfma_i32_16x16x16i8(x, y, c, 0, 0, 0);
}
CLARY_STAND_IN stand_in::V4f __builtin_mxc_mma_16x16x16f16(stand_in::V2u x, stand_in::V2u y, stand_in::V4f c) {
    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(stand_in::V4h, x),
                                                 __builtin_bit_cast(stand_in::V4h, y), c, 0, 0, 0);
}
CLARY_STAND_IN stand_in::V4f __builtin_mxc_mma_16x16x16bf16(stand_in::V2u x, stand_in::V2u y, stand_in::V4f c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(stand_in::V4s, x),
                                                     __builtin_bit_cast(stand_in::V4s, y), c, 0, 0, 0);
}
// What gfx90a lacks: named, because xcore1500's branches of the target are read, but not called.
__device__ stand_in::V4i __builtin_mxc_mma_16x16x32i8(stand_in::V2u x, stand_in::V2u y, stand_in::V4i c);
__device__ stand_in::V4f __builtin_mxc_mma_16x16x32f8(stand_in::V2u x, stand_in::V2u y, stand_in::V4f c);
__device__ uint32_t __builtin_mxc_cvt_pk4_f32tof8(stand_in::V4f x);
__device__ int64_t __builtin_mxc_load_shared_trans_4x16_i64(int64_t* from);

// -- memory: copies pass through registers here, which gives them up at once --
CLARY_STAND_IN void __builtin_mxc_ldg_b128_bsm_predicator(stand_in::V4i* to, const stand_in::V4i* from, int, bool, bool,
                                                          bool, bool, int a, int b, int) {
    if (a == b) *to = *from;
}
CLARY_STAND_IN void __builtin_mxc_arrive_gvmcnt(int) { asm volatile("" ::: "memory"); }
CLARY_STAND_IN void __builtin_mxc_arrive_bsmcnt(int) { asm volatile("" ::: "memory"); }
CLARY_STAND_IN void __builtin_mxc_barrier_inst() { __builtin_amdgcn_s_barrier(); }
CLARY_STAND_IN void __syncwave() { __builtin_amdgcn_wave_barrier(); }

// -- between lanes --
template <typename X>
CLARY_STAND_IN X __shfl_xor_sync(uint64_t, X x, int mask) {
    return __builtin_bit_cast(X,
                              __builtin_amdgcn_ds_bpermute((stand_in::lane() ^ mask) * 4, __builtin_bit_cast(int, x)));
}
CLARY_STAND_IN uint64_t __ballot_sync(uint64_t, bool predicate) {
    return __builtin_amdgcn_uicmp(static_cast<unsigned>(predicate), 0u, 33);
}
CLARY_STAND_IN uint32_t __builtin_mxc_mov_raw_shfl(uint32_t x, int, int, int, bool) {
    return static_cast<uint32_t>(__builtin_amdgcn_mov_dpp(static_cast<int>(x), 0x0b1, 0xf, 0xf, false));
}

// -- numbers --
struct __half {
    _Float16 value;
};
CLARY_STAND_IN __half __float2half_rn(float x) { return {static_cast<_Float16>(x)}; }
CLARY_STAND_IN float __half2float(__half x) { return static_cast<float>(x.value); }
CLARY_STAND_IN int __float2int_rn(float x) { return static_cast<int>(__builtin_rintf(x)); }
CLARY_STAND_IN uint32_t __builtin_mxc_cvt_pk_f32tobf16(stand_in::V2f x) {  // one instruction there: two to five here
    const uint32_t a = __builtin_bit_cast(uint32_t, x[0]), b = __builtin_bit_cast(uint32_t, x[1]);
    return (a + 0x8000) >> 16 | ((b + 0x8000) & 0xffff0000u);
}
CLARY_STAND_IN uint32_t __builtin_mxc_byte_perm(uint32_t high, uint32_t low, uint32_t select) {
    return __builtin_amdgcn_perm(high, low, select);
}
CLARY_STAND_IN float __builtin_mxc_rcpf(float x) { return __builtin_amdgcn_rcpf(x); }
CLARY_STAND_IN float __log2f(float x) { return __builtin_log2f(x); }
CLARY_STAND_IN int atomicMax(int* at, int x) { return __atomic_fetch_max(at, x, __ATOMIC_RELAXED); }

#undef CLARY_STAND_IN
// NOLINTEND(bugprone-reserved-identifier)
