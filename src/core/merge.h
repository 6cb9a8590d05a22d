// SPDX-License-Identifier: Apache-2.0
// Joins partial attention results over disjoint sets of keys by their log-sum-exp.
#pragma once

#include "core/types.h"

namespace clary {

// Validated views (validate_merge). out_a and lse_a become the result; see clary_merge.
void merge(const TensorView& out_a, const TensorView& lse_a, const TensorView& out_b, const TensorView& lse_b);

}  // namespace clary
