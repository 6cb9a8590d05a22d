// SPDX-License-Identifier: Apache-2.0
// V: mean, rotation, and codes with a scale per channel, per (channel, tile) or per token.
#include <algorithm>
#include <cmath>

#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/formats.h"
#include "numerics/nvfp4.h"
#include "reference/quantize.h"
#include "reference/rows.h"

namespace clary::reference {
namespace {

using numerics::Bf16;
using numerics::E4m3;
using numerics::Fp16;

// The largest code: a scale is amax / this.
float largest_code(const Recipe& recipe) {
    if (recipe.pv == Format::kInt8) return numerics::kInt8Max;
    return recipe.accumulator == Accumulator::kFp32Fp16 ? numerics::kVFp8MaxFp16Accumulator : numerics::kVFp8Max;
}

float code_of(const Recipe& recipe, float v_over_scale) {
    if (recipe.pv == Format::kInt8) return numerics::quantize_int8(v_over_scale);
    return E4m3::from_float(v_over_scale).to_float();
}

// Scale of each channel over the finite tokens [begin, end): max(amax / largest, floor), in fp32.
void channel_scales(const Tokens& v, int64_t begin, int64_t end, float largest, float* scale) {
    std::fill_n(scale, v.dim, 0.0f);
    for (int64_t t = begin; t < end; ++t)
        for (int64_t d = 0; d < v.dim && v.is_finite(t); ++d) scale[d] = std::max(scale[d], std::abs(v.row(t)[d]));
    for (int64_t d = 0; d < v.dim; ++d) scale[d] = std::max(scale[d] / largest, numerics::kScaleFloor);
}

// code = rne(v * (1 / scale)), the reciprocal and the product in fp32.
void channel_codes(const Tokens& v, int64_t begin, int64_t end, const float* scale, HeadOperands* o) {
    for (int64_t t = begin; t < end; ++t)
        for (int64_t d = 0; d < v.dim && v.is_finite(t); ++d)
            o->v[static_cast<size_t>(t * v.dim + d)] = code_of(o->recipe, v.row(t)[d] * (1.0f / scale[d]));
}

// need t = amax / 127; t_tile = the largest need of the tile, floored; weight w = floor(15 t_tile / t) in 15..240;
// t_j = 15 t_tile / w; code = rne(v * (1 / t_j)). All fp32.
void token_codes(const Tokens& v, int64_t tile, int64_t begin, int64_t end, HeadOperands* o) {
    const auto need = [&](int64_t t) { return v.amax(t) / static_cast<float>(numerics::kInt8Max); };
    float largest = 0;
    for (int64_t t = begin; t < end; ++t)
        if (v.is_finite(t)) largest = std::max(largest, need(t));
    const float t_tile = numerics::v_tile_scale(largest);
    o->v_scale[static_cast<size_t>(tile)] = t_tile;
    for (int64_t t = begin; t < end; ++t) {
        if (!v.is_finite(t)) continue;
        const int weight = numerics::v_weight(t_tile, need(t));
        o->v_weight[static_cast<size_t>(t)] = static_cast<uint8_t>(weight);
        const float inverse = 1.0f / numerics::v_token_scale(t_tile, weight);
        for (int64_t d = 0; d < v.dim; ++d)
            o->v[static_cast<size_t>(t * v.dim + d)] = numerics::quantize_int8(v.row(t)[d] * inverse);
    }
}

// Values, divided by the smallest power of two (at least 1) that brings the tile's largest to 32768 or less, so that a
// finite V stays finite. An fp16 accumulator of the whole row leaves no room for a scale per tile.
void fp16_codes(const Tokens& v, int64_t tile, int64_t begin, int64_t end, HeadOperands* o) {
    float largest = 0, scale = 1;
    for (int64_t t = begin; t < end; ++t)
        if (v.is_finite(t)) largest = std::max(largest, v.amax(t));
    while (largest > 32768.0f * scale && o->recipe.accumulator != Accumulator::kFp16) scale *= 2;
    o->v_scale[static_cast<size_t>(tile)] = scale;
    for (int64_t t = begin; t < end; ++t)
        for (int64_t d = 0; d < v.dim && v.is_finite(t); ++d)
            o->v[static_cast<size_t>(t * v.dim + d)] = Fp16::from_float(v.row(t)[d] / scale).to_float();
}

// Groups of 16 keys per channel, from the sequence's first key; a group that the length cuts is filled with zeros.
void nvfp4_codes(const Tokens& v, HeadOperands* o) {
    for (int64_t begin = 0; begin < v.count; begin += numerics::kNvfp4Group) {
        for (int64_t d = 0; d < v.dim; ++d) {
            float group[numerics::kNvfp4Group] = {};
            numerics::E2m1 codes[numerics::kNvfp4Group];
            const int64_t size = std::min<int64_t>(numerics::kNvfp4Group, v.count - begin);
            for (int64_t i = 0; i < size; ++i) group[i] = v.is_finite(begin + i) ? v.row(begin + i)[d] : 0.0f;
            const numerics::Ue4m3 scale = numerics::nvfp4_quantize(group, codes);
            for (int64_t i = 0; i < size; ++i)
                o->v[static_cast<size_t>((begin + i) * v.dim + d)] = numerics::nvfp4_decode(codes[i], scale);
        }
    }
}

}  // namespace

void quantize_v(const Tokens& tokens, HeadOperands* o, std::vector<float>* poison) {
    const Recipe& recipe = o->recipe;
    Tokens v = tokens;
    if (recipe.smooth_v) {
        o->v_mean = mean({v}, 0, v.count);
        subtract(o->v_mean, 0, v.count, &v);
    }
    if (recipe.rotate_v) rotate(&v);
    v.check_finite();
    for (int64_t t = 0; t < v.count; ++t)
        if (!v.is_finite(t)) (*poison)[static_cast<size_t>(t / recipe.tile)] = static_cast<float>(kNan);

    o->v.assign(static_cast<size_t>(v.count * v.dim), 0.0f);
    const float largest = largest_code(recipe);
    const auto each_tile = [&](const auto& function) {
        for (int64_t tile = 0; tile < o->tiles(); ++tile)
            function(tile, tile * recipe.tile, std::min(v.count, (tile + 1) * recipe.tile));
    };
    switch (recipe.v_scale) {
        case VScale::kChannel:
            o->v_scale.resize(static_cast<size_t>(v.dim));
            channel_scales(v, 0, v.count, largest, o->v_scale.data());
            channel_codes(v, 0, v.count, o->v_scale.data(), o);
            break;
        case VScale::kChannelTile:
            o->v_scale.resize(static_cast<size_t>(o->tiles() * v.dim));
            each_tile([&](int64_t tile, int64_t begin, int64_t end) {
                float* scale = o->v_scale.data() + tile * v.dim;
                channel_scales(v, begin, end, largest, scale);
                channel_codes(v, begin, end, scale, o);
            });
            break;
        case VScale::kToken:
            o->v_scale.resize(static_cast<size_t>(o->tiles()));
            o->v_weight.assign(static_cast<size_t>(v.count), numerics::kWeightUnit);
            each_tile([&](int64_t tile, int64_t begin, int64_t end) { token_codes(v, tile, begin, end, o); });
            break;
        case VScale::kNone:
            if (recipe.pv == Format::kFp4) {
                nvfp4_codes(v, o);
                break;
            }
            if (recipe.pv == Format::kFp16) {
                o->v_scale.resize(static_cast<size_t>(o->tiles()));
                each_tile([&](int64_t tile, int64_t begin, int64_t end) { fp16_codes(v, tile, begin, end, o); });
                break;
            }
            for (size_t i = 0; i < o->v.size(); ++i) o->v[i] = Bf16::from_float(v.values[i]).to_float();
            break;
    }
}

}  // namespace clary::reference
