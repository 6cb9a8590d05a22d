// SPDX-License-Identifier: Apache-2.0
// How far an output is from the exact one, in float64. Definitions: docs/cli.md, "Metrics".
#pragma once

#include <cstdint>
#include <vector>

#include "problem.h"

namespace clary::cli {

struct HeadError {
    double cosine = 1, relative_l1 = 0;
};

struct Metrics {
    double cosine = 1;         // over all values as one vector
    double relative_l1 = 0;    // sum |o - o'| / sum |o|
    double worst_head_l1 = 0;  // the largest relative L1 of a (batch item, head)
    double p999_row_l1 = 0;    // 99.9th percentile of the rows' relative L1
    double rmse = 0;
    double max_abs = 0;
    int64_t skipped_rows = 0;      // rows whose exact result is not finite; not part of the figures
    std::vector<HeadError> heads;  // [batch * q_heads]
};

// `exact` and `result` are fp32 outputs [B, H, Lq, Dv] in the memory order of `layout`. A value that is finite in
// `exact` alone makes every figure it enters NaN.
Metrics compare(const io::Tensor& exact, const io::Tensor& result, MemoryLayout layout);

double percentile(std::vector<double> values, double fraction);  // nearest rank; NaN sorts last; 0 where empty
double median(std::vector<double> values);                       // mean of the middle two where even
double interquartile_range(const std::vector<double>& values);

}  // namespace clary::cli
