// SPDX-License-Identifier: Apache-2.0
// The AMX tier: that of AVX-512, but for int8_int8 and int8_bf16 of more than 16 queries and more than a few keys.
#include "cpu/tier.h"
#include "cpu/amx/bf16_kernel.h"
#include "cpu/amx/int8_kernel.h"

namespace clary::cpu {
namespace {

using amx::TileTask;

// f(the kernel for so many rows), or few() where AVX-512 serves: it reads a cache as fast as memory gives it.
template <typename Function, typename Few>
auto with_kernel(const AttentionDesc& desc, int rows, Function&& f, Few&& few) {
    if (rows > amx::Vec::kLanes && desc.recipe.pv == Format::kInt8)
        return f(static_cast<TileTask<amx::Int8Block>*>(nullptr));
    if (rows > amx::Vec::kLanes && desc.recipe.pv == Format::kBf16 && desc.recipe.quantized())
        return f(static_cast<TileTask<amx::Bf16Block>*>(nullptr));
    return few();
}

constexpr int kManyRows = TileTask<amx::Int8Block>::kQueries;

int block(const AttentionDesc& desc) {
    return with_kernel(
        desc, kManyRows, []<class Kernel>(Kernel*) { return Kernel::kQueries; },
        [&] { return avx512_tier().block(desc); });
}

int64_t attend_scratch(const AttentionDesc& desc) {
    const int64_t few = avx512_tier().attend_scratch(desc);
    return with_kernel(
        desc, kManyRows, [&]<class Kernel>(Kernel*) { return std::max(few, Kernel::scratch_bytes(desc)); },
        [&] { return few; });
}

// In blocks of AVX-512's. Of whole sequences alone: those that are cut into pieces (cpu/attend.cc) have more keys.
void attend_with_vectors(const AttendProblem& problem, const AttendTask& task, void* scratch) {
    const int block = avx512_tier().block(problem.desc);
    for (int row = 0; row < task.rows; row += block) {
        AttendTask part = task;
        part.first_row += row;
        part.rows = std::min(task.rows - row, block);
        avx512_tier().attend(problem, part, scratch);
    }
}

void attend(const AttendProblem& problem, const AttendTask& task, void* scratch) {
    // A task may be a part of a block (cpu/attend.cc): its kernel is the one that the whole would take.
    const int rows = static_cast<int>(task.first_row % kManyRows) + task.rows;
    with_kernel(
        problem.desc, rows,
        [&]<class Kernel>(Kernel*) {
            if (task.sequence.kv_len < Kernel::kFewestKeys)  // never cut into pieces: nothing for join() is saved
                attend_with_vectors(problem, task, scratch);
            else
                Kernel(problem, task, scratch).run();
        },
        [&] { avx512_tier().attend(problem, task, scratch); });
}

int64_t partial_floats(const AttentionDesc& desc, int rows) {
    return with_kernel(
        desc, rows, [&]<class Kernel>(Kernel*) { return Kernel::partial_floats(desc, rows); },
        [&] { return avx512_tier().partial_floats(desc, rows); });
}

// (Blocks of sequences in pieces are whole: their rows say which kernel saved the pieces.)
void join(const AttendProblem& problem, const AttendTask& task, const float* partials, int64_t stride, int64_t count,
          void* scratch) {
    with_kernel(
        problem.desc, task.rows,
        [&]<class Kernel>(Kernel*) { Kernel(problem, task, scratch).join(partials, stride, count); },
        [&] { avx512_tier().join(problem, task, partials, stride, count, scratch); });
}

// Quantization is that of AVX-512. (The table is a constant: amx_tier() is called on every machine.)
int64_t pack_scratch(const AttentionDesc& desc) { return avx512_tier().pack_scratch(desc); }
void pack_kv_tile(const PackTile& tile, void* scratch) { avx512_tier().pack_kv_tile(tile, scratch); }
void pack_queries(const PackQueries& queries, void* scratch) { avx512_tier().pack_queries(queries, scratch); }
void query_needs(const PackQueries& queries, void* scratch, QueryNeeds* total) {
    avx512_tier().query_needs(queries, scratch, total);
}
void channel_range(const AttentionDesc& desc, const float* rows, int count, float* low, float* high, void* scratch) {
    avx512_tier().channel_range(desc, rows, count, low, high, scratch);
}
void add_columns(const float* rows, int count, int64_t dim, double* sums, double* left_out) {
    avx512_tier().add_columns(rows, count, dim, sums, left_out);
}
void load_span(float* to, const void* from, DType dtype, int64_t count) {
    avx512_tier().load_span(to, from, dtype, count);
}

constexpr Tier kTier{amx::Vec::kName, block,        attend_scratch, attend,      partial_floats, join,
                     pack_scratch,    pack_kv_tile, pack_queries,   query_needs, channel_range,  add_columns,
                     load_span};

}  // namespace

const Tier& amx_tier() { return kTier; }

}  // namespace clary::cpu
