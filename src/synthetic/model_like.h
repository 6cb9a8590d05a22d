// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "synthetic/generator.h"
#include "synthetic/presets.h"

namespace clary::synthetic {

// Fills tensors (already sized) as the preset says.
void fill_model_like(const Preset& preset, uint64_t seed, Tensors* tensors);

// Effective number of keys 1 / sum p^2 of the softmax over `scores`, all multiplied by `factor`.
double effective_keys(const std::vector<double>& scores, double factor);

// Rows for sampled softmax figures: at most `count` of 0..length-1, evenly spread.
std::vector<int64_t> sample_rows(int64_t length, int64_t count);

// Scaled scores of one row of Q against all keys of its kv head.
std::vector<double> row_scores(Tensors& tensors, int64_t b, int64_t head, int64_t row);

double median(std::vector<double> values);  // 0 of none

}  // namespace clary::synthetic
