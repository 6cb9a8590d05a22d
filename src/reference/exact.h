// SPDX-License-Identifier: Apache-2.0
// Exact attention in float64: the yardstick of every recipe and kernel.
#pragma once

#include "core/desc.h"
#include "core/status.h"

namespace clary::reference {

// out = softmax(scale q k^T + biases) v for the whole contract of AttentionDesc (the recipe is ignored), computed in
// float64 from the inputs as they are and rounded once to the output's type. Memory is linear in the lengths.
//
// - lse: natural logarithm of the full denominator, sink included.
// - A row that sees no key: zeros; lse -infinity, or the sink's logit where there is one.
// - A row that sees a score which is not finite: NaN, lse NaN. A row that sees a value of V which is not finite: NaN
//   in every channel; its lse does not depend on V.
//
// threads 0: as many as the machine has; the result does not depend on it.
Status attend_exact(const AttentionDesc& desc, int threads = 0);

}  // namespace clary::reference
