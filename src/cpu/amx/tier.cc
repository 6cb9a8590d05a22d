// SPDX-License-Identifier: Apache-2.0
// The AMX tier: that of AVX-512, but for int8_int8 and int8_bf16 of more than 16 queries.
#include "cpu/amx/bf16_kernel.h"
#include "cpu/amx/int8_kernel.h"
#include "cpu/tier.h"

namespace clary::cpu {
namespace {

using amx::TileTask;

// f(the kernel for so many rows), or few() where AVX-512 serves: it reads a cache as fast as memory gives it.
template <typename Function, typename Few>
auto with_kernel(const AttentionDesc& desc, int rows, Function&& f, Few&& few) {
    if (rows > amx::Vec::kLanes && desc.recipe.pv == Format::kInt8) return f(static_cast<TileTask<amx::Int8Block>*>(nullptr));
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

void attend(const AttendProblem& problem, const AttendTask& task, void* scratch) {
    with_kernel(
        problem.desc, task.rows, [&]<class Kernel>(Kernel*) { Kernel(problem, task, scratch).run(); },
        [&] { avx512_tier().attend(problem, task, scratch); });
}

int64_t partial_floats(const AttentionDesc& desc, int rows) {
    return with_kernel(
        desc, rows, [&]<class Kernel>(Kernel*) { return Kernel::partial_floats(desc, rows); },
        [&] { return avx512_tier().partial_floats(desc, rows); });
}

void join(const AttendProblem& problem, const AttendTask& task, const float* partials, int64_t stride, int64_t count,
          void* scratch) {
    with_kernel(
        problem.desc, task.rows,
        [&]<class Kernel>(Kernel*) { Kernel(problem, task, scratch).join(partials, stride, count); },
        [&] { avx512_tier().join(problem, task, partials, stride, count, scratch); });
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
