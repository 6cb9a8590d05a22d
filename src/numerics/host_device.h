// SPDX-License-Identifier: Apache-2.0
// What lets one numerics header serve host code, constant expressions and CUDA or MXMACA kernels alike.
#pragma once

#include <type_traits>

#if defined(__CUDACC__) || defined(__MACACC__)
#define CLARY_HD __host__ __device__
#elif defined(CLARY_FORCE_INLINE)
// Files compiled for one instruction set leave no shared inline functions behind.
#define CLARY_HD [[gnu::always_inline]]
#else
#define CLARY_HD
#endif

#ifdef __FAST_MATH__
#error "src/numerics decides codes by exact float rounding: do not compile it with -ffast-math"
#endif

namespace clary::numerics {

// std::bit_cast is a host function to nvcc unless it runs with --expt-relaxed-constexpr; the builtin is neither.
template <typename To, typename From>
CLARY_HD constexpr To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    static_assert(std::is_trivially_copyable_v<To> && std::is_trivially_copyable_v<From>);
    return __builtin_bit_cast(To, from);
}

}  // namespace clary::numerics
