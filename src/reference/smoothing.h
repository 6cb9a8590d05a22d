// SPDX-License-Identifier: Apache-2.0
// The preparation of Q, K and V before quantization: gathering, means, subtraction, rotation.
#pragma once

#include <cstdint>
#include <vector>

#include "core/desc.h"

namespace clary::reference {

// The tokens of one (sequence, head) in fp32.
struct Tokens {
    int64_t count = 0, dim = 0;
    std::vector<float> values;  // (count, dim)
    std::vector<char> finite;  // (count): 0 where the token holds a value that is not finite, now or at any step before

    float* row(int64_t t) { return values.data() + t * dim; }
    const float* row(int64_t t) const { return values.data() + t * dim; }
    bool is_finite(int64_t t) const { return finite[static_cast<size_t>(t)] != 0; }
    // Takes note of tokens that overflowed.
    void check_finite();
    float amax(int64_t t) const;
};

Tokens gather(const AttentionDesc& desc, const Operand& operand, int64_t b, int64_t head, const Sequence& sequence,
              bool is_q);

// The mean of each channel over its finite values in tokens [begin, end) of all of `parts`: summed in float64, rounded
// to fp32. 0 where there are none.
std::vector<float> mean(const std::vector<Tokens>& parts, int64_t begin, int64_t end);

// x - c for tokens [begin, end), in fp32.
void subtract(const std::vector<float>& c, int64_t begin, int64_t end, Tokens* tokens);
// numerics::rotate on every token, in fp32.
void rotate(Tokens* tokens);

double dot(const float* x, const float* y, int64_t dim);

}  // namespace clary::reference
