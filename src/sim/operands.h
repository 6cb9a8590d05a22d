// SPDX-License-Identifier: Apache-2.0
// An atom's product for a whole wave: registers of all lanes are put together into plain matrices by the atom's tables,
// multiplied, and the results dealt out again.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "gpu/target/atoms.h"
#include "numerics/formats.h"
#include "sim/products.h"

namespace clary::sim {

// One side of an atom, so that both are handled by the same code.
template <class Atom>
struct QueryOperand {
    static constexpr int kRegisters = gpu::kQueryRegisters<Atom>, kRun = Atom::kRun, kRows = Atom::kQueries;
    static constexpr gpu::Coord at(int lane, int i) { return Atom::query_at(lane, i); }
};
template <class Atom>
struct OtherOperand {
    static constexpr int kRegisters = gpu::kOtherRegisters<Atom>, kRun = Atom::kRun, kRows = Atom::kOthers;
    static constexpr gpu::Coord at(int lane, int i) { return Atom::other_at(lane, i); }
};

// Byte offsets of each lane's registers in the row-major matrix. A register holds kRun consecutive depths of a row.
template <class Operand, int kLanes, int kDepth>
inline constexpr auto kOffsets = [] {
    std::array<uint16_t, static_cast<size_t>(kLanes * Operand::kRegisters)> offsets{};
    for (int lane = 0; lane < kLanes; ++lane)
        for (int reg = 0; reg < Operand::kRegisters; ++reg) {
            const gpu::Coord first = Operand::at(lane, reg * Operand::kRun);
            for (int i = 1; i < Operand::kRun; ++i)
                if (Operand::at(lane, reg * Operand::kRun + i) != gpu::Coord{first.row, first.col + i})
                    throw "a register's elements are not consecutive";
            offsets[static_cast<size_t>(lane * Operand::kRegisters + reg)] =
                static_cast<uint16_t>((first.row * kDepth + first.col) * 4 / Operand::kRun);
        }
    return offsets;
}();

template <class Operand, int kLanes, int kDepth>
std::array<uint8_t, static_cast<size_t>(Operand::kRows* kDepth * 4 / Operand::kRun)> gather(
    const uint32_t* const* registers) {
    std::array<uint8_t, static_cast<size_t>(Operand::kRows * kDepth * 4 / Operand::kRun)> matrix;
    const uint16_t* offset = kOffsets<Operand, kLanes, kDepth>.data();
    for (int lane = 0; lane < kLanes; ++lane)
        for (int reg = 0; reg < Operand::kRegisters; ++reg) std::memcpy(&matrix[*offset++], registers[lane] + reg, 4);
    return matrix;
}

// results[lane] += the lane's part of queries times others. fp16 results are added in fp32 and rounded once.
template <class Atom>
void multiply(const uint32_t* const* queries, const uint32_t* const* others, void* const* results) {
    constexpr bool kHalf = Atom::kResult == gpu::Element::kF16;
    using R = std::conditional_t<Atom::kResult == gpu::Element::kS32, int32_t, float>;
    const auto q = gather<QueryOperand<Atom>, Atom::kLanes, Atom::kDepth>(queries);
    const auto o = gather<OtherOperand<Atom>, Atom::kLanes, Atom::kDepth>(others);
    std::array<R, static_cast<size_t>(Atom::kQueries * Atom::kOthers)> dense;
    const auto for_results = [&](auto visit) {
        for (int lane = 0; lane < Atom::kLanes; ++lane)
            for (int i = 0; i < Atom::kResults; ++i) {
                const gpu::Coord at = Atom::result_at(lane, i);
                visit(dense[static_cast<size_t>(at.row * Atom::kOthers + at.col)], lane, i);
            }
    };
    for_results([&](R& d, int lane, int i) {
        if constexpr (kHalf) {
            numerics::Fp16 half;
            std::memcpy(&half, static_cast<const char*>(results[lane]) + 2 * i, 2);
            d = half.to_float();
        } else {
            std::memcpy(&d, static_cast<const char*>(results[lane]) + 4 * i, 4);
        }
    });
    if constexpr (Atom::kResult == gpu::Element::kS32)
        multiply_integers(Atom::kQuery, Atom::kOther, q.data(), o.data(), Atom::kQueries, Atom::kOthers, Atom::kDepth,
                          dense.data());
    else
        multiply_floats(Atom::kQuery, q.data(), o.data(), Atom::kQueries, Atom::kOthers, Atom::kDepth, dense.data());
    for_results([&](const R& d, int lane, int i) {
        if constexpr (kHalf) {
            const numerics::Fp16 half = numerics::Fp16::from_float(d);
            std::memcpy(static_cast<char*>(results[lane]) + 2 * i, &half, 2);
        } else {
            std::memcpy(static_cast<char*>(results[lane]) + 4 * i, &d, 4);
        }
    });
}

}  // namespace clary::sim
