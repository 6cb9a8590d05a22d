// SPDX-License-Identifier: Apache-2.0
// One query row at a time, one key tile at a time: scores, tile-local maximum, P in the recipe's format, P V, combine.
//
//   x_j = score relative to tile_base          m = max x_j over the visible keys of the tile
//   P_j = round(2^(x_j - m))                   lift = m + tile_base, the tile's maximum on the row's common scale
//   O  += 2^(lift - R) * sum P_j v_j           l += 2^(lift - R) * sum P_j (w_j / 15)
//
// R is the lift of the row's first tile with a visible key and moves, rescaling O and l, only where a tile lies more
// than 64 above it. P of a tile so depends on no other tile.
#include "reference/oracle.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/formats.h"
#include "numerics/hadamard.h"
#include "numerics/log_add_exp.h"
#include "numerics/nvfp4.h"
#include "reference/exact.h"
#include "reference/parallel.h"
#include "reference/quantize.h"
#include "reference/rows.h"
#include "reference/smoothing.h"

namespace clary::reference {
namespace {

using numerics::Fp16;

// Sums of products of integer codes stay below 2^24 (127 * 127 * 256 + 127 * 4064; 255 * 127 * 128), so fp32 holds them
// exactly in any order; other formats are summed in float64.
template <Format format>
using Exact = std::conditional_t<format == Format::kInt8, float, double>;

double round_to_fp16(double x) { return Fp16::from_float(static_cast<float>(x)).to_float(); }

// How P V is summed: fp16 accumulators round once per MMA (`step` keys; 0: exact), are emptied into wider ones after
// `flush` keys, or hold the whole row (flush 0).
struct Accumulation {
    int64_t step = 0, flush = 0;
};
Accumulation accumulation(const Recipe& recipe) {
    switch (recipe.accumulator) {
        case Accumulator::kFp16:
            return {.step = 16, .flush = 0};
        case Accumulator::kFp16Fp32:
            return {.step = 16, .flush = recipe.tile};
        case Accumulator::kFp32Fp16:
            return {.step = 32, .flush = numerics::kFp8HalfKeys};
        case Accumulator::kFp32:
        case Accumulator::kFp32Fp32:
            break;
    }
    return {.step = 0, .flush = recipe.tile};
}

// One row's state over the key tiles.
struct Row {
    double reference = 0;  // R
    double sum = 0;        // l, in the unit of P
    double lse_sum = 0;    // the same of 2^(x - m) before rounding
    bool started = false, finite = true;
    std::vector<double> output;  // (dim_v)
};

template <Format qk, Format pv>
class Oracle {
  public:
    Oracle(const HeadOperands& operands, const AttentionDesc& desc, const Sequence& sequence, int64_t b,
           int64_t kv_head)
        : o_(operands),
          desc_(desc),
          sequence_(sequence),
          b_(b),
          kv_head_(kv_head),
          tile_(operands.recipe.tile),
          accumulation_(accumulation(operands.recipe)),
          k_(static_cast<size_t>(o_.tiles() * o_.dim * tile_)),
          v_is_finite_(static_cast<size_t>(o_.kv_len), 1),
          scores_(static_cast<size_t>(tile_)),
          x_(static_cast<size_t>(tile_)),
          p_(static_cast<size_t>(tile_)),
          visible_(static_cast<size_t>(tile_)),
          tile_sum_(static_cast<size_t>(o_.dim_v)),
          fp16_sum_(static_cast<size_t>(o_.dim_v)) {
        for (int64_t j = 0; j < o_.kv_len; ++j) {
            for (int64_t d = 0; d < o_.dim; ++d)
                k_[static_cast<size_t>((j / tile_ * o_.dim + d) * tile_ + j % tile_)] = o_.k[at(j, o_.dim, d)];
            for (int64_t d = 0; d < o_.dim_v; ++d)
                if (!std::isfinite(o_.v[at(j, o_.dim_v, d)])) v_is_finite_[static_cast<size_t>(j)] = 0;
        }
    }

    void run() {
        for (int64_t g = 0; g < o_.heads; ++g) {
            for (int64_t i = 0; i < o_.q_len; ++i) {
                if (o_.recipe.smooth_q_block && i % HeadOperands::kQBlock == 0) load_block_bias(g, i);
                attend_row(g, i);
            }
        }
    }

  private:
    static size_t at(int64_t row, int64_t width, int64_t column) { return static_cast<size_t>(row * width + column); }

    // a * mean.k'_j for the block of 128 queries that starts at row i: one row of the bias matrix.
    void load_block_bias(int64_t g, int64_t i) {
        const int64_t block = g * o_.q_blocks() + i / HeadOperands::kQBlock;
        block_bias_.resize(static_cast<size_t>(o_.kv_len));
        for (int64_t j = 0; j < o_.kv_len; ++j)
            block_bias_[static_cast<size_t>(j)] = static_cast<float>(
                o_.a * dot(o_.q_block_mean.data() + block * o_.dim, o_.k_smooth.data() + j * o_.dim, o_.dim));
    }

    void attend_row(int64_t g, int64_t i) {
        const int64_t head = kv_head_ * o_.heads + g, row_index = g * o_.q_len + i;
        const RowView view(desc_, sequence_, b_, head, i);
        Row row;
        row.output.assign(static_cast<size_t>(o_.dim_v), 0.0);
        for (int64_t tile = view.first() / tile_; tile * tile_ < view.last(); ++tile) {
            if (!score_tile(view, row_index, tile, &row)) continue;
            combine(tile, &row);
        }
        finish(head, i, row_index, &row);
    }

    // Fills visible_, x_ and largest_ (m); false where no key of the tile is visible.
    bool score_tile(const RowView& view, int64_t row_index, int64_t tile, Row* row) {
        const float* q = o_.q.data() + row_index * o_.dim;
        std::fill(scores_.begin(), scores_.end(), Score{0});
        for (int64_t d = 0; d < o_.dim; ++d) {
            const Score q_d = q[d];
            const Score* k = k_.data() + (tile * o_.dim + d) * tile_;
            for (int64_t t = 0; t < tile_; ++t) scores_[static_cast<size_t>(t)] += q_d * k[t];
        }
        const float q_scale = o_.q_scale[static_cast<size_t>(row_index)] * o_.a;
        const int repeat = o_.q_repeat[static_cast<size_t>(row_index)];
        bool any = false;
        for (int64_t t = 0; t < tile_; ++t) {
            const auto key = static_cast<size_t>(tile * tile_ + t), slot = static_cast<size_t>(t);
            double bias = 0;
            visible_[slot] = tile * tile_ + t < o_.kv_len && view.sees(tile * tile_ + t, &bias);
            if (!visible_[slot]) continue;
            const int units = o_.bias_units[key];
            float x =
                static_cast<float>(scores_[slot] + static_cast<Score>(repeat * units)) * q_scale * o_.k_scale[key];
            if (o_.bias_in_float(row_index))
                x += static_cast<float>(units) * numerics::bias_unit(o_.q_base, o_.k_scale[key], o_.a);
            if (o_.recipe.smooth_q_block) x += block_bias_[key];
            if (bias != 0) x += static_cast<float>(bias * kLog2E);
            if (!std::isfinite(x) || v_is_finite_[key] == 0) row->finite = false;
            x_[slot] = x;
            largest_ = any ? std::max(largest_, x) : x;
            any = true;
        }
        if (any && std::isnan(o_.tile_base[static_cast<size_t>(tile)])) row->finite = false;
        return any && row->finite;
    }

    void combine(int64_t tile, Row* row) {
        // P of 16 bits is taken against a whole power of two, so that its rounding does not depend on the tile.
        if constexpr (pv == Format::kFp16 || pv == Format::kBf16) largest_ = std::ceil(largest_);
        const double lift = static_cast<double>(largest_) + o_.tile_base[static_cast<size_t>(tile)];
        const bool whole_row = accumulation_.flush == 0;
        const bool moves = whole_row ? lift > row->reference : lift - row->reference > numerics::kReferenceSlack;
        if (!row->started || moves) {
            const double down = row->started ? std::exp2(row->reference - lift) : 0.0;
            row->sum *= down;
            row->lse_sum *= down;
            for (double& o : row->output) o = whole_row ? round_to_fp16(o * down) : o * down;
            row->reference = lift;
            row->started = true;
        }
        const double c = std::exp2(lift - row->reference);
        // Accumulators that live through the row need P on the row's scale; all others take P on the tile's own.
        quantize_p(whole_row ? static_cast<float>(lift - row->reference) : 0.0f);
        const double p_scale = whole_row ? 1.0 : c;

        double sum = 0, lse_sum = 0;
        for (int64_t t = 0; t < tile_; ++t) {
            const auto slot = static_cast<size_t>(t);
            if (!visible_[slot]) continue;
            const double weight = o_.v_weight.empty() ? 1.0
                                                      : double{1} / numerics::kWeightUnit *
                                                            o_.v_weight[static_cast<size_t>(tile * tile_ + t)];
            sum += weight * static_cast<double>(p_[slot]);
            lse_sum += weight * std::exp2(static_cast<double>(x_[slot] - largest_));
        }
        row->sum += sum * p_scale;
        row->lse_sum += lse_sum * c;
        add_pv(tile, p_scale, row);
    }

    // P of the visible keys in units of the format: 255, 2^8.807 or 2688 where P is 1. Invisible keys have P = 0.
    // `above`: base-2 distance of the tile's maximum from the reference that P is taken against.
    void quantize_p(float above) {
        const auto weight = [&](size_t slot, float offset) {
            return std::exp2((x_[slot] - largest_) + above + offset);
        };
        for (size_t slot = 0; slot < p_.size(); ++slot) {
            p_[slot] = 0;
            if (!visible_[slot]) continue;
            if constexpr (pv == Format::kInt8)
                p_[slot] = numerics::round_half_even(numerics::kPUint8Max * weight(slot, 0));
            else if constexpr (pv == Format::kFp8)
                p_[slot] = numerics::E4m3::from_float(weight(slot, numerics::kPFp8Log2Offset)).to_float();
            else if constexpr (pv == Format::kFp16)
                p_[slot] = Fp16::from_float(weight(slot, 0)).to_float();
            else if constexpr (pv == Format::kBf16)
                p_[slot] = numerics::Bf16::from_float(weight(slot, 0)).to_float();
            else
                p_[slot] = weight(slot, pv == Format::kFp4 ? numerics::kPFp4Log2Offset : 0.0f);
        }
        if constexpr (pv == Format::kFp4) {
            for (size_t begin = 0; begin < p_.size(); begin += numerics::kNvfp4Group) {
                float group[numerics::kNvfp4Group];
                numerics::E2m1 codes[numerics::kNvfp4Group];
                for (size_t t = 0; t < numerics::kNvfp4Group; ++t) group[t] = static_cast<float>(p_[begin + t]);
                const numerics::Ue4m3 scale = numerics::nvfp4_quantize(group, codes);
                for (size_t t = 0; t < numerics::kNvfp4Group; ++t)
                    p_[begin + t] = numerics::nvfp4_decode(codes[t], scale);
            }
        }
    }

    // sum += P v over tokens [begin, end) of the sequence, of which `first` is the tile's.
    template <typename Sum>
    void multiply(int64_t begin, int64_t end, int64_t first, std::vector<Sum>* sum) const {
        for (int64_t j = begin; j < end; ++j) {
            const auto p = static_cast<Sum>(p_[static_cast<size_t>(j - first)]);
            if (p == 0) continue;
            const float* v = o_.v.data() + j * o_.dim_v;
            for (size_t d = 0; d < sum->size(); ++d) (*sum)[d] += p * static_cast<Sum>(v[d]);
        }
    }

    void add_pv(int64_t tile, double p_scale, Row* row) {
        const int64_t first = tile * tile_, last = std::min(first + tile_, o_.kv_len);
        const auto [step, flush] = accumulation_;
        for (int64_t begin = first; begin<last; begin += flush> 0 ? flush : tile_) {
            const int64_t end = flush > 0 ? std::min(begin + flush, last) : last;
            if (step == 0) {
                std::fill(tile_sum_.begin(), tile_sum_.end(), Sum{0});
                multiply(begin, end, first, &tile_sum_);
                for (int64_t d = 0; d < o_.dim_v; ++d)
                    row->output[static_cast<size_t>(d)] +=
                        static_cast<double>(tile_sum_[static_cast<size_t>(d)]) * (p_scale * tile_v_scale(tile, d));
                continue;
            }
            std::vector<double>& sum = flush > 0 ? fp16_sum_ : row->output;
            if (flush > 0) std::fill(sum.begin(), sum.end(), 0.0);
            for (int64_t at_key = begin; at_key < end; at_key += step) {
                multiply(at_key, std::min(at_key + step, end), first, &sum);
                for (double& s : sum) s = round_to_fp16(s);
            }
            for (int64_t d = 0; d < o_.dim_v && flush > 0; ++d)
                row->output[static_cast<size_t>(d)] += sum[static_cast<size_t>(d)] * (p_scale * tile_v_scale(tile, d));
        }
    }

    double tile_v_scale(int64_t tile, int64_t d) const {
        switch (o_.recipe.v_scale) {
            case VScale::kToken:
                return o_.v_scale[static_cast<size_t>(tile)];
            case VScale::kChannelTile:
                return o_.v_scale[at(tile, o_.dim_v, d)];
            case VScale::kChannel:
                return 1;  // applied to the finished row
            case VScale::kNone:
                break;
        }
        return o_.v_scale.empty() ? 1.0 : o_.v_scale[static_cast<size_t>(tile)];
    }

    void finish(int64_t head, int64_t i, int64_t row_index, Row* row) {
        const double sink = sink_logit(desc_, head);
        double lse = -kInfinity;
        if (!row->finite || std::isnan(sink) || sink == kInfinity) {
            lse = kNan;
            std::fill(row->output.begin(), row->output.end(), kNan);
        } else if (row->started) {
            for (size_t d = 0; d < row->output.size(); ++d)
                row->output[d] *= (o_.recipe.v_scale == VScale::kChannel ? o_.v_scale[d] : 1.0) / row->sum;
            if (o_.recipe.rotate_v) numerics::rotate(row->output.data(), static_cast<int>(o_.dim_v));
            for (size_t d = 0; d < o_.v_mean.size(); ++d) row->output[d] += o_.v_mean[d];
            lse = kLn2 * (row->reference + std::log2(row->lse_sum)) + o_.q_shift[static_cast<size_t>(row_index)];
        }
        if (sink > -kInfinity && !std::isnan(lse)) {
            const double with_sink = numerics::log_add_exp(lse, sink);
            for (double& o : row->output) o *= std::exp(lse - with_sink);
            lse = with_sink;
        }
        store_row(desc_, sequence_, b_, head, i, row->output.data(), lse);
    }

    using Score = Exact<qk>;
    using Sum = Exact<pv>;

    const HeadOperands& o_;
    const AttentionDesc& desc_;
    const Sequence& sequence_;
    const int64_t b_, kv_head_, tile_;
    const Accumulation accumulation_;
    std::vector<Score> k_;           // (tiles, dim, tile): transposed, so that the loop over keys is the inner one
    std::vector<char> v_is_finite_;  // (kv_len)
    std::vector<float> block_bias_;  // (kv_len)
    // Of the current tile.
    std::vector<Score> scores_;
    std::vector<float> x_, p_;
    std::vector<char> visible_;
    float largest_ = 0;
    std::vector<Sum> tile_sum_;     // (dim_v)
    std::vector<double> fp16_sum_;  // (dim_v)
};

template <Format qk>
void attend_with(const HeadOperands& o, const AttentionDesc& desc, const Sequence& sequence, int64_t b,
                 int64_t kv_head) {
    switch (o.recipe.pv) {
        case Format::kInt8:
            Oracle<qk, Format::kInt8>(o, desc, sequence, b, kv_head).run();
            return;
        case Format::kFp8:
            Oracle<qk, Format::kFp8>(o, desc, sequence, b, kv_head).run();
            return;
        case Format::kFp4:
            Oracle<qk, Format::kFp4>(o, desc, sequence, b, kv_head).run();
            return;
        case Format::kFp16:
            Oracle<qk, Format::kFp16>(o, desc, sequence, b, kv_head).run();
            return;
        case Format::kBf16:
            Oracle<qk, Format::kBf16>(o, desc, sequence, b, kv_head).run();
            return;
        case Format::kInt4:
        case Format::kFp32:
            Oracle<qk, Format::kFp32>(o, desc, sequence, b, kv_head).run();
            return;
    }
}

}  // namespace

void attend_oracle(const HeadOperands& operands, const AttentionDesc& desc, const Sequence& sequence, int64_t b,
                   int64_t kv_head) {
    if (operands.recipe.qk == Format::kInt8 || operands.recipe.qk == Format::kInt4)
        attend_with<Format::kInt8>(operands, desc, sequence, b, kv_head);
    else
        attend_with<Format::kFp32>(operands, desc, sequence, b, kv_head);
}

Status attend_recipe(const AttentionDesc& desc, int threads) {
    if (desc.recipe.qk == Format::kFp32) return attend_exact(desc, threads);
    parallel_for(desc.batch * desc.kv_heads, threads, [&](int64_t item) {
        const int64_t b = item / desc.kv_heads, kv_head = item % desc.kv_heads;
        attend_oracle(quantize_head(desc, b, kv_head), desc, sequence_of(desc, b), b, kv_head);
    });
    return Status::ok();
}

}  // namespace clary::reference
