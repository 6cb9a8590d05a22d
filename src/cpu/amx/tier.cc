// SPDX-License-Identifier: Apache-2.0
// The AMX tier: that of AVX-512, but for int8_int8 of more than 16 queries.
#include "cpu/amx/tile_kernel.h"
#include "cpu/tier.h"

namespace clary::cpu {
namespace {

using amx::TileTask;

bool by_tiles(const AttentionDesc& desc, int rows) { return desc.recipe.pv == Format::kInt8 && rows > amx::Vec::kLanes; }

int block(const AttentionDesc& desc) {
    return by_tiles(desc, TileTask::kQueries) ? TileTask::kQueries : avx512_tier().block(desc);
}

int64_t attend_scratch(const AttentionDesc& desc) {
    const int64_t few = avx512_tier().attend_scratch(desc);
    return by_tiles(desc, TileTask::kQueries) ? std::max(few, TileTask::scratch_bytes(desc)) : few;
}

void attend(const AttendProblem& problem, const AttendTask& task, void* scratch) {
    if (by_tiles(problem.desc, task.rows))
        TileTask(problem, task, scratch).run();
    else
        avx512_tier().attend(problem, task, scratch);
}

int64_t partial_floats(const AttentionDesc& desc, int rows) {
    return by_tiles(desc, rows) ? TileTask::partial_floats(desc, rows) : avx512_tier().partial_floats(desc, rows);
}

void join(const AttendProblem& problem, const AttendTask& task, const float* partials, int64_t stride, int64_t count,
          void* scratch) {
    if (by_tiles(problem.desc, task.rows))
        TileTask(problem, task, scratch).join(partials, stride, count);
    else
        avx512_tier().join(problem, task, partials, stride, count, scratch);
}

}  // namespace

const Tier& amx_tier() {
    static const Tier tier = [] {
        Tier t = avx512_tier();
        t.name = amx::Vec::kName;
        t.block = block;
        t.attend_scratch = attend_scratch;
        t.attend = attend;
        t.partial_floats = partial_floats;
        t.join = join;
        return t;
    }();
    return tier;
}

}  // namespace clary::cpu
