// SPDX-License-Identifier: Apache-2.0
#include "sim/banks.h"

#include <algorithm>
#include <array>

namespace clary::sim {
namespace {

constexpr uint32_t kBanks = 32;
constexpr int kMaxWords = 256;  // 64 lanes of 16 bytes

int excess_of_phase(const uint32_t* addresses, int count, uint32_t words) {
    // Eight lanes of 16 bytes in eight different bank groups: the common case.
    if (words == 4 && count <= 8) {
        uint32_t groups = 0;
        for (int i = 0; i < count; ++i) groups |= 1u << (addresses[i] / 16 % 8);
        if (static_cast<int>(__builtin_popcount(groups)) == count) return 0;
    }
    std::array<uint32_t, kMaxWords> word;
    int total = 0;
    for (int i = 0; i < count; ++i)
        for (uint32_t w = 0; w < words; ++w) word[static_cast<size_t>(total++)] = addresses[i] / 4 + w;
    std::sort(word.begin(), word.begin() + total);
    const auto end = std::unique(word.begin(), word.begin() + total);
    std::array<int, kBanks> load{};
    for (auto w = word.begin(); w != end; ++w) ++load[*w % kBanks];
    const int distinct = static_cast<int>(end - word.begin());
    return *std::max_element(load.begin(), load.end()) - (distinct + 31) / 32;
}

}  // namespace

int excess_passes(gpu::Vendor vendor, const uint32_t* addresses, int count, uint32_t bytes) {
    const uint32_t words = std::max(bytes / 4, 1u);
    const int phase = vendor == gpu::Vendor::kMetax ? 64 : 32 / static_cast<int>(words);
    int excess = 0;
    for (int first = 0; first < count; first += phase)
        excess += excess_of_phase(addresses + first, std::min(phase, count - first), words);
    return excess;
}

}  // namespace clary::sim
