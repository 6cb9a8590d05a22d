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

    // Calls f with the kernel of the recipe and of the number of queries: few queries take one vector.
    template <typename Function>
    static void with_kernel(const Recipe& recipe, int rows, Function&& f) {
        if (rows <= V::kLanes)
            with_formats<1>(recipe, f);
        else
            with_formats<V::kQueryVectors>(recipe, f);
    }

    template <int C, typename Function>
    static void with_formats(const Recipe& recipe, Function&& f) {
        using enum Format;
        if (recipe.qk == kFp32)
            f(static_cast<AttentionKernel<V, kFp32, kFp32, C>*>(nullptr));
        else if (recipe.pv == kInt8)
            f(static_cast<AttentionKernel<V, kInt8, kInt8, C>*>(nullptr));
        else if (recipe.pv == kFp16)
            f(static_cast<AttentionKernel<V, kInt8, kFp16, C>*>(nullptr));
        else
            f(static_cast<AttentionKernel<V, kInt8, kBf16, C>*>(nullptr));
    }

    static int64_t attend_scratch(const AttentionDesc& desc) {
        int64_t bytes = 0;
        with_kernel(desc.recipe, kBlock, [&]<class Kernel>(Kernel*) { bytes = Kernel::scratch_bytes(desc); });
        return bytes;
    }
    static void attend(const AttendProblem& problem, const AttendTask& task, void* scratch) {
        with_kernel(problem.desc.recipe, task.rows,
                    [&]<class Kernel>(Kernel*) { Kernel(problem, task, scratch).run(); });
    }

    static int64_t pack_scratch(const AttentionDesc& desc) { return Packer<V>::scratch_bytes(desc); }
    static void pack_kv_tile(const PackTile& tile, void* scratch) { Packer<V>(tile.desc, scratch).pack(tile); }
    static void pack_queries(const PackQueries& queries, void* scratch) {
        Packer<V>(queries.desc, scratch).pack(queries);
    }
    static void query_needs(const PackQueries& queries, void* scratch, QueryNeeds* total) {
        Packer<V>(queries.desc, scratch).needs(queries, total);
    }
    static void channel_range(const AttentionDesc& desc, float* rows, int count, float* low, float* high,
                              void* scratch) {
        Packer<V>(desc, scratch).channel_range(rows, count, low, high);
    }

    static constexpr Tier kTier{V::kName,     kBlock,       attend_scratch, attend,        pack_scratch,
                                pack_kv_tile, pack_queries, query_needs,    channel_range, Packer<V>::add_columns,
                                load_span<V>};
};

}  // namespace clary::cpu
