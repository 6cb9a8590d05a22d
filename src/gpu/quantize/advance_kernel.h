// SPDX-License-Identifier: Apache-2.0
// The last kernel of an append, one block per sequence: lengths move on when every block of the packing kernel has read
// them.
//
// The host cannot see that new keys pass the capacity. Then the packing kernel has written nothing, and here the cache
// becomes full of keys that are not finite: all that sees it is NaN, and so it stays until it is quantized anew.
#pragma once

#include "gpu/quantize/slab.h"

namespace clary::gpu {

template <class T, QuantizeConfig kConfig>
class AdvanceKernel {
  public:
    static constexpr int kThreads = 128;
    static constexpr int kBlocks = 1;
    static constexpr uint32_t kSharedBytes = 0;

    CLARY_DEVICE static void run(const QuantizeParams& p) {
        const int64_t b = T::block(0);
        if (b >= p.desc.batch) return;
        const Cache cache = cache_of(p, b);
        T::block_sync();  // all have read the length
        if (!cache.known) return;
        const int thread = T::wave() * T::kLanes + T::lane();
        if (thread == 0) p.lengths[b] = cache.fits ? cache.length + cache.added : p.kv_capacity;
        if (!cache.fits) spoil(p, b, thread);
    }

  private:
    CLARY_DEVICE static void spoil(const QuantizeParams& p, int64_t b, int thread) {
        const int64_t rows = p.desc.kv_heads * p.kv_rows.rows, tiles = rows >> p.tile_shift;
        if (p.tile_base != nullptr) {
            for (int64_t i = thread; i < tiles; i += kThreads)
                p.tile_base[b * tiles + i] = numerics::detail::quiet_nan();
            return;
        }
        constexpr uint16_t kNan = 0x7fff;  // of fp16 and of bf16
        auto* const codes = static_cast<uint16_t*>(p.k_codes) + b * rows * kConfig.dim;
        for (int64_t i = thread; i < rows; i += kThreads) codes[i * kConfig.dim] = kNan;
    }
};

}  // namespace clary::gpu
