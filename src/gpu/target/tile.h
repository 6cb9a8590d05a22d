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
    static constexpr uint32_t kSpan = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
    static constexpr uint32_t kRowsPerStep = 8 / kSpan;
    // Where it spans a pair of chunks, rows are an odd multiple of 32 bytes, and four of them one of 128: so rows that meet
    // a bank group differ in whether they lie in an odd or an even run of 128 bytes, and that is the key. It repeats every
    // 256 bytes, so that copies of whole tiles are runs of bytes.
    CLARY_HD static constexpr uint32_t odd_line(uint32_t byte) { return byte / 128 % 2; }

    SharedAddress base;

    // (Unsigned, so that divisions are shifts.)
    CLARY_HD static constexpr uint32_t swizzle(uint32_t row, uint32_t chunk) {
        if constexpr (kSpan == 2) return chunk ^ odd_line(row * kRowBytes + chunk * 16);
        return chunk ^ (row / kRowsPerStep % kSpan);
    }
    // From the place of (row, byte) to that of (row + rows, byte + bytes), with constants where these are: rows a
    // multiple of 8, bytes one of 32 (of 16 where byte % 32 < 16). Places count from the tile's beginning, which must be
    // a multiple of 128.
    CLARY_HD static constexpr SharedAddress move(SharedAddress from, int rows, int bytes) {
        const auto r = static_cast<uint32_t>(rows), b = static_cast<uint32_t>(bytes);
        if constexpr (kSpan == 2) {
            const uint32_t to = (from.byte ^ odd_line(from.byte) * 16) + b;
            return {(to ^ odd_line(to) * 16) + r * kRowBytes};
        }
        const uint32_t within = b % (kSpan * 16);  // the xor's reach
        return {(from.byte ^ within) + (b - within) + r * kRowBytes};
    }
    // Address of byte `byte` of a row; what is read there must not cross a chunk.
    CLARY_HD constexpr SharedAddress at(int row, int byte) const {
        const auto r = static_cast<uint32_t>(row), b = static_cast<uint32_t>(byte);
        return base + (r * kRowBytes + swizzle(r, b / 16) * 16 + b % 16);
    }
};

// Copies rows of global memory into the tile with all threads of the block: kCopies calls of copy16 per lane.
template <class T, class TileType, int kThreads>
struct CopyTile {
    static constexpr int kChunksInAll = TileType::kRows * TileType::kChunks;
    static constexpr int kCopies = (kChunksInAll + kThreads - 1) / kThreads;

    // Where a copy is a whole number of periods of the swizzle, a thread keeps to its chunk and only the row moves on.
    static constexpr uint32_t kCopyRows = kThreads / TileType::kChunks;
    static constexpr bool kSameChunk =
        kThreads % TileType::kChunks == 0 && kCopyRows % (TileType::kRowsPerStep * TileType::kSpan) == 0;
    // The same of rows without gaps in global memory.
    template <uint32_t kRowStride>
    static constexpr bool kRun = (kRowStride == TileType::kRowBytes) && TileType::kSpan == 2 && kThreads % 16 == 0;

    // row_address(r): where row r begins, null for a row of zeros.
    template <class RowAddress>
    CLARY_DEVICE static void issue(TileType tile, const RowAddress& row_address) {
        // (row_address may be long, and nothing waits for these copies.)
        CLARY_NO_UNROLL
        for (int i = 0; i < kCopies; ++i) {
            const Chunk chunk = chunk_of(i);
            const char* const from = chunk.active ? row_address(static_cast<int>(chunk.row)) : nullptr;
            T::copy16(tile.base + chunk.slot * 16, from + (from ? chunk.column * 16 : 0), from != nullptr,
                      chunk.active);
        }
    }
    // Row r begins at from + r * row_stride (bytes); rows at or past `rows` are zeros.
    CLARY_DEVICE static void issue(TileType tile, const void* from, int64_t row_stride, int rows) {
        issue(tile, [=](int row) { return row < rows ? static_cast<const char*>(from) + row * row_stride : nullptr; });
    }
    // All rows exist, and lie kRowStride bytes apart: where a thread's part of the tile at `from` begins, and the copies.
    template <uint32_t kRowStride>
    CLARY_DEVICE static const char* part_of(const char* from) {
        const Chunk first = chunk_of(0);
        return kSameChunk || kRun<kRowStride> ? from + (first.row * kRowStride + first.column * 16) : from;
    }
    template <uint32_t kRowStride>
    CLARY_DEVICE static void issue_part(TileType tile, const char* part) {
        CLARY_UNROLL
        for (int i = 0; i < kCopies; ++i) {
            const Chunk chunk = chunk_of(i);
            const uint32_t offset = kRun<kRowStride> ? static_cast<uint32_t>(i) * kThreads * 16
                                    : kSameChunk     ? static_cast<uint32_t>(i) * kCopyRows * kRowStride
                                                     : chunk.row * kRowStride + chunk.column * 16;
            T::copy16(tile.base + (chunk_of(0).slot * 16 + static_cast<uint32_t>(i * kThreads * 16)), part + offset,
                      true, chunk.active);
        }
    }

  private:
    struct Chunk {
        uint32_t slot, row, column;  // in the order of addresses; what belongs there
        bool active;
    };
    CLARY_DEVICE static Chunk chunk_of(int copy) {
        const auto slot = static_cast<uint32_t>(copy * kThreads + T::wave() * T::kLanes + T::lane());
        const uint32_t row = slot / TileType::kChunks;
        // The swizzle's xor is its own inverse.
        return {slot, row, TileType::swizzle(row, slot % TileType::kChunks),
                kChunksInAll % kThreads == 0 || slot < kChunksInAll};
    }
};

}  // namespace clary::gpu
