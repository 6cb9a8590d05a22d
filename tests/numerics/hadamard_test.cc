// SPDX-License-Identifier: Apache-2.0
// The fast rotation against Sylvester's recursion, for every head dim 1..256.
#include "numerics/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace clary::numerics {
namespace {

constexpr int kLargestDim = 256;

// Signs of the n x n Sylvester matrix by its recursion [[H, H], [H, -H]].
std::vector<std::vector<int>> sylvester(int n) {
    std::vector<std::vector<int>> h{{1}};
    while (static_cast<int>(h.size()) < n) {
        const size_t m = h.size();
        std::vector<std::vector<int>> twice(2 * m, std::vector<int>(2 * m));
        for (size_t i = 0; i < 2 * m; ++i) {
            for (size_t j = 0; j < 2 * m; ++j) twice[i][j] = h[i % m][j % m] * (i >= m && j >= m ? -1 : 1);
        }
        h = twice;
    }
    return h;
}

// The whole matrix: blocks along the diagonal for the set bits of dim, highest first.
std::vector<std::vector<double>> expected_matrix(int dim) {
    const auto size = static_cast<size_t>(dim);
    std::vector<std::vector<double>> matrix(size, std::vector<double>(size, 0.0));
    size_t start = 0;
    for (int block = 256; block >= 1; block /= 2) {
        if ((dim & block) == 0) continue;
        const auto signs = sylvester(block);
        for (size_t i = 0; i < signs.size(); ++i) {
            for (size_t j = 0; j < signs.size(); ++j) {
                matrix[start + i][start + j] = signs[i][j] / std::sqrt(static_cast<double>(block));
            }
        }
        start += signs.size();
    }
    return matrix;
}

TEST(Hadamard, EntriesAndRotationEqualTheRecursion) {
    for (int dim = 1; dim <= kLargestDim; ++dim) {
        const auto expected = expected_matrix(dim);
        for (int i = 0; i < dim; ++i) {
            std::vector<double> unit(static_cast<size_t>(dim), 0.0);
            unit[static_cast<size_t>(i)] = 1;
            rotate(unit.data(), dim);
            for (int j = 0; j < dim; ++j) {
                const double entry = expected[static_cast<size_t>(i)][static_cast<size_t>(j)];
                ASSERT_NEAR(hadamard_entry(dim, i, j), entry, 1e-15) << dim << ' ' << i << ' ' << j;
                ASSERT_EQ(unit[static_cast<size_t>(j)], hadamard_entry(dim, i, j)) << dim << ' ' << i << ' ' << j;
            }
        }
    }
}

TEST(Hadamard, IsSymmetricOrthonormalAndItsOwnInverse) {
    // H = H^T and H H = I make H orthonormal.
    for (int dim = 1; dim <= kLargestDim; ++dim) {
        for (int i = 0; i < dim; ++i) {
            for (int j = 0; j < i; ++j) ASSERT_EQ(hadamard_entry(dim, i, j), hadamard_entry(dim, j, i));
            std::vector<double> unit(static_cast<size_t>(dim), 0.0);
            unit[static_cast<size_t>(i)] = 1;
            rotate(unit.data(), dim);
            rotate(unit.data(), dim);
            for (int j = 0; j < dim; ++j) ASSERT_NEAR(unit[static_cast<size_t>(j)], i == j ? 1 : 0, 1e-14) << dim;
        }
    }
}

TEST(Hadamard, FloatFollowsDoubleAndDotProductsStay) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    for (int dim = 1; dim <= kLargestDim; ++dim) {
        const auto size = static_cast<size_t>(dim);
        std::vector<double> a(size), b(size);
        std::vector<float> a_float(size);
        double dot_before = 0, norm = 0, dot_after = 0;
        for (size_t i = 0; i < size; ++i) {
            a_float[i] = static_cast<float>(normal(random));
            a[i] = static_cast<double>(a_float[i]);
            b[i] = normal(random);
            dot_before += a[i] * b[i];
            norm += a[i] * a[i];
        }
        rotate(a.data(), dim);
        rotate(b.data(), dim);
        rotate(a_float.data(), dim);
        for (size_t i = 0; i < size; ++i) {
            dot_after += a[i] * b[i];
            // At most 8 additions and a product of relative error 2^-24 each (the norm adds one): 10 * 2^-24 of |a|.
            ASSERT_NEAR(static_cast<double>(a_float[i]), a[i], 10 * std::ldexp(std::sqrt(norm), -24)) << dim;
        }
        ASSERT_NEAR(dot_after, dot_before, 1e-12 * (1 + norm)) << dim;
    }
}

TEST(Hadamard, AddsFromTheSmallestStrideUp) {
    // The order is part of the definition. 1e8 swallows 1 in fp32: with stride 1 first, 1 + 1 = 2 is lost in
    // 1e8 + 2 - 1e8 only where the large values meet it in the same pair.
    float x[4] = {1e8f, -1e8f, 1, 1};
    rotate(x, 4);
    EXPECT_EQ(x[0], 1.0f);  // ((1e8 - 1e8) + (1 + 1)) / 2; stride 2 first would give 0
    EXPECT_EQ(x[2], -1.0f);
}

// As lanes of a GPU do it, which hold a channel each.
TEST(Hadamard, SeenFromOneChannelItIsTheSame) {
    for (int dim = 1; dim <= 256; ++dim) {
        std::vector<float> x(static_cast<size_t>(dim));
        for (int i = 0; i < dim; ++i) x[static_cast<size_t>(i)] = std::sin(static_cast<float>(i * dim));
        std::vector<float> expected = x;
        rotate(expected.data(), dim);
        for (int stride = 1; stride < dim; stride *= 2) {
            const std::vector<float> before = x;
            for (int i = 0; i < dim; ++i) {
                if (!hadamard_meets(i, dim, stride)) continue;
                const float mine = before[static_cast<size_t>(i)], theirs = before[static_cast<size_t>(i ^ stride)];
                x[static_cast<size_t>(i)] = (i & stride) != 0 ? theirs - mine : mine + theirs;
            }
        }
        for (int i = 0; i < dim; ++i)
            ASSERT_EQ(x[static_cast<size_t>(i)] * hadamard_norm_at<float>(i, dim), expected[static_cast<size_t>(i)])
                << dim << ' ' << i;
    }
}

TEST(Hadamard, DimZeroTouchesNothing) {
    float x = 3;
    rotate(&x, 0);
    EXPECT_EQ(x, 3.0f);
    rotate(&x, 1);
    EXPECT_EQ(x, 3.0f);
}

}  // namespace
}  // namespace clary::numerics
