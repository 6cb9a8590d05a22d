// SPDX-License-Identifier: Apache-2.0
// Problems for simulated kernels: operands as the reference quantizes them, the oracle's answer, and a run that holds the
// kernel to every rule.
#pragma once

#include <string>

#include "cases/problem.h"
#include "cases/tolerances.h"
#include "gpu/arrangement.h"
#include "gpu/kernels.h"

namespace clary::cases {

// Exact recipes have no tiles; the kernels take 64 keys at a time, and so must the oracle, because fp16's P is
// rounded alike for all tiles only above its subnormals.
AttentionDesc gpu_desc_of(const Problem& problem, const std::string& recipe);

// Packed operands in buffers of the machine's arrangement; all that is not an element is 0, as the packing kernels leave it.
struct ReferencePacked {
    ReferencePacked(const AttentionDesc& desc, const Arrangement& arrangement);
    const Arrangement& arrangement;
    PackedLayout q_layout, kv_layout;
    Guarded q, kv;
};

// From identical packed operands, in double precision.
Output oracle_of(const Problem& problem, const AttentionDesc& desc, const ReferencePacked& packed);

// Copies land late, then early, from run to run; the waves' order changes with it.
sim::Options next_options();

// Runs the kernel on poisoned outputs. Expects no complaint of the simulator, no bank conflict, and inputs and gaps
// untouched. With `pieces` > 1 the keys are cut into so many, whatever the library would do.
void run(const Simulated& kernel, Problem* problem, const AttentionDesc& desc, const Guarded& q, const Guarded& kv,
         int pieces = 1);

// Results are within the tolerances of the oracle's. Not a number counts as equal to itself.
void expect_near(const Output& result, const Output& oracle, const Recipe& recipe, const Case& c);

// run() and expect_near() for the kernel of each machine that serves the problem; how many those were.
int check_all_machines(Problem* problem, const char* recipe, int pieces = 1);

}  // namespace clary::cases
