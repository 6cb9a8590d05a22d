// SPDX-License-Identifier: Apache-2.0
// Uses an installed Clary from C++20 through the header-only wrapper: one shot and quantize + attend give the same
// bits, and an error arrives as an exception.
#include <clary/clary.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

int main() {
    constexpr int64_t kBatch = 1, kHeads = 4, kKvHeads = 2, kTokens = 70, kHeadDim = 48;
    std::vector<float> q(kBatch * kHeads * kTokens * kHeadDim), k(kBatch * kKvHeads * kTokens * kHeadDim), v(k.size());
    std::vector<float> one_shot(q.size()), two_phase(q.size());
    for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.7f * static_cast<float>(i));
    for (size_t i = 0; i < k.size(); ++i) {
        k[i] = std::cos(1.3f * static_cast<float>(i));
        v[i] = 1.0f + 0.5f * std::sin(2.1f * static_cast<float>(i));  // in [0.5, 1.5], and so are its weighted means
    }

    clary::Attention attention;
    attention.q = clary::tensor(q.data(), {kBatch, kHeads, kTokens, kHeadDim});
    attention.k = clary::tensor(k.data(), {kBatch, kKvHeads, kTokens, kHeadDim});
    attention.v = clary::tensor(v.data(), {kBatch, kKvHeads, kTokens, kHeadDim});
    attention.out = clary::tensor(one_shot.data(), {kBatch, kHeads, kTokens, kHeadDim});
    attention.causal = CLARY_CAUSAL_TOP_LEFT;
    attention.recipe = "int8_int8";
    attention.run();

    attention.out.data = two_phase.data();
    const auto [packed_q, packed_kv] = attention.quantize();
    attention.attend(packed_q, packed_kv);
    if (one_shot != two_phase) {
        std::fprintf(stderr, "consumer_cpp: one shot and quantize + attend differ\n");
        return 1;
    }
    for (const float value : one_shot) {
        if (!(value > 0.45f && value < 1.55f)) {
            std::fprintf(stderr, "consumer_cpp: %g is no weighted mean of V\n", static_cast<double>(value));
            return 1;
        }
    }

    attention.recipe = "int9_int8";
    try {
        attention.run();
    } catch (const clary::Error& error) {
        if (error.status() == CLARY_INVALID_ARGUMENT) {
            std::printf("consumer_cpp: kernel %s; an unknown recipe gives: %s\n", clary_last_kernel(), error.what());
            return 0;
        }
    }
    std::fprintf(stderr, "consumer_cpp: an unknown recipe was taken\n");
    return 1;
}
