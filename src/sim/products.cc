// SPDX-License-Identifier: Apache-2.0
#include "sim/products.h"

#include "numerics/formats.h"

namespace clary::sim {
namespace {

constexpr int kMaxElements = 16 * 64;  // of an operand

void unpack(gpu::Element type, const uint8_t* from, int count, int16_t* to) {
    switch (type) {
        case gpu::Element::kS8:
            for (int i = 0; i < count; ++i) to[i] = static_cast<int8_t>(from[i]);
            break;
        case gpu::Element::kU8:
            for (int i = 0; i < count; ++i) to[i] = from[i];
            break;
        default:  // kS4
            for (int i = 0; i < count; ++i) {
                const int nibble = from[i / 2] >> (i % 2 * 4) & 15;
                to[i] = static_cast<int16_t>((nibble ^ 8) - 8);
            }
    }
}

float element(gpu::Element type, const uint8_t* from, int i) {
    const auto half = [&] { return static_cast<uint16_t>(from[2 * i] | from[2 * i + 1] << 8); };
    switch (type) {
        case gpu::Element::kF16:
            return numerics::Fp16{half()}.to_float();
        case gpu::Element::kBf16:
            return numerics::Bf16{half()}.to_float();
        default:
            return numerics::E4m3{from[i]}.to_float();
    }
}

}  // namespace

void multiply_integers(gpu::Element query_type, gpu::Element other_type, const uint8_t* query, const uint8_t* other,
                       int queries, int others, int depth, int32_t* result) {
    int16_t q[kMaxElements], o[kMaxElements];
    unpack(query_type, query, queries * depth, q);
    unpack(other_type, other, others * depth, o);
    for (int row = 0; row < queries; ++row)
        for (int column = 0; column < others; ++column) {
            const int16_t* a = q + row * depth;
            const int16_t* b = o + column * depth;
            int32_t sum = 0;
            for (int k = 0; k < depth; ++k) sum += a[k] * b[k];
            int32_t& r = result[row * others + column];
            r = static_cast<int32_t>(static_cast<uint32_t>(r) + static_cast<uint32_t>(sum));
        }
}

void multiply_floats(gpu::Element type, const uint8_t* query, const uint8_t* other, int queries, int others, int depth,
                     float* result) {
    float transposed[kMaxElements];  // [depth][other]: the inner loop runs over results
    for (int column = 0; column < others; ++column)
        for (int k = 0; k < depth; ++k) transposed[k * others + column] = element(type, other, column * depth + k);
    for (int row = 0; row < queries; ++row)
        for (int k = 0; k < depth; ++k) {
            const float a = element(type, query, row * depth + k);
            const float* b = transposed + k * others;
            float* r = result + row * others;
            for (int column = 0; column < others; ++column) r[column] += a * b[column];
        }
}

}  // namespace clary::sim
