// SPDX-License-Identifier: Apache-2.0
// Q and K: smoothing, rotation, scales, codes, and the key bias in digits. The order of operations is the definition.
#include "reference/quantize.h"

#include <algorithm>
#include <cmath>

#include "numerics/digits.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"
#include "numerics/scale_groups.h"
#include "reference/rows.h"

namespace clary::reference {
namespace {

using numerics::Bf16;
using numerics::Fp16;

constexpr int64_t kFewestQueriesToSmooth = 16;  // below this the mean of Q says nothing about the next queries

// Row h of a given fp32 [batch, kv_heads, dim] tensor.
std::vector<float> given_vector(const TensorView& tensor, int64_t b, int64_t kv_head, int64_t dim) {
    std::vector<float> vector(static_cast<size_t>(dim));
    const float* at = static_cast<const float*>(tensor.data) + b * tensor.stride[0] + kv_head * tensor.stride[1];
    for (int64_t d = 0; d < dim; ++d) vector[static_cast<size_t>(d)] = at[d * tensor.stride[2]];
    return vector;
}

float largest_code(Format qk) { return qk == Format::kInt4 ? numerics::kInt4Max : numerics::kInt8Max; }

int8_t code_of(Format qk, float x_over_scale) {
    return qk == Format::kInt4 ? numerics::quantize_int4(x_over_scale) : numerics::quantize_int8(x_over_scale);
}

float round_to(Format format, float x) {
    if (format == Format::kFp16) return Fp16::from_float(x).to_float();
    return format == Format::kBf16 ? Bf16::from_float(x).to_float() : x;
}

// NVFP4 along the head dim, decoded: groups of 16 channels, the last one filled with zeros.
void nvfp4_row(const float* x, int64_t dim, float* decoded) {
    for (int64_t begin = 0; begin < dim; begin += numerics::kNvfp4Group) {
        float group[numerics::kNvfp4Group] = {};
        numerics::E2m1 codes[numerics::kNvfp4Group];
        const int64_t size = std::min<int64_t>(numerics::kNvfp4Group, dim - begin);
        std::copy_n(x + begin, size, group);
        const numerics::Ue4m3 scale = numerics::nvfp4_quantize(group, codes);
        for (int64_t i = 0; i < size; ++i) decoded[begin + i] = numerics::nvfp4_decode(codes[i], scale);
    }
}

// Largest magnitude of each scale group over its finite tokens, divided by the largest code: what the group needs.
// `group_of(t)` counts from 0.
template <typename GroupOf>
std::vector<float> group_needs(const Tokens& x, int64_t groups, float largest, const GroupOf& group_of) {
    std::vector<float> need(static_cast<size_t>(groups));
    for (int64_t t = 0; t < x.count; ++t) {
        float& group = need[static_cast<size_t>(group_of(t))];
        if (x.is_finite(t)) group = std::max(group, x.amax(t));
    }
    for (float& group : need) group /= largest;
    return need;
}

// Subtracts from Q what the recipe says and records it: c_q, or the means of blocks with the scale's sign.
void smooth_q(const AttentionDesc& desc, int64_t b, int64_t kv_head, float sign, std::vector<Tokens>* q,
              HeadOperands* o) {
    o->c_q.assign(static_cast<size_t>(o->dim), 0.0f);
    if (o->recipe.smooth_q && desc.scale != 0) {
        if (desc.c_q.given()) {
            o->c_q = given_vector(desc.c_q, b, kv_head, o->dim);
        } else if (o->q_len >= kFewestQueriesToSmooth) {
            o->c_q = mean(*q, 0, o->q_len);
        }
        for (Tokens& head : *q) subtract(o->c_q, 0, o->q_len, &head);
    }
    if (!o->recipe.smooth_q_block) return;
    for (Tokens& head : *q) {
        for (int64_t begin = 0; begin < o->q_len; begin += HeadOperands::kQBlock) {
            const int64_t end = std::min(begin + HeadOperands::kQBlock, o->q_len);
            const std::vector<float> block = mean({head}, begin, end);
            subtract(block, begin, end, &head);
            for (const float x : block) o->q_block_mean.push_back(sign * x);
        }
    }
}

// Integer Q (INT8; for INT4 read 7 for 127). need = amax / 127 of the row's group; q_base from the rows' own needs.
// With a key bias: scale = q_base / r, r = floor(q_base / need) in 1..127; a row that needs more than a frozen q_base
// has r = 0 and its need as scale. Else: scale = max(need, floor). code = rne(q' * (1 / scale)), negated for a negative
// softmax scale. All fp32.
void quantize_q(const AttentionDesc& desc, int64_t b, int64_t kv_head, const std::vector<Tokens>& q, float sign,
                HeadOperands* o) {
    const Recipe& recipe = o->recipe;
    const numerics::TileFamily& family = tile_family(recipe.family);
    const auto group_of = [&](int64_t row) { return numerics::q_group(recipe.granularity, family, row); };
    const int64_t groups = numerics::q_group_count(recipe.granularity, family, o->q_len);

    std::vector<std::vector<float>> needs;  // per head and group
    double sum = 0;
    float largest = 0;
    int64_t rows = 0;
    for (const Tokens& head : q) {
        needs.push_back(group_needs(head, groups, largest_code(recipe.qk), group_of));
        for (int64_t i = 0; i < o->q_len; ++i) {
            if (!head.is_finite(i)) continue;
            const float need = head.amax(i) / largest_code(recipe.qk);
            largest = std::max(largest, need);
            sum += need;
            ++rows;
        }
    }
    const auto typical = static_cast<float>(rows > 0 ? sum / static_cast<double>(rows) : 0.0);
    o->q_base = numerics::q_base_scale(
        largest, typical, recipe.qk == Format::kInt4 ? numerics::kTypicalRepeatInt4 : numerics::kTypicalRepeat);
    if (desc.q_base.given())
        o->q_base =
            static_cast<const float*>(desc.q_base.data)[b * desc.q_base.stride[0] + kv_head * desc.q_base.stride[1]];

    for (size_t g = 0; g < q.size(); ++g) {
        for (int64_t i = 0; i < o->q_len; ++i) {
            const size_t row = g * static_cast<size_t>(o->q_len) + static_cast<size_t>(i);
            const float need = needs[g][static_cast<size_t>(group_of(i))];
            float scale = std::max(need, numerics::kScaleFloor);
            if (recipe.key_bias() && need <= o->q_base) {
                const int repeat = numerics::q_repeat(o->q_base, need);
                o->q_repeat[row] = static_cast<uint8_t>(repeat);
                scale = o->q_base / static_cast<float>(repeat);
            }
            o->q_scale[row] = q[g].is_finite(i) ? scale : static_cast<float>(kNan);
            const float inverse = 1.0f / scale;
            for (int64_t d = 0; d < o->dim && q[g].is_finite(i); ++d)
                o->q[row * static_cast<size_t>(o->dim) + static_cast<size_t>(d)] =
                    sign * static_cast<float>(code_of(recipe.qk, q[g].row(i)[d] * inverse));
        }
    }
}

// Integer K. `k` is smoothed, `rotated` also rotated. Bias of key j: beta_j = a * (sign * c_q.k'_j) + log2(15 / w_j);
// base of a tile = (largest + smallest beta) / 2, for P of 16 bits rounded to a whole number; local = beta - base; scale of a group =
// max(amax / 127, largest |local| / (4064 * q_base * a), floor); units = rne(local / (q_base * scale * a)).
// code = rne(k'_rotated * (1 / scale)). fp32, but the dot product and log2 may be more precise.
void quantize_k(const Tokens& k, const Tokens& rotated, float sign, HeadOperands* o) {
    const Recipe& recipe = o->recipe;
    std::vector<float> local(static_cast<size_t>(o->kv_len));
    for (int64_t tile = 0; tile < o->tiles() && recipe.key_bias(); ++tile) {
        const int64_t begin = tile * recipe.tile, end = std::min(begin + recipe.tile, o->kv_len);
        float low = 0, high = 0;
        bool any = false;
        for (int64_t j = begin; j < end; ++j) {
            if (!rotated.is_finite(j)) continue;
            double beta = o->a * (sign * dot(o->c_q.data(), k.row(j), o->dim));
            if (recipe.v_scale == VScale::kToken)
                beta += std::log2(double{numerics::kWeightUnit} / o->v_weight[static_cast<size_t>(j)]);
            const auto rounded = static_cast<float>(beta);
            local[static_cast<size_t>(j)] = rounded;
            low = any ? std::min(low, rounded) : rounded;
            high = any ? std::max(high, rounded) : rounded;
            any = true;
        }
        const float base = numerics::tile_base(low, high, recipe.p_of_16_bits());
        o->tile_base[static_cast<size_t>(tile)] += base;
        for (int64_t j = begin; j < end; ++j)
            if (rotated.is_finite(j)) local[static_cast<size_t>(j)] -= base;
    }

    const numerics::TileFamily& family = tile_family(recipe.family);
    const auto group_of = [&](int64_t key) { return numerics::k_group(recipe.granularity, family, key); };
    const int64_t groups = numerics::k_group_count(recipe.granularity, family, o->kv_len);
    std::vector<float> scale = group_needs(rotated, groups, largest_code(recipe.qk), group_of);
    std::vector<float> largest_local(scale.size());
    for (int64_t j = 0; j < o->kv_len; ++j) {
        float& largest = largest_local[static_cast<size_t>(group_of(j))];
        largest = std::max(largest, std::abs(local[static_cast<size_t>(j)]));
    }
    for (size_t g = 0; g < scale.size(); ++g)
        scale[g] = recipe.key_bias() ? numerics::k_scale_for_bias(scale[g], largest_local[g], o->q_base, o->a)
                                     : std::max(scale[g], numerics::kScaleFloor);

    for (int64_t j = 0; j < o->kv_len; ++j) {
        const float key_scale = scale[static_cast<size_t>(group_of(j))], inverse = 1.0f / key_scale;
        o->k_scale[static_cast<size_t>(j)] = key_scale;
        if (!rotated.is_finite(j)) continue;
        if (recipe.key_bias())
            o->bias_units[static_cast<size_t>(j)] =
                numerics::bias_units(local[static_cast<size_t>(j)], numerics::bias_unit(o->q_base, key_scale, o->a));
        for (int64_t d = 0; d < o->dim; ++d)
            o->k[static_cast<size_t>(j * o->dim + d)] = code_of(recipe.qk, rotated.row(j)[d] * inverse);
    }
}

void quantize_fp4(const std::vector<Tokens>& q, const Tokens& k, float sign, HeadOperands* o) {
    size_t row = 0;
    for (const Tokens& head : q) {
        for (int64_t i = 0; i < o->q_len; ++i, ++row) {
            float* decoded = o->q.data() + row * static_cast<size_t>(o->dim);
            if (!head.is_finite(i)) {
                o->q_scale[row] = static_cast<float>(kNan);
                continue;
            }
            nvfp4_row(head.row(i), o->dim, decoded);
            for (int64_t d = 0; d < o->dim; ++d) decoded[d] *= sign;
        }
    }
    for (int64_t j = 0; j < o->kv_len; ++j)
        if (k.is_finite(j)) nvfp4_row(k.row(j), o->dim, o->k.data() + j * o->dim);
}

// The exact recipes: values rounded to their type, no scales.
void take_values(const std::vector<Tokens>& q, const Tokens& k, const Tokens& v, float sign, HeadOperands* o) {
    size_t at = 0;
    for (const Tokens& head : q)
        for (const float x : head.values) o->q[at++] = sign * round_to(o->recipe.qk, x);
    for (size_t i = 0; i < k.values.size(); ++i) o->k[i] = round_to(o->recipe.qk, k.values[i]);
    for (const float x : v.values) o->v.push_back(round_to(o->recipe.pv, x));
}

}  // namespace

HeadOperands quantize_head(const AttentionDesc& desc, int64_t b, int64_t kv_head) {
    const Sequence sequence = sequence_of(desc, b);
    HeadOperands o;
    o.recipe = desc.recipe;
    o.heads = desc.q_heads_per_kv();
    o.q_len = sequence.q_len;
    o.kv_len = sequence.kv_len;
    o.dim = desc.head_dim;
    o.dim_v = desc.head_dim_v;
    o.a = score_factor(desc);
    const auto rows = static_cast<size_t>(o.heads * o.q_len), keys = static_cast<size_t>(o.kv_len);
    o.q.assign(rows * static_cast<size_t>(o.dim), 0.0f);
    o.q_scale.assign(rows, 1.0f);
    o.q_repeat.assign(rows, 0);
    o.q_shift.assign(rows, 0.0f);
    o.k.assign(keys * static_cast<size_t>(o.dim), 0.0f);
    o.k_scale.assign(keys, 1.0f);
    o.bias_units.assign(keys, 0);
    o.tile_base.assign(static_cast<size_t>(o.tiles()), 0.0f);

    std::vector<Tokens> q;
    for (int64_t g = 0; g < o.heads; ++g) q.push_back(gather(desc, desc.q, b, kv_head * o.heads + g, sequence, true));
    Tokens k = gather(desc, desc.k, b, kv_head, sequence, false);
    const Tokens v = gather(desc, desc.v, b, kv_head, sequence, false);
    const float sign = desc.scale < 0 ? -1.0f : 1.0f;
    if (desc.scale == 0)
        for (Tokens& head : q)
            for (float& x : head.values) x = std::isfinite(x) ? 0.0f : x;
    if (!o.recipe.quantized()) {
        take_values(q, k, v, sign, &o);
        return o;
    }

    o.c_k.assign(static_cast<size_t>(o.dim), 0.0f);
    if (o.recipe.smooth_k) {
        o.c_k = desc.c_k.given() ? given_vector(desc.c_k, b, kv_head, o.dim) : mean({k}, 0, o.kv_len);
        subtract(o.c_k, 0, o.kv_len, &k);
        for (size_t row = 0; row < rows; ++row) {
            const int64_t g = static_cast<int64_t>(row) / o.q_len, i = static_cast<int64_t>(row) % o.q_len;
            o.q_shift[row] =
                static_cast<float>(desc.scale * dot(q[static_cast<size_t>(g)].row(i), o.c_k.data(), o.dim));
        }
    }
    smooth_q(desc, b, kv_head, sign, &q, &o);
    quantize_v(v, &o, &o.tile_base);

    Tokens rotated = k;
    if (o.recipe.rotate_qk) {
        rotate(&rotated);
        for (Tokens& head : q) rotate(&head);
    }
    rotated.check_finite();
    for (Tokens& head : q) head.check_finite();
    for (int64_t j = 0; j < o.kv_len; ++j)
        if (!rotated.is_finite(j)) o.tile_base[static_cast<size_t>(j / o.recipe.tile)] = static_cast<float>(kNan);

    if (o.recipe.qk == Format::kFp4) {
        quantize_fp4(q, rotated, sign, &o);
    } else {
        quantize_q(desc, b, kv_head, q, sign, &o);
        quantize_k(k, rotated, sign, &o);
    }
    if (o.recipe.smooth_q_block) o.k_smooth = std::move(k.values);
    return o;
}

}  // namespace clary::reference
