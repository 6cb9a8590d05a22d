// SPDX-License-Identifier: Apache-2.0
// Access to the caller's tensors for the reference: one token as an fp32 row, and what one query row sees.
#pragma once

#include <cstdint>
#include <limits>

#include "core/desc.h"

namespace clary::reference {

inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The `dim` channels of one token (an address from TokenAddress) as fp32.
void load_token(const Operand& operand, const void* token, int64_t dim, float* row);

// The keys that one query row sees, and the biases that its scores gain: causal mask, window, length, mask, ALiBi.
class RowView {
  public:
    RowView(const AttentionDesc& desc, const Sequence& sequence, int64_t b, int64_t head, int64_t row);

    // No key outside [first, last) is visible; first <= last.
    int64_t first() const { return range_.keep_end > 0 ? 0 : range_.begin; }
    int64_t last() const;
    // Whether key j is visible. `bias` (natural units, joins the scaled score) is set where it is; it may be NaN or
    // +infinity where the mask holds such a value. A mask value of -infinity means invisible.
    bool sees(int64_t j, double* bias) const;

  private:
    const AttentionDesc& desc_;
    KeyRange range_;
    int64_t position_;
    int64_t mask_at_ = 0;  // element of the mask at key 0
    double slope_ = 0;
};

// The learned logit of a head that joins the denominator; -infinity (no effect) where there is none.
double sink_logit(const AttentionDesc& desc, int64_t head);

// Writes one finished row: `output` (dim_v) and its log-sum-exp in natural units, where the caller wants it.
void store_row(const AttentionDesc& desc, const Sequence& sequence, int64_t b, int64_t head, int64_t row,
               const double* output, double lse);

}  // namespace clary::reference
