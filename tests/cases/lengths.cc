// SPDX-License-Identifier: Apache-2.0
// Lengths around tiles (64, 128), V's runs (16), vectors (4, 8, 16) and blocks of queries; heads in groups.
#include <fmt/format.h>

#include "cases/case.h"

namespace clary::cases {
namespace {

constexpr int64_t kLengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300};

Case of_lengths(int64_t q_len, int64_t kv_len, Causal causal) {
    return {.name = fmt::format("q{}_k{}{}", q_len, kv_len, causal == Causal::kNone ? "" : "_causal"),
            .topic = "lengths",
            .batch = 1,
            .q_heads = 2,
            .kv_heads = 1,
            .q_len = q_len,
            .kv_len = kv_len,
            .dim = 32,
            .causal = causal};
}

}  // namespace

std::vector<Case> length_cases() {
    std::vector<Case> cases;
    // Each length once as q and once as kv, against a partner that differs.
    constexpr size_t kCount = std::size(kLengths);
    for (size_t i = 0; i < kCount; ++i) {
        cases.push_back(of_lengths(kLengths[i], kLengths[(i * 7 + 4) % kCount], Causal::kNone));
        cases.push_back(of_lengths(kLengths[(i * 4 + 9) % kCount], kLengths[i], Causal::kBottomRight));
    }
    cases.push_back({.name = "no_queries", .topic = "lengths", .batch = 2, .q_heads = 2, .q_len = 0, .kv_len = 5});
    cases.push_back({.name = "no_keys", .topic = "lengths", .batch = 2, .q_heads = 2, .q_len = 5, .kv_len = 0});
    cases.push_back({.name = "no_batch", .topic = "lengths", .batch = 0, .q_len = 5, .kv_len = 5});
    for (const auto& [q_heads, kv_heads] : {std::pair{1, 1}, {3, 3}, {6, 3}, {9, 3}, {7, 1}, {28, 4}, {32, 1}, {64, 1}})
        cases.push_back({.name = fmt::format("heads_{}_{}", q_heads, kv_heads),
                         .topic = "grouped heads",
                         .batch = 2,
                         .q_heads = q_heads,
                         .kv_heads = kv_heads,
                         .q_len = 11,
                         .kv_len = 70,
                         .dim = 32,
                         .causal = q_heads == 9 ? Causal::kBottomRight : Causal::kNone});
    cases.push_back({.name = "decode",
                     .topic = "grouped heads",
                     .batch = 3,
                     .q_heads = 8,
                     .kv_heads = 2,
                     .q_len = 1,
                     .kv_len = 300,
                     .dim = 64});
    return cases;
}

std::vector<Case> exhaustive_length_cases() {
    std::vector<Case> cases;
    for (const int64_t q_len : kLengths)
        for (const int64_t kv_len : kLengths)
            for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
                Case c = of_lengths(q_len, kv_len, causal);
                if (causal == Causal::kTopLeft) c.name += "_top_left";
                cases.push_back(c);
            }
    return cases;
}

}  // namespace clary::cases
