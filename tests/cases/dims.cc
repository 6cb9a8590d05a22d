// SPDX-License-Identifier: Apache-2.0
// Head dims: those of real models, odd ones, the limits, and V wider or narrower than Q and K.
#include <fmt/format.h>

#include "cases/case.h"

namespace clary::cases {

std::vector<Case> dim_cases() {
    std::vector<Case> cases;
    const auto add = [&](int64_t dim, int64_t dim_v) {
        cases.push_back({.name = dim == dim_v ? fmt::format("dim{}", dim) : fmt::format("dim{}_v{}", dim, dim_v),
                         .topic = dim > 256 || dim_v > 256 ? "head dim above 256" : "head dims",
                         .q_heads = 2,
                         .q_len = 20,
                         .kv_len = 145,
                         .dim = dim,
                         .dim_v = dim_v});
        cases.back().kv_heads = 1;
    };
    for (const int64_t dim : {1, 3, 8, 16, 32, 40, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256}) add(dim, dim);
    add(64, 128);
    add(192, 128);
    add(80, 33);
    add(16, 256);
    add(1, 3);
    add(300, 300);
    add(64, 512);
    return cases;
}

}  // namespace clary::cases
