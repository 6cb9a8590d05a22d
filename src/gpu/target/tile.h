// SPDX-License-Identifier: Apache-2.0
// A tile in shared memory: rows of bytes, contiguous along the depth of a product, in 16-byte chunks that are swizzled so
// that both the copies into it and the operand loads from it meet no bank twice.
//
// The swizzle lives here and nowhere else. Copies walk the *destination* in order, so that a wave writes consecutive
// bytes, and fetch the chunk that belongs there: the form that cp.async, MetaX's block-shared copies and copies by way of
// registers all take.
#pragma once

#include "gpu/target/target.h"

namespace clary::gpu {

// kRows rows of kRowBytes bytes, kRowBytes a multiple of 32.
//
// Bank groups of 16 bytes repeat every 128 bytes. Eight rows that are read at the same depth must fall into eight
// different groups: chunk c of row r lies at c ^ key(r), where key steps once per 128 bytes of rows.
template <int kRows_, int kRowBytes_>
struct Tile {
    static constexpr int kRows = kRows_, kRowBytes = kRowBytes_;
    static constexpr int kChunks = kRowBytes / 16;  // of a row
    static constexpr int kBytes = kRows * kRowBytes;
    static_assert(kRowBytes % 32 == 0, "rows of whole chunk pairs");
    // The xor stays within the largest power of two of chunks that divides the row (at most 8 chunks, 128 bytes).
    static constexpr int kSpan = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
    static constexpr int kRowsPerStep = 8 / kSpan;

    SharedAddress base;

    CLARY_HD static constexpr int swizzle(int row, int chunk) { return chunk ^ (row / kRowsPerStep % kSpan); }
    // Address of byte `byte` of a row; what is read there must not cross a chunk.
    CLARY_HD constexpr SharedAddress at(int row, int byte) const {
        return base + static_cast<uint32_t>(row * kRowBytes + swizzle(row, byte / 16) * 16 + byte % 16);
    }
};

// Copies rows of global memory into the tile with all threads of the block: kCopies calls of copy16 per lane.
template <class T, class TileType, int kThreads>
struct CopyTile {
    static constexpr int kChunksInAll = TileType::kRows * TileType::kChunks;
    static constexpr int kCopies = (kChunksInAll + kThreads - 1) / kThreads;

    // Where a copy is a whole number of periods of the swizzle, a thread keeps to its chunk and only the row moves on.
    static constexpr int kCopyRows = kThreads / TileType::kChunks;
    static constexpr bool kSameChunk =
        kThreads % TileType::kChunks == 0 && kCopyRows % (TileType::kRowsPerStep * TileType::kSpan) == 0;

    // row_address(r): where row r begins, null for a row of zeros.
    template <class RowAddress>
    CLARY_DEVICE static void issue(TileType tile, const RowAddress& row_address) {
        const int thread = T::wave() * T::kLanes + T::lane();
        CLARY_UNROLL
        for (int copy = 0; copy < kCopies; ++copy) {
            const int slot = copy * kThreads + thread;  // in the order of addresses
            const bool active = kChunksInAll % kThreads == 0 || slot < kChunksInAll;
            const int row = kSameChunk ? thread / TileType::kChunks + copy * kCopyRows : slot / TileType::kChunks;
            // The xor of the swizzle is its own inverse.
            const int chunk = kSameChunk ? TileType::swizzle(thread / TileType::kChunks, thread % TileType::kChunks)
                                         : TileType::swizzle(row, slot % TileType::kChunks);
            const char* const from = active ? row_address(row) : nullptr;
            T::copy16(tile.base + static_cast<uint32_t>(slot * 16), from + (from ? chunk * 16 : 0), from != nullptr,
                      active);
        }
    }
    // Row r begins at from + r * row_stride (bytes); rows at or past `rows` are zeros.
    CLARY_DEVICE static void issue(TileType tile, const void* from, int64_t row_stride, int rows) {
        issue(tile, [=](int row) { return row < rows ? static_cast<const char*>(from) + row * row_stride : nullptr; });
    }
    // All rows exist.
    CLARY_DEVICE static void issue(TileType tile, const void* from, int64_t row_stride) {
        issue(tile, [=](int row) { return static_cast<const char*>(from) + row * row_stride; });
    }
};

}  // namespace clary::gpu
