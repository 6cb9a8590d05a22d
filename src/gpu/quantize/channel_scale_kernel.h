// SPDX-License-Identifier: Apache-2.0
// v_scale=channel: raises the scale of every V channel to what the keys of a slab need, amax / largest code. Unlike the
// other statistics it needs all tokens: a code beyond the largest could not be stored. Division by a constant keeps the
// order of numbers, so the maximum of the slabs' scales is the scale of the maximum. StatisticsKernel has written v_mean
// and the floor that scales start from.
#pragma once

#include "gpu/quantize/channel_maximum.h"
#include "gpu/quantize/slab.h"
#include "numerics/digits.h"

namespace clary::gpu {

template <class T, QuantizeConfig kConfig>
class ChannelScaleKernel {
    using Row = Rows<T, kConfig.dim_v>;
    using Channels = ChannelMaximum<T, kConfig.dim_v>;

  public:
    static constexpr int kThreads = Row::kSlabThreads > T::kLanes ? Row::kSlabThreads : T::kLanes;
    static constexpr int kBlocks = kThreads >= 512 ? 1 : (Row::kChunks == 3 ? 384 : 512) / kThreads;
    static constexpr uint32_t kSharedBytes = Channels::kBytes;

    CLARY_DEVICE static void run(const QuantizeParams& p) {
        T::let_next_start();
        const AttentionDesc& desc = p.desc;
        const Slab slab = slab_of(p, T::block(0));
        if (slab.is_q || !T::any(slab.exists && slab.count > 0)) {
            T::wait_for_previous();  // all blocks do, so that who waits for this kernel has waited for that one too
            return;
        }
        const int64_t head = slab.b * desc.kv_heads + slab.h;
        Row x;
        x.load(desc.v, desc.head_dim_v, slab.count,
               RowsFrom{token_address(desc, desc.v, slab.b, slab.h, slab.sequence, false), slab.first});
        T::wait_for_previous();
        if (p.v_mean != nullptr) {
            x.subtract(p.v_mean + head * kConfig.dim_v);
            x.clear_from(slab.count);
        }
        if (desc.recipe.rotate_v) x.rotate(static_cast<int>(desc.head_dim_v));
        CLARY_UNROLL
        for (int i = 0; i < Row::kRows; ++i)
            if (!(x.largest(i) < INFINITY)) x.clear_row(i);
        Channels::store(x, {0});
        T::block_sync();
        for (int slot = Row::thread(); slot < kConfig.dim_v; slot += kThreads) {
            const float scale = Channels::load({0}, 0, 2, slot) / v_code_limit(desc.recipe);
            T::raise(p.v_scale + head * kConfig.dim_v + Channels::channel(slot), scale);
        }
    }
};

}  // namespace clary::gpu
