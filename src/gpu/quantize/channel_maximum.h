// SPDX-License-Identifier: Apache-2.0
// The largest magnitude of each channel over the keys of a slab, or of each of its tiles.
//
// Every lane reduces its four rows, the lanes of a wave that hold the same channels join (within 64 keys, the smallest
// tile), and the waves' results meet in shared memory: [part][channel in the order of slot()].
#pragma once

#include "gpu/quantize/rows.h"

namespace clary::gpu {

template <class T, int kDim>
struct ChannelMaximum {
    using Row = Rows<T, kDim>;
    static constexpr int kQuadsIn64Keys = 64 / Row::kRows;
    static constexpr int kWaveQuads = T::kLanes / Row::kLanesPerRow;
    static constexpr int kPartQuads = kWaveQuads < kQuadsIn64Keys ? kWaveQuads : kQuadsIn64Keys;
    static constexpr int kParts = kSlab / Row::kRows / kPartQuads;
    static constexpr int kStride = kDim + 4;  // of parts: two that one wave of 64 lanes writes meet different banks
    static constexpr uint32_t kBytes = kParts * kStride * 4;

    // Where channel d lies among kDim: lanes that hold neighbouring runs of 8 channels meet different banks.
    CLARY_HD static constexpr int slot(int d) { return d % 8 * (kDim / 8) + d / 8; }
    CLARY_HD static constexpr int channel(int slot) { return slot % (kDim / 8) * 8 + slot / (kDim / 8); }

    // By all lanes of the block. Rows that are not finite must have been cleared.
    CLARY_DEVICE static void store(const Row& rows, SharedAddress parts) {
        const int part = Row::quad() / kPartQuads;
        const bool writes = Row::quad() % kPartQuads == 0 && part < kParts;
        CLARY_UNROLL
        for (int column = 0; column < Row::kColumns; ++column) {
            float top = 0;
            CLARY_UNROLL
            for (int i = 0; i < Row::kRows; ++i) top = T::max(top, fabsf(rows.x[i][column]));
            CLARY_UNROLL
            for (int mask = Row::kLanesPerRow; mask < Row::kLanesPerRow * kPartQuads; mask *= 2)
                top = T::max(top, T::shuffle_xor(top, mask));
            const int at = part * kStride + slot(Row::channel(column));
            if (writes) T::store(parts + static_cast<uint32_t>(at * 4), top * rows.norm);
        }
    }
    // After a block_sync(): over keys [64 first, 64 end) of the slab, of the channel in a slot.
    CLARY_DEVICE static float load(SharedAddress parts, int first, int end, int slot) {
        constexpr int kPartsIn64Keys = kParts / 2;
        float top = 0;
        for (int part = first * kPartsIn64Keys; part < end * kPartsIn64Keys; ++part)
            top = T::max(top, T::template load<float>(parts + static_cast<uint32_t>((part * kStride + slot) * 4)));
        return top;
    }
};

}  // namespace clary::gpu
