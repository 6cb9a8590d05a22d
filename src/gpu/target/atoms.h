// SPDX-License-Identifier: Apache-2.0
// Matrix instructions as tables. An atom computes result[query][other] += sum over depth of query[query][depth] *
// other[other][depth] for one wave, where `other` is a key (S = Q K^T) or a channel (O = P V). A table says which
// element a lane holds in element i of each operand and of the result:
//
//   Atom::query_at(lane, i)  -> {query, depth}       kQueryElements per lane
//   Atom::other_at(lane, i)  -> {other, depth}       kOtherElements per lane
//   Atom::result_at(lane, i) -> {query, other}       kResults per lane
//
// NVIDIA's D = A B has queries as A's rows. MetaX issues its builtin with the operands exchanged, so that queries are the
// columns and a lane owns a single query; the table hides that. Sources: PTX ISA, "Matrix Fragments for mma.m16n8k*";
// for MetaX the vendor's cute traits and probes on a C500 (D[i] = D(4 (lane / 16) + i, lane % 16)).
//
// Elements of 8 bits lie 4 to a 32-bit register, of 16 bits 2, of 4 bits 8, in rising order from the low end.
#pragma once

#include "numerics/host_device.h"

namespace clary::gpu {

struct Coord {
    int row, col;  // {query, depth}, {other, depth} or {query, other}
    friend constexpr bool operator==(const Coord&, const Coord&) = default;
};

// What the elements are; the sum of products is exact for the integers.
enum class Element { kS8, kU8, kS4, kE4m3, kF16, kBf16, kS32, kF32 };

CLARY_HD constexpr int element_bits(Element e) {
    switch (e) {
        case Element::kS4:
            return 4;
        case Element::kS8:
        case Element::kU8:
        case Element::kE4m3:
            return 8;
        case Element::kF16:
        case Element::kBf16:
            return 16;
        default:
            return 32;
    }
}

// mma.sync of NVIDIA: kQueries 16 (8 on sm75's integer atom) x 8, kDepth elements of kBits bits. A lane holds runs of
// 32 / kBits consecutive depths, one register each.
template <int kQueries_, int kDepth_, Element kQuery_, Element kOther_, Element kResult_>
struct MmaSync {
    static constexpr int kLanes = 32;
    static constexpr int kQueries = kQueries_, kOthers = 8, kDepth = kDepth_;
    static constexpr Element kQuery = kQuery_, kOther = kOther_, kResult = kResult_;
    static constexpr int kRun = 32 / element_bits(kQuery);  // elements of a register
    static_assert(element_bits(kQuery) == element_bits(kOther));
    static constexpr int kQueryElements = kQueries * kDepth / kLanes;
    static constexpr int kOtherElements = kOthers * kDepth / kLanes;
    static constexpr int kResults = kQueries * kOthers / kLanes;

    // Registers go down the rows first (8 apart), then along the depth (4 runs apart).
    CLARY_HD static constexpr Coord query_at(int lane, int i) {
        const int reg = i / kRun, halves = kQueries / 8;
        return {lane / 4 + 8 * (reg % halves), (reg / halves * 4 + lane % 4) * kRun + i % kRun};
    }
    CLARY_HD static constexpr Coord other_at(int lane, int i) {
        return {lane / 4, (i / kRun * 4 + lane % 4) * kRun + i % kRun};
    }
    CLARY_HD static constexpr Coord result_at(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }
    // Lanes that hold parts of the same query: xor masks 1 and 2.
    static constexpr int kRowMasks[2] = {1, 2};
};

// MetaX: 16 x 16 results, a run of kDepth / 4 consecutive depths per lane.
template <int kDepth_, Element kQuery_, Element kOther_, Element kResult_>
struct MetaxMma {
    static constexpr int kLanes = 64;
    static constexpr int kQueries = 16, kOthers = 16, kDepth = kDepth_;
    static constexpr Element kQuery = kQuery_, kOther = kOther_, kResult = kResult_;
    static constexpr int kRun = 32 / element_bits(kQuery);
    static constexpr int kQueryElements = kDepth / 4, kOtherElements = kDepth / 4, kResults = 4;

    CLARY_HD static constexpr Coord query_at(int lane, int i) { return {lane % 16, lane / 16 * kQueryElements + i}; }
    CLARY_HD static constexpr Coord other_at(int lane, int i) { return {lane % 16, lane / 16 * kOtherElements + i}; }
    CLARY_HD static constexpr Coord result_at(int lane, int i) { return {lane % 16, lane / 16 * 4 + i}; }
    static constexpr int kRowMasks[2] = {16, 32};
};

// -- the instructions in use --
using MmaM8N8K16S8 = MmaSync<8, 16, Element::kS8, Element::kS8, Element::kS32>;     // sm75
using MmaM8N8K16U8S8 = MmaSync<8, 16, Element::kU8, Element::kS8, Element::kS32>;   // sm75
using MmaM16N8K8F16 = MmaSync<16, 8, Element::kF16, Element::kF16, Element::kF32>;  // sm75
using MmaM16N8K8F16F16 = MmaSync<16, 8, Element::kF16, Element::kF16, Element::kF16>;
using MmaM16N8K32S8 = MmaSync<16, 32, Element::kS8, Element::kS8, Element::kS32>;     // sm80
using MmaM16N8K32U8S8 = MmaSync<16, 32, Element::kU8, Element::kS8, Element::kS32>;   // sm80
using MmaM16N8K64S4 = MmaSync<16, 64, Element::kS4, Element::kS4, Element::kS32>;     // sm80, sm89; emulated later
using MmaM16N8K16F16 = MmaSync<16, 16, Element::kF16, Element::kF16, Element::kF32>;  // sm80
using MmaM16N8K16F16F16 = MmaSync<16, 16, Element::kF16, Element::kF16, Element::kF16>;
using MmaM16N8K16Bf16 = MmaSync<16, 16, Element::kBf16, Element::kBf16, Element::kF32>;
using MmaM16N8K32E4m3 = MmaSync<16, 32, Element::kE4m3, Element::kE4m3, Element::kF32>;  // sm89
using MmaM16N8K32E4m3F16 = MmaSync<16, 32, Element::kE4m3, Element::kE4m3, Element::kF16>;
using MetaxK16S8 = MetaxMma<16, Element::kS8, Element::kS8, Element::kS32>;  // xcore1000
using MetaxK16F16 = MetaxMma<16, Element::kF16, Element::kF16, Element::kF32>;
using MetaxK16Bf16 = MetaxMma<16, Element::kBf16, Element::kBf16, Element::kF32>;
using MetaxK32S8 = MetaxMma<32, Element::kS8, Element::kS8, Element::kS32>;  // xcore1500
using MetaxK32E4m3 = MetaxMma<32, Element::kE4m3, Element::kE4m3, Element::kF32>;

// Registers of 32 bits per lane. fp16 results lie two to a register.
template <class Atom>
inline constexpr int kQueryRegisters = Atom::kQueryElements / Atom::kRun;
template <class Atom>
inline constexpr int kOtherRegisters = Atom::kOtherElements / Atom::kRun;
template <class Atom>
inline constexpr int kResultRegisters = Atom::kResults* element_bits(Atom::kResult) / 32;

}  // namespace clary::gpu
