// SPDX-License-Identifier: Apache-2.0
// Tests of one tier's Vec against scalar code; included by vec_<tier>_test.cc, which is compiled for that tier.
// CLARY_VEC_TIER: the tier's name. Values are checked in plain functions whose failures a common test reports, so that
// nothing of GoogleTest is compiled for an instruction set the machine may lack.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "numerics/formats.h"
#include "numerics/permutation.h"

namespace clary::cpu {

template <class V>
struct VecTest {
    using F = typename V::F;
    using I = typename V::I;
    static constexpr int kLanes = V::kLanes;
    alignas(64) float in[kLanes], out[kLanes];
    alignas(64) int32_t integers[kLanes];
    char failure[200] = "";

    bool fail(const char* what, double at, double got, double expected) {
        std::snprintf(failure, sizeof(failure), "%s(%.9g) is %.9g, expected %.9g", what, at, got, expected);
        return false;
    }

    template <int Degree>
    bool exp2() {
        const double tolerance = Degree == 4 ? 3e-6 : 1.5e-7;  // polynomial.h; fp32 rounding of the result
        for (double x = -125.9; x < 65; x += 0.00713 * kLanes) {
            for (int i = 0; i < kLanes; ++i) in[i] = static_cast<float>(x + 0.00713 * i);
            V::store(out, V::template exp2<Degree>(V::load(in)));
            for (int i = 0; i < kLanes; ++i) {
                const double expected = std::exp2(static_cast<double>(in[i]));
                if (!(std::fabs(static_cast<double>(out[i]) - expected) <= tolerance * expected))
                    return fail("exp2", static_cast<double>(in[i]), static_cast<double>(out[i]), expected);
            }
        }
        const float special[] = {-std::numeric_limits<float>::infinity(), -1e30f, -200.0f, -151.0f, -149.0f, -126.1f};
        for (const float x : special) {
            for (float& lane : in) lane = x;
            V::store(out, V::template exp2<Degree>(V::load(in)));
            if (out[kLanes - 1] != 0) return fail("exp2", static_cast<double>(x), static_cast<double>(out[0]), 0);
        }
        for (float& lane : in) lane = std::numeric_limits<float>::quiet_NaN();
        V::store(out, V::template exp2<Degree>(V::load(in)));
        if (!std::isnan(out[0])) return fail("exp2", NAN, static_cast<double>(out[0]), NAN);
        // Exact at whole numbers, so that equal scores give P of exactly 1 (Degree 6).
        for (float& lane : in) lane = -3;
        V::store(out, V::template exp2<Degree>(V::load(in)));
        if (Degree == 6 && out[0] != 0.125f) return fail("exp2", -3, static_cast<double>(out[0]), 0.125);
        return true;
    }

    bool round() {
        for (float x = -300; x < 300; x += 0.25f * kLanes) {
            for (int i = 0; i < kLanes; ++i) in[i] = x + 0.25f * static_cast<float>(i);
            V::store(integers, V::round(V::load(in)));
            for (int i = 0; i < kLanes; ++i) {
                const float expected = numerics::round_half_even(in[i]);
                if (static_cast<float>(integers[i]) != expected)
                    return fail("round", static_cast<double>(in[i]), integers[i], static_cast<double>(expected));
            }
        }
        return true;
    }

    // fp16 and bf16, from and to: every 16-bit pattern there and back, and ties.
    bool half() {
        alignas(64) uint16_t bits[kLanes], back[kLanes];
        for (const DType dtype : {DType::kF16, DType::kBF16})
            for (int first = 0; first < 65536; first += kLanes) {
                for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<uint16_t>(first + i);
                V::store(out, V::load16(bits, dtype));
                V::store16(back, dtype, V::load(out));
                for (int i = 0; i < kLanes; ++i) {
                    const float expected =
                        dtype == DType::kF16 ? numerics::Fp16{bits[i]}.to_float() : numerics::Bf16{bits[i]}.to_float();
                    if (std::isnan(expected)) {
                        if (!std::isnan(out[i]))
                            return fail("load16 of NaN", bits[i], static_cast<double>(out[i]), NAN);
                        continue;
                    }
                    if (out[i] != expected)
                        return fail("load16", bits[i], static_cast<double>(out[i]), static_cast<double>(expected));
                    if (back[i] != bits[i]) return fail("store16", bits[i], back[i], bits[i]);
                }
            }
        uint32_t state = 12345;
        for (int n = 0; n < 20000; ++n) {
            for (float& lane : in) {
                state = state * 1664525 + 1013904223;
                // Around fp16's range, every eighth on a tie of bf16.
                lane = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), static_cast<int>(state >> 27) - 45);
                if (n % 8 == 0) {
                    uint32_t pattern;
                    __builtin_memcpy(&pattern, &lane, 4);
                    pattern = (pattern & 0xffff0000u) | 0x8000u;
                    __builtin_memcpy(&lane, &pattern, 4);
                }
            }
            alignas(64) float fp16[kLanes], bf16[kLanes];
            V::store(fp16, V::round_fp16(V::load(in)));
            V::store(bf16, V::round_bf16(V::load(in)));
            for (int i = 0; i < kLanes; ++i) {
                const float f = numerics::Fp16::from_float(in[i]).to_float(),
                            b = numerics::Bf16::from_float(in[i]).to_float();
                if (fp16[i] != f)
                    return fail("round_fp16", static_cast<double>(in[i]), static_cast<double>(fp16[i]),
                                static_cast<double>(f));
                if (bf16[i] != b)
                    return fail("round_bf16", static_cast<double>(in[i]), static_cast<double>(bf16[i]),
                                static_cast<double>(b));
            }
        }
        return true;
    }

    bool transpose() {
        alignas(64) float from[kLanes * (kLanes + 3)], to[kLanes * (kLanes + 5)];
        for (int i = 0; i < kLanes * (kLanes + 3); ++i) from[i] = static_cast<float>(i);
        V::transpose(from, kLanes + 3, to, kLanes + 5);
        for (int i = 0; i < kLanes; ++i)
            for (int j = 0; j < kLanes; ++j)
                if (to[j * (kLanes + 5) + i] != from[i * (kLanes + 3) + j])
                    return fail("transpose", i * 100 + j, static_cast<double>(to[j * (kLanes + 5) + i]),
                                static_cast<double>(from[i * (kLanes + 3) + j]));
        return true;
    }

    // Bytes: codes to words, P to operands and its weighted sum, rows of V into the order of their positions.
    bool bytes() {
        alignas(64) int32_t lane[4][kLanes], words[kLanes];
        for (int t = 0; t < 4; ++t)
            for (int i = 0; i < kLanes; ++i) lane[t][i] = (i * 37 + t * 53) % 255 - 127;
        V::store(words, V::pack_codes(V::load(lane[0]), V::load(lane[1]), V::load(lane[2]), V::load(lane[3])));
        for (int i = 0; i < kLanes; ++i)
            for (int t = 0; t < 4; ++t) {
                const auto byte = static_cast<int8_t>(static_cast<uint32_t>(words[i]) >> (8 * t));
                if (byte != lane[t][i]) return fail("pack_codes", i * 10 + t, byte, lane[t][i]);
            }
        int8_t permuted[4 * kLanes];
        V::store_v_codes(permuted, V::load(lane[0]), V::load(lane[1]), V::load(lane[2]), V::load(lane[3]));
        for (int i = 0; i < 4 * kLanes; ++i) {
            const auto token = static_cast<int>(numerics::v_token(i));
            const int expected = lane[token / kLanes][token % kLanes];
            if (permuted[i] != expected) return fail("store_v_codes", i, permuted[i], expected);
        }
        // P outside 0..255 saturates; weights up to 240.
        alignas(64) int32_t operand[4 * kLanes];
        const uint8_t weights[16] = {15, 240, 77, 0, 1, 254, 128, 127, 30, 34, 50, 200, 99, 16, 239, 3};
        for (int t = 0; t < 4; ++t)
            for (int i = 0; i < kLanes; ++i)
                lane[t][i] = i == 0 ? -5 : i == 1 ? 256 : i == 2 ? INT32_MIN : (i * 71 + t * 29) % 256;
        V::store_p(operand, kLanes, V::load(lane[0]), V::load(lane[1]), V::load(lane[2]), V::load(lane[3]));
        alignas(64) int32_t weight[16];
        V::weight_operands(weights, 16, weight);
        const auto saturated = [&](int t, int i) { return lane[t][i] < 0 ? 0 : lane[t][i] > 255 ? 255 : lane[t][i]; };
        I sum = V::zero();
        for (int step = 0; step < 4 / V::kDot; ++step)
            for (int part = 0; part < V::kWeightParts; ++part)
                sum = V::dot(sum, V::load(operand + step * kLanes), V::set1(weight[part * (16 / V::kDot) + step]));
        V::store(words, sum);
        for (int i = 0; i < kLanes; ++i) {
            int expected = 0;
            for (int t = 0; t < 4; ++t) expected += saturated(t, i) * weights[t];
            if (words[i] != expected) return fail("weights", i, words[i], expected);
        }
        // 16 tokens of each part's query, in the order of V's positions, against weights in that order.
        V::store_p_run(operand, kLanes, V::load(lane[0]), V::load(lane[1]), V::load(lane[2]), V::load(lane[3]));
        sum = V::zero();
        for (int step = 0; step < 4 / V::kDot; ++step)
            for (int part = 0; part < V::kWeightParts; ++part)
                sum = V::dot(sum, V::load(operand + step * kLanes),
                             V::spread4(weight + part * (16 / V::kDot) + 4 * step));
        V::store(words, sum);
        for (int first = 0; first < kLanes; first += 4) {
            int expected = 0, got = 0;
            for (int i = 0; i < 4; ++i) got += words[first + i];
            for (int position = 0; position < 16; ++position) {
                const auto token = static_cast<int>(numerics::v_token(position));
                expected += saturated(token / 4, first + token % 4) * weights[position];
            }
            if (got != expected) return fail("store_p_run", first, got, expected);
        }
        return true;
    }

    // Operations within parts of four lanes.
    bool parts() {
        alignas(64) float from[4][kLanes];
        alignas(64) int32_t whole[4][kLanes];
        for (int t = 0; t < 4; ++t)
            for (int i = 0; i < kLanes; ++i) {
                whole[t][i] = t * 1000 + i * i;
                from[t][i] = static_cast<float>(whole[t][i]);
            }
        V::store(integers, V::sum4(V::load(whole[0]), V::load(whole[1]), V::load(whole[2]), V::load(whole[3])));
        V::store(out, V::sum4(V::load(from[0]), V::load(from[1]), V::load(from[2]), V::load(from[3])));
        for (int i = 0; i < kLanes; ++i) {
            int expected = 0;
            for (int j = 0; j < 4; ++j) expected += whole[i % 4][i / 4 * 4 + j];
            if (integers[i] != expected || out[i] != static_cast<float>(expected))
                return fail("sum4", i, static_cast<double>(out[i]), expected);
        }
        V::store(integers, V::spread4(whole[1]));
        V::store(out, V::spread4(from[1]));
        for (int i = 0; i < kLanes; ++i)
            if (integers[i] != whole[1][i % 4] || out[i] != from[1][i % 4])
                return fail("spread4", i, static_cast<double>(out[i]), static_cast<double>(from[1][i % 4]));
        const auto moved = [&](const char* name, F x, auto&& source) {
            V::store(out, x);
            for (int i = 0; i < kLanes; ++i)
                if (const float expected = from[0][i / 4 * 4 + source(i % 4)]; out[i] != expected)
                    return fail(name, i, static_cast<double>(out[i]), static_cast<double>(expected));
            return true;
        };
        const F x = V::load(from[0]);
        return moved("exchange<1>", V::template exchange<1>(x), [](int i) { return i ^ 1; }) &&
               moved("exchange<2>", V::template exchange<2>(x), [](int i) { return i ^ 2; }) &&
               moved("splat4<0>", V::template splat4<0>(x), [](int) { return 0; }) &&
               moved("splat4<3>", V::template splat4<3>(x), [](int) { return 3; });
    }

    bool all() { return exp2<4>() && exp2<6>() && round() && half() && transpose() && bytes() && parts(); }
};

}  // namespace clary::cpu
