// SPDX-License-Identifier: Apache-2.0
// Which atom a machine has for given elements, and which queries a lane's results belong to.
#pragma once

#include "gpu/target/atoms.h"
#include "gpu/target/machines.h"

namespace clary::gpu {

// NVIDIA multiplies 256 bits of depth at a time (sm75: 128), MetaX 16 elements (xcore1500: 32 of 8 bits).
CLARY_HD constexpr int product_depth(const Machine& m, Element e) {
    if (m.vendor == Vendor::kNvidia) return (m.async_copies ? 256 : 128) / element_bits(e);
    return m.chip == Chip::kXcore1500 && element_bits(e) == 8 ? 32 : 16;
}
// sm75's integer atoms have 8 queries, all others 16.
CLARY_HD constexpr int product_queries(const Machine& m, Element e) {
    return m.vendor == Vendor::kNvidia && !m.async_copies && element_bits(e) < 16 ? 8 : 16;
}

// Whether the machine has an instruction for the product.
CLARY_HD constexpr bool has_product(const Machine& m, Element query, Element other, Element result) {
    const bool nvidia = m.vendor == Vendor::kNvidia;
    if (query == Element::kU8) return nvidia && other == Element::kS8 && result == Element::kS32;
    if (query != other) return false;
    switch (query) {
        case Element::kS8:
            return result == Element::kS32;
        case Element::kS4:
            return result == Element::kS32 && nvidia && m.async_copies;
        case Element::kF16:
            return result == Element::kF32 || (result == Element::kF16 && nvidia);
        case Element::kBf16:
            return result == Element::kF32 && m.async_copies;
        case Element::kE4m3:
            return m.fp8 && (result == Element::kF32 || (result == Element::kF16 && nvidia));
        default:
            return false;
    }
}

namespace detail {

// (An alias instead of the structs makes g++ 12 crash.)
template <Vendor kVendor, int kQueries, int kDepth, Element kQuery, Element kOther, Element kResult>
struct ProductOf {
    using Type = MmaSync<kQueries, kDepth, kQuery, kOther, kResult>;
};
template <int kQueries, int kDepth, Element kQuery, Element kOther, Element kResult>
struct ProductOf<Vendor::kMetax, kQueries, kDepth, kQuery, kOther, kResult> {
    using Type = MetaxMma<kDepth, kQuery, kOther, kResult>;
};
template <Machine kMachine, Element kQuery, Element kOther, Element kResult>
struct ProductOn {
    using Type = typename ProductOf<kMachine.vendor, product_queries(kMachine, kQuery), product_depth(kMachine, kQuery),
                                    kQuery, kOther, kResult>::Type;
};

}  // namespace detail

// The atom of these elements. T::mma rejects those that the machine has not.
template <Machine kMachine, Element kQuery, Element kOther, Element kResult>
using Product = typename detail::ProductOn<kMachine, kQuery, kOther, kResult>::Type;

// A lane's results belong to kResultRows queries; result i to number row_slot(i) of them. Rows are the same for all lanes
// but for an offset, so lane 0 stands for all.
template <class Atom>
CLARY_HD constexpr int row_slot(int i) {
    int slot = 0;
    for (int j = 1; j <= i; ++j) slot += Atom::result_at(0, j).row != Atom::result_at(0, j - 1).row ? 1 : 0;
    return slot;
}
template <class Atom>
inline constexpr int kResultRows = row_slot<Atom>(Atom::kResults - 1) + 1;

}  // namespace clary::gpu
