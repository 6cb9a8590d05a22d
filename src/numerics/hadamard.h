// SPDX-License-Identifier: Apache-2.0
// Rotation of head vectors by an orthonormal Hadamard matrix: it spreads loud channels over all of them before
// quantization, and leaves every q.k unchanged when Q and K are both rotated.
//
// For a head dim that is no power of two the matrix is block diagonal, the block sizes being the binary expansion of
// the dim from largest to smallest: 96 = H64 + H32, 72 = H64 + H8, 1 = identity. Within a block of n channels entry
// (i, j) is (-1)^popcount(i & j) / sqrt(n), Sylvester's matrix. It is symmetric and orthonormal, so
// the rotation is its own inverse.
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace clary::numerics {

// 1 / sqrt(n) for a power of two n: exact where log2 n is even.
template <typename T>
CLARY_HD constexpr T hadamard_norm(int n) {
    T norm = 1;
    for (; n >= 4; n /= 4) norm *= T(0.5);
    return n == 2 ? norm * T(0.70710678118654752440) : norm;
}

// The largest power of two that is at most n, n >= 1: the size of the block that starts where n channels are left.
CLARY_HD constexpr int hadamard_block(int n) {
    int block = 1;
    while (block <= n / 2) block *= 2;
    return block;
}

// Seen from one channel i of dim: whether it meets a partner at this stride, and the norm of its block, which is that of the
// highest bit in which i and dim differ. Channels from dim on meet channels from dim on.
CLARY_HD constexpr bool hadamard_meets(int i, int dim, int stride) { return (i ^ dim) >= 2 * stride; }
template <typename T>
CLARY_HD constexpr T hadamard_norm_at(int i, int dim) {
    return hadamard_norm<T>(hadamard_block((i ^ dim) > 0 ? i ^ dim : 1));
}

// Sum and difference, in place.
template <typename T>
CLARY_HD constexpr void butterfly(T& a, T& b) {
    const T sum = a + b;
    b = a - b;
    a = sum;
}

// Rotates the vector x of `dim` >= 0 channels in place, in T (float or double). The inverse is the same function.
// The order of operations is part of the definition: butterflies of stride 1, 2, 4, ... (sum, difference), then one
// multiplication by the norm; a backend that keeps to it gets the same bits.
template <typename T>
CLARY_HD constexpr void rotate(T* x, int dim) {
    static_assert(std::is_floating_point_v<T>);
    for (int start = 0; start < dim;) {
        const int block = hadamard_block(dim - start);
        for (int stride = 1; stride < block; stride *= 2) {
            for (int i = start; i < start + block; ++i) {
                if (((i - start) & stride) == 0) butterfly(x[i], x[i + stride]);
            }
        }
        const T norm = hadamard_norm<T>(block);
        for (int i = start; i < start + block; ++i) x[i] *= norm;
        start += block;
    }
}

// Entry (i, j) of the dim x dim matrix, 0 <= i, j < dim: the definition that rotate() computes fast.
CLARY_HD constexpr double hadamard_entry(int dim, int i, int j) {
    int start = 0, block = hadamard_block(dim);
    while (i >= start + block) {
        start += block;
        block = hadamard_block(dim - start);
    }
    if (j < start || j >= start + block) return 0;
    int common = (i - start) & (j - start);
    bool odd = false;
    for (; common != 0; common &= common - 1) odd = !odd;
    return odd ? -hadamard_norm<double>(block) : hadamard_norm<double>(block);
}

}  // namespace clary::numerics
