// SPDX-License-Identifier: Apache-2.0
// Makes a tier's table from its Vec. Included by cpu/<tier>/tier.cc only, which is compiled for that instruction set.
#pragma once

#include "cpu/attention_kernel.h"
#include "cpu/pack_kernel.h"
#include "cpu/tier.h"

namespace clary::cpu {

template <class V>
struct TierFunctions {
    static constexpr int kBlock = V::kQueryVectors * V::kLanes;

    // Calls f with the kernel of the recipe and of the number of rows: few rows take few vectors, very few share them.
    template <typename Function>
    static auto with_kernel(const Recipe& recipe, int rows, Function&& f) {
        if (rows <= V::kLanes / 4) return with_formats<1, 4>(recipe, f);
        if (rows <= V::kLanes / 2) return with_formats<2, 4>(recipe, f);
        if (rows <= V::kLanes) return with_formats<1, 1>(recipe, f);
        return with_formats<V::kQueryVectors, 1>(recipe, f);
    }

    template <int C, int L, typename Function>
    static auto with_formats(const Recipe& recipe, Function&& f) {
        using enum Format;
        if (recipe.qk == kFp32) return f(static_cast<AttentionKernel<V, kFp32, kFp32, C, L>*>(nullptr));
        if (recipe.pv == kInt8) return f(static_cast<AttentionKernel<V, kInt8, kInt8, C, L>*>(nullptr));
        if (recipe.pv == kFp16) return f(static_cast<AttentionKernel<V, kInt8, kFp16, C, L>*>(nullptr));
        return f(static_cast<AttentionKernel<V, kInt8, kBf16, C, L>*>(nullptr));
    }

    static int block(const AttentionDesc&) { return kBlock; }
    static int64_t attend_scratch(const AttentionDesc& desc) {
        int64_t bytes = 0;
        for (const int rows : {V::kLanes / 4, V::kLanes / 2, V::kLanes, kBlock})
            bytes = std::max(bytes, with_kernel(desc.recipe, rows,
                                                [&]<class Kernel>(Kernel*) { return Kernel::scratch_bytes(desc); }));
        return bytes;
    }
    static void attend(const AttendProblem& problem, const AttendTask& task, void* scratch) {
        with_kernel(problem.desc.recipe, task.rows,
                    [&]<class Kernel>(Kernel*) { Kernel(problem, task, scratch).run(); });
    }
    static int64_t partial_floats(const AttentionDesc& desc, int rows) {
        return with_kernel(desc.recipe, rows, [&]<class Kernel>(Kernel*) { return Kernel::partial_floats(desc); });
    }
    static void join(const AttendProblem& problem, const AttendTask& task, const float* partials, int64_t stride,
                     int64_t count, void* scratch) {
        with_kernel(problem.desc.recipe, task.rows,
                    [&]<class Kernel>(Kernel*) { Kernel(problem, task, scratch).join(partials, stride, count); });
    }

    static int64_t pack_scratch(const AttentionDesc& desc) { return Packer<V>::scratch_bytes(desc); }
    static void pack_kv_tile(const PackTile& tile, void* scratch) { Packer<V>(tile.desc, scratch).pack(tile); }
    static void pack_queries(const PackQueries& queries, void* scratch) {
        Packer<V>(queries.desc, scratch).pack(queries);
    }
    static void query_needs(const PackQueries& queries, void* scratch, QueryNeeds* total) {
        Packer<V>(queries.desc, scratch).needs(queries, total);
    }
    static void channel_range(const AttentionDesc& desc, const float* rows, int count, float* low, float* high,
                              void* scratch) {
        Packer<V>(desc, scratch).channel_range(rows, count, low, high);
    }

    static constexpr Tier kTier{
        V::kName,     block,        attend_scratch, attend,        partial_floats,         join,        pack_scratch,
        pack_kv_tile, pack_queries, query_needs,    channel_range, Packer<V>::add_columns, load_span<V>};
};

}  // namespace clary::cpu
