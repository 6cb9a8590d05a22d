// SPDX-License-Identifier: Apache-2.0
// What a matrix instruction computes, on plain row-major operands.
#pragma once

#include <cstdint>

#include "gpu/target/atoms.h"

namespace clary::sim {

// result[q][o] += sum over depth of query[q][depth] * other[o][depth]. Operands are packed as in memory: depth elements
// of a row in rising order, two of 4 bits to a byte, the low nibble first. Integers: exact in 32 bits (wrapping).
void multiply_integers(gpu::Element query_type, gpu::Element other_type, const uint8_t* query, const uint8_t* other,
                       int queries, int others, int depth, int32_t* result);

// Each product is exact in fp32; they are added in fp32 one after the other, in the order of depth, to the result.
// The chips add in wider or narrower orders of their own: comparisons with them need a tolerance.
void multiply_floats(gpu::Element type, const uint8_t* query, const uint8_t* other, int queries, int others, int depth,
                     float* result);

}  // namespace clary::sim
