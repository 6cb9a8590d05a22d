// SPDX-License-Identifier: Apache-2.0
// Every definition is usable in a constant expression: tables of kernels are built from them at compile time. That
// this file compiles is the test.
#include <array>
#include <type_traits>

#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/formats.h"
#include "numerics/hadamard.h"
#include "numerics/nvfp4.h"
#include "numerics/permutation.h"
#include "numerics/scale_groups.h"

namespace clary::numerics {
namespace {

// Trivial types may lie in shared memory and in unions.
static_assert(std::is_trivial_v<Fp16> && std::is_trivial_v<Bf16> && std::is_trivial_v<E4m3> &&
              std::is_trivial_v<E5m2> && std::is_trivial_v<E2m1> && std::is_trivial_v<Ue4m3>);
static_assert(sizeof(Fp16) == 2 && sizeof(Bf16) == 2 && sizeof(E4m3) == 1 && sizeof(E5m2) == 1);

static_assert(Fp16::from_float(1.0f).bits == 0x3c00 && Fp16{0x3c00}.to_float() == 1.0f);
static_assert(Fp16::from_float(5.9604645e-8f).bits == 1 && Fp16{1}.to_float() == 0x1p-24f);
static_assert(Bf16::from_float(1.0f) == Bf16{0x3f80} && Bf16{0x3f80}.to_float() == 1.0f);
static_assert(E4m3::from_float(1000.0f).to_float() == 448.0f && E4m3::from_float(-0.0f).bits == 0x80);
static_assert(E5m2::from_float(1e9f).to_float() == 57344.0f);
static_assert(E2m1::from_float(-5.0f).to_float() == -4.0f && E2m1::from_float(0.25f).bits == 0);
static_assert(Ue4m3::from_float(-3.0f).bits == 0 && Ue4m3::from_float(1.0f).to_float() == 1.0f);
static_assert(round_half_even(2.5f) == 2.0f && round_half_even(-3.5f) == -4.0f && round_half_even(1e30f) == 1e30f);
static_assert(quantize_int8(-1e30f) == -127 && quantize_int4(6.5f) == 6);

static_assert(q_group(Granularity::kPerThread, kMmaFamily, 33) == 9 &&
              q_group_count(Granularity::kFine, kSm90Family, 65) == 128);
static_assert(k_group(Granularity::kFine, kMmaFamily, 70) == 7 &&
              k_group_count(Granularity::kPerWarp, kMmaFamily, 65) == 2);
static_assert(v_token(18) == 24 && v_position(24) == 18);

constexpr std::array<float, 4> rotated() {
    std::array<float, 4> x{4, 0, 0, 0};
    rotate(x.data(), 4);
    return x;
}
static_assert(rotated()[0] == 2.0f && rotated()[3] == 2.0f && hadamard_entry(4, 3, 3) == 0.5 &&
              hadamard_entry(96, 3, 80) == 0);

static_assert(q_base_scale(1.0f, 0.5f) == 32.0f && q_repeat(32.0f, 0.5f) == 64 && q_repeat(1.0f, 0.0f) == 127);
static_assert(k_scale_for_bias(1.0f, 0.0f, 1.0f, 1.0f) == 1.0f && bias_units(3.0f, bias_unit(1.0f, 0.5f, 2.0f)) == 3);
static_assert(digit(4064, 31) == 127 && digit(-4064, 0) == -127 && digit(1, 31) == 1 && digit(1, 0) == 0);
static_assert(v_weight(1.0f, 0.0f) == 240 && v_token_scale(1.0f, 30) == 0.5f);

constexpr Ue4m3 group_scale() {
    const float x[kNvfp4Group] = {6.0f};
    E2m1 codes[kNvfp4Group] = {};
    return nvfp4_quantize(x, codes);
}
static_assert(group_scale().to_float() == 1.0f && nvfp4_decode(E2m1{7}, Ue4m3{0x38}) == 6.0f);
static_assert(kPFp4RowMax == 2688.0f);

}  // namespace
}  // namespace clary::numerics
