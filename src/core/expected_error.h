// SPDX-License-Identifier: Apache-2.0
// Relative L1 against float64 that each recipe showed when it was last measured (docs/accuracy.md says how).
#pragma once

#include "core/recipe.h"

namespace clary {

struct ExpectedError {
    Recipe recipe;
    double real_median, real_worst;  // 30 layers of SmolLM2-135M, 2048 tokens of text, causal
    double normal;                   // N(0,1), 4096 tokens, head dim 128
};

// Null for a combination that was not measured.
const ExpectedError* expected_error(const Recipe& recipe);

}  // namespace clary
