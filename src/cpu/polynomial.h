// SPDX-License-Identifier: Apache-2.0
// 2^r on [-1/2, 1/2]: minimax polynomials of relative error, from a Remez exchange in double.
#pragma once

namespace clary::cpu {

// Degree 4: 2.6e-6, for P that is rounded to 8 bits or fp16. Degree 6: 2e-9 before fp32 rounding, exact at r = 0.
template <int Degree, typename V>
[[gnu::always_inline]] inline typename V::F polynomial(typename V::F r) {
    static_assert(Degree == 4 || Degree == 6);
    typename V::F sum;
    if constexpr (Degree == 4) {
        sum = V::fma(V::set1(0x1.3997d6p-7f), r, V::set1(0x1.ca1440p-5f));
        sum = V::fma(sum, r, V::set1(0x1.ec06dap-3f));
        sum = V::fma(sum, r, V::set1(0x1.62e0dcp-1f));
        return V::fma(sum, r, V::set1(0x1.ffffe8p-1f));
    } else {
        sum = V::fma(V::set1(0x1.41d334p-13f), r, V::set1(0x1.5f456ap-10f));
        sum = V::fma(sum, r, V::set1(0x1.3b2dbcp-7f));
        sum = V::fma(sum, r, V::set1(0x1.c6aed4p-5f));
        sum = V::fma(sum, r, V::set1(0x1.ebfbdap-3f));
        sum = V::fma(sum, r, V::set1(0x1.62e430p-1f));
        return V::fma(sum, r, V::set1(1.0f));
    }
}

}  // namespace clary::cpu
