// SPDX-License-Identifier: Apache-2.0
// Google Benchmark over the inner loops of the CPU backend, for each tier that runs here: the scores of a tile, its softmax, its
// P V, these together, and packing K with V, and Q. int8_int8; a stage's items are scores (a key and a query), packing's are elements.
//
//   bench_cpu --benchmark_filter=avx512
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/recipe.h"
#include "cpu/attend.h"
#include "cpu/isa.h"
#include "cpu/quantize.h"
#include "stages.h"
#include "tile_rounds.h"

namespace clary::cpu {
namespace {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;
Memory memory_of(int64_t bytes) { return Memory(std::aligned_alloc(64, static_cast<size_t>(round_up(bytes, 64)))); }

// One head of N(0, 1) values, quantized.
class Head {
  public:
    Head(const Tier& tier, const char* recipe, int64_t tokens, int64_t dim)
        : tier_(tier), context_(1), values_(static_cast<size_t>(tokens * dim)) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        for (float& x : values_) x = normal(random);
        out_ = values_;
        desc_.batch = desc_.q_heads = desc_.kv_heads = 1;
        desc_.q_len = desc_.kv_len = desc_.q_tokens = desc_.kv_tokens = tokens;
        desc_.head_dim = desc_.head_dim_v = dim;
        for (Operand* operand : {&desc_.q, &desc_.k, &desc_.v}) *operand = {values_.data(), DType::kF32, 0, 0, dim, 1};
        desc_.out = {out_.data(), DType::kF32, 0, 0, dim, 1};
        desc_.scale = 0.125;
        if (!parse_recipe(recipe, &desc_.recipe).is_ok()) std::abort();
        workspace_ =
            memory_of(std::max(quantize_workspace(tier, desc_, context_), attend_workspace(tier, desc_, context_)));
        q_ = memory_of(packed_q_layout(desc_).bytes);
        kv_ = memory_of(packed_kv_layout(desc_, 0).bytes);
        quantize(q_.get(), kv_.get());
    }

    void quantize(void* q, void* kv) {
        const Call call{desc_, context_, nullptr, workspace_.get()};
        if (!cpu::quantize(tier_, call, 0, q, kv, kv_.get()).is_ok()) std::abort();
    }
    void quantize_q() { quantize(q_.get(), nullptr); }
    void quantize_kv() { quantize(nullptr, kv_.get()); }
    AttendProblem problem() const { return attend_problem(desc_, 0, q_.get(), kv_.get()); }
    const AttentionDesc& desc() const { return desc_; }
    void* workspace() const { return workspace_.get(); }

  private:
    const Tier& tier_;
    Context context_;
    std::vector<float> values_, out_;
    AttentionDesc desc_;
    Memory workspace_, q_, kv_;
};

void stage(benchmark::State& state, const Tier& tier, RunStage run, const char* recipe, Stage stage, int64_t dim) {
    Head head(tier, recipe, 256, dim);
    const AttendProblem problem = head.problem();
    const int rows = tier.block(head.desc());
    const AttendTask task{0, 0, 0, rows, sequence_of(head.desc(), 0), 0, 1, nullptr};
    constexpr int64_t kRounds = 100;
    for (auto _ : state) run(problem, task, head.workspace(), stage, kRounds);
    state.SetItemsProcessed(state.iterations() * kRounds * rows * head.desc().recipe.tile);
}

// A block of queries against 2048 keys: the stages as the whole kernel runs them.
void attend(benchmark::State& state, const Tier& tier, const char* recipe, int64_t dim) {
    constexpr int64_t kKeys = 2048;
    Head head(tier, recipe, kKeys, dim);
    const AttendProblem problem = head.problem();
    const int rows = tier.block(head.desc());
    const int64_t tiles = kKeys / head.desc().recipe.tile;
    const AttendTask task{0, 0, 0, rows, sequence_of(head.desc(), 0), 0, tiles, nullptr};
    for (auto _ : state) tier.attend(problem, task, head.workspace());
    state.SetItemsProcessed(state.iterations() * rows * kKeys);
}

void packing(benchmark::State& state, const Tier& tier, const char* recipe, bool keys, int64_t dim) {
    constexpr int64_t kTokens = 1024;
    Head head(tier, recipe, kTokens, dim);
    for (auto _ : state) keys ? head.quantize_kv() : head.quantize_q();
    state.SetItemsProcessed(state.iterations() * kTokens * dim * (keys ? 2 : 1));
}

void add(const Tier& tier, RunStage run) {
    if (!tier_unusable(tier.name).empty()) return;
    for (const char* recipe : {"int8_int8:accurate", "int8_int8:fast"})
        for (const int64_t dim : {64, 128}) {
            const auto name = [&](const char* what) {
                return std::string(tier.name) + "/" + what + "/" + recipe + "/D" + std::to_string(dim);
            };
            benchmark::RegisterBenchmark(name("attend").c_str(),
                                         [=, &tier](benchmark::State& state) { attend(state, tier, recipe, dim); });
            if (!run) continue;  // by another tier's vectors
            for (const auto& [what, which] : {std::pair{"scores", Stage::kScores},
                                              {"softmax", Stage::kSoftmax},
                                              {"accumulate", Stage::kAccumulate}})
                benchmark::RegisterBenchmark(name(what).c_str(), [=, &tier, which = which](benchmark::State& state) {
                    stage(state, tier, run, recipe, which, dim);
                });
            for (const bool keys : {true, false})
                benchmark::RegisterBenchmark(
                    name(keys ? "pack_kv" : "pack_q").c_str(),
                    [=, &tier](benchmark::State& state) { packing(state, tier, recipe, keys, dim); });
        }
}

}  // namespace
}  // namespace clary::cpu

int main(int argc, char** argv) {
    using namespace clary::cpu;
    add(amx_tier(), nullptr);
    if (tier_unusable(amx_tier().name).empty()) add_tile_rounds();
    add(avx512_tier(), kRunAvx512Stage);
    add(avxvnni_tier(), kRunAvxvnniStage);
    add(avx2_tier(), kRunAvx2Stage);
    add(generic_tier(), kRunGenericStage);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
