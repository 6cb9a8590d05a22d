// SPDX-License-Identifier: Apache-2.0
// What the CPU backend asks of one instruction-set tier, and the plain structs that pass between the drivers
// (attend.cc, quantize.cc: no vector code) and the kernels (attention_kernel.h, pack_kernel.h: compiled once per tier).
#pragma once

#include <cstdint>

#include "core/desc.h"
#include "core/packed.h"

namespace clary::cpu {

inline constexpr int kMaxTile = 128;  // keys

// Packed Q, K and V as pointers, and the numbers that every attend task shares.
struct AttendProblem {
    const AttentionDesc& desc;
    PackedRows q_rows, kv_rows;
    int64_t dim, dim_v;  // padded to kDimMultiple
    float a;             // |scale| log2 e: base-2 score per unit of q.k (the sign of scale lies in Q's codes)

    const void* q_codes;      // int8 or fp32 [.., row, dim]
    const float* q_scale;     // [.., row]; NaN: the row holds a non-finite value
    const uint8_t* q_repeat;  // [.., row] or null; 0: the bias is added in fp32 (a row louder than a frozen q_base)
    const float* q_shift;     // [.., row] or null: scale q.c_k, natural units

    const int64_t* lengths;  // [sequence]
    const void* k_codes;     // int8 or fp32 [.., row, dim]
    const float* k_scale;    // [.., row]
    const int16_t* k_pair;   // [.., row, 2]: bias units, sum of the codes
    const float* tile_base;  // [.., tile]; NaN: the tile holds a non-finite value
    const float* q_base;     // [sequence, kv head]

    const void* v_codes;      // int8 [.., tile, dim_v, tile keys permuted] or fp16/bf16/fp32 [.., row, dim_v]
    const float* v_scale;     // by recipe, see docs/packed_format.md; null for bf16 and fp32 V
    const uint8_t* v_weight;  // [.., row] in V's permuted order, or null
    const float* v_mean;      // [sequence, kv head, dim_v] or null
};

// The queries of one task: rows first_row .. of a (sequence, kv head). Row r is query r / G of q head
// kv_head * G + r % G, G = q heads per kv head, so that a group shares its K and V tiles.
struct AttendTask {
    int64_t b, kv_head, first_row;
    int rows;  // <= the tier's block
    Sequence sequence;
    int64_t first_tile, end_tile;  // of its keys
    float* partial;                // where the unfinished result of a piece of the keys goes; null: these are all
};

// One tile of K and V to pack: raw rows in, packed sections out.
struct PackTile {
    const AttentionDesc& desc;
    int64_t dim, dim_v;  // padded
    int keys;            // valid keys; the rest of the tile becomes zeros
    float a;

    const float* k_rows;  // [tile, dim], zeros past the keys and past head_dim
    const float* v_rows;  // [tile, dim_v], likewise
    const float* c_k;     // [dim]
    const float* c_q;     // [dim]
    float q_base;
    const float* v_channel_scale;  // [dim_v] of this (sequence, head) where v_scale is per channel
    const float* v_mean;           // [dim_v] or null; not rotated

    int8_t* k_codes;
    float* k_scale;
    int16_t* k_pair;
    float* tile_base;
    void* v_codes;
    float* v_scale;  // this tile's: [1] or [dim_v]; unused per channel
    uint8_t* v_weight;
};

// A block of Q rows of one head to pack.
struct PackQueries {
    const AttentionDesc& desc;
    int64_t dim;  // padded
    int rows;
    int64_t first_row;    // within the sequence, for the scale groups; a multiple of 128
    const float* q_rows;  // [128, dim], zeros past the rows and past head_dim
    const float* c_k;     // [dim] or null
    const float* c_q;     // [dim]
    float q_base;         // used with a key bias

    int8_t* q_codes;
    float* q_scale;
    uint8_t* q_repeat;  // or null
    float* q_shift;     // or null
};

struct QueryNeeds {
    double sum;
    int64_t rows;
    float largest;
};

struct Tier {
    const char* name;                         // "amx", "avx512", "avx2", "generic"
    int (*block)(const AttentionDesc& desc);  // query rows of a task

    int64_t (*attend_scratch)(const AttentionDesc& desc);  // bytes per thread
    void (*attend)(const AttendProblem& problem, const AttendTask& task, void* scratch);
    int64_t (*partial_floats)(const AttentionDesc& desc, int rows);  // of a task with so many rows or fewer
    // Writes the result of a task's rows from the partials of its pieces.
    void (*join)(const AttendProblem& problem, const AttendTask& task, const float* partials, int64_t stride,
                 int64_t count, void* scratch);

    int64_t (*pack_scratch)(const AttentionDesc& desc);  // bytes per thread
    void (*pack_kv_tile)(const PackTile& tile, void* scratch);
    void (*pack_queries)(const PackQueries& queries, void* scratch);
    // Adds the needs (amax / 127 of rotated q - c_q) of the finite rows; for q_base.
    void (*query_needs)(const PackQueries& queries, void* scratch, QueryNeeds* total);
    // Widens low, high [dim_v] by the rotated V rows [128, dim_v], of which `count` count.
    void (*channel_range)(const AttentionDesc& desc, const float* rows, int count, float* low, float* high,
                          void* scratch);
    // Adds the columns of rows [count, dim] to sums; left_out counts the non-finite values of each column.
    void (*add_columns)(const float* rows, int count, int64_t dim, double* sums, double* left_out);
    // Contiguous elements of fp32, fp16 or bf16 to fp32.
    void (*load_span)(float* to, const void* from, DType dtype, int64_t count);
};

const Tier& generic_tier();
const Tier& avx2_tier();
const Tier& neon_tier();
const Tier& avxvnni_tier();
const Tier& avx512_tier();
const Tier& amx_tier();

}  // namespace clary::cpu
