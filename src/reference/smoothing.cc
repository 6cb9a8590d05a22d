// SPDX-License-Identifier: Apache-2.0
#include "reference/smoothing.h"

#include <algorithm>
#include <cmath>

#include "numerics/hadamard.h"
#include "reference/rows.h"

namespace clary::reference {

void Tokens::check_finite() {
    for (int64_t t = 0; t < count; ++t)
        for (int64_t d = 0; d < dim; ++d)
            if (!std::isfinite(row(t)[d])) finite[static_cast<size_t>(t)] = 0;
}

float Tokens::amax(int64_t t) const {
    float largest = 0;
    for (int64_t d = 0; d < dim; ++d) largest = std::max(largest, std::abs(row(t)[d]));
    return largest;
}

Tokens gather(const AttentionDesc& desc, const Operand& operand, int64_t b, int64_t head, const Sequence& sequence,
              bool is_q) {
    Tokens tokens;
    tokens.count = is_q ? sequence.q_len : sequence.kv_len;
    tokens.dim = &operand == &desc.v ? desc.head_dim_v : desc.head_dim;
    tokens.values.resize(static_cast<size_t>(tokens.count * tokens.dim));
    tokens.finite.assign(static_cast<size_t>(tokens.count), 1);
    const TokenAddress address = token_address(desc, operand, b, head, sequence, is_q);
    for (int64_t t = 0; t < tokens.count; ++t) load_token(operand, address(t), tokens.dim, tokens.row(t));
    tokens.check_finite();
    return tokens;
}

std::vector<float> mean(const std::vector<Tokens>& parts, int64_t begin, int64_t end) {
    const int64_t dim = parts.front().dim;
    std::vector<float> result(static_cast<size_t>(dim));
    for (int64_t d = 0; d < dim; ++d) {
        double sum = 0;
        int64_t count = 0;
        for (const Tokens& tokens : parts) {
            for (int64_t t = begin; t < end; ++t) {
                if (!std::isfinite(tokens.row(t)[d])) continue;
                sum += tokens.row(t)[d];
                ++count;
            }
        }
        if (count > 0) result[static_cast<size_t>(d)] = static_cast<float>(sum / static_cast<double>(count));
    }
    return result;
}

void subtract(const std::vector<float>& c, int64_t begin, int64_t end, Tokens* tokens) {
    for (int64_t t = begin; t < end; ++t)
        for (int64_t d = 0; d < tokens->dim; ++d) tokens->row(t)[d] -= c[static_cast<size_t>(d)];
}

void rotate(Tokens* tokens) {
    for (int64_t t = 0; t < tokens->count; ++t) numerics::rotate(tokens->row(t), static_cast<int>(tokens->dim));
}

double dot(const float* x, const float* y, int64_t dim) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += static_cast<double>(x[d]) * y[d];
    return sum;
}

}  // namespace clary::reference
