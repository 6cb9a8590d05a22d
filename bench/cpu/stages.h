// SPDX-License-Identifier: Apache-2.0
// The stages of the attention kernel of one tier, each on its own: a full block of queries against the first tile of keys,
// again and again. Included by stages_<tier>.cc, which is compiled for that tier.
#pragma once

#include "cpu/attention_kernel.h"

namespace clary::cpu {

enum class Stage { kScores, kSoftmax, kAccumulate };

template <class V>
class Stages : AttentionKernel<V, Format::kInt8, Format::kInt8, V::kQueryVectors, 1> {
    using Kernel = AttentionKernel<V, Format::kInt8, Format::kInt8, V::kQueryVectors, 1>;

  public:
    static void run(const AttendProblem& problem, const AttendTask& task, void* scratch, Stage stage, int64_t rounds) {
        Stages(problem, task, scratch).repeat(stage, problem.desc.recipe.tile, rounds);
    }

  private:
    using Kernel::Kernel;

    void repeat(Stage stage, int keys, int64_t rounds) {
        this->load_queries();
        this->set_ranges();
        this->scores(0, keys);
        this->softmax(0, keys);
        for (int64_t i = 0; i < rounds; ++i) {
            if (stage == Stage::kScores) this->scores(0, keys);
            if (stage == Stage::kSoftmax) this->softmax(0, keys);
            if (stage == Stage::kAccumulate) this->accumulate(0, keys);
        }
    }
};

using RunStage = void (*)(const AttendProblem& problem, const AttendTask& task, void* scratch, Stage stage,
                          int64_t rounds);
extern const RunStage kRunGenericStage, kRunAvx2Stage, kRunAvxvnniStage, kRunAvx512Stage;

}  // namespace clary::cpu
