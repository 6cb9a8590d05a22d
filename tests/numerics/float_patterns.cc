// SPDX-License-Identifier: Apache-2.0
#include "numerics/float_patterns.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace clary::numerics {
namespace {

constexpr uint64_t kPatterns = uint64_t{1} << 32;

struct Failures {
    uint64_t count = 0;
    uint32_t first = ~0u;

    void test(const FloatCheck& check, uint32_t pattern) {
        if (check(std::bit_cast<float>(pattern))) return;
        ++count;
        first = std::min(first, pattern);
    }
    void add(const Failures& other) {
        count += other.count;
        first = std::min(first, other.first);
    }
};

Failures test_all(const std::function<FloatCheck()>& new_check) {
    const uint64_t workers = std::max(1u, std::thread::hardware_concurrency());
    std::vector<Failures> found(workers);
    std::vector<std::thread> threads;
    for (uint64_t w = 0; w < workers; ++w) {
        threads.emplace_back([&, w] {
            const FloatCheck check = new_check();
            for (uint64_t p = kPatterns * w / workers; p < kPatterns * (w + 1) / workers; ++p) {
                found[w].test(check, static_cast<uint32_t>(p));
            }
        });
    }
    Failures all;
    for (uint64_t w = 0; w < workers; ++w) {
        threads[w].join();
        all.add(found[w]);
    }
    return all;
}

Failures test_slice(const std::function<FloatCheck()>& new_check, const std::vector<double>& around) {
    const FloatCheck check = new_check();
    Failures found;
    const auto both_signs = [&](uint32_t magnitude) {
        found.test(check, magnitude);
        found.test(check, magnitude | 0x80000000u);
    };
    for (uint64_t p = 0; p < kPatterns / 2; p += 4099) both_signs(static_cast<uint32_t>(p));
    for (const uint32_t edge :
         {0u, 1u, 0x7fffffu, 0x800000u, 0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
        both_signs(edge);
    }
    for (const double value : around) {
        const uint32_t nearest = std::bit_cast<uint32_t>(static_cast<float>(value)) & 0x7fffffffu;
        for (uint32_t p = nearest < 2 ? 0 : nearest - 2; p <= nearest + 2; ++p) both_signs(p);
    }
    return found;
}

}  // namespace

bool exhaustive() {
    const char* value = std::getenv("CLARY_EXHAUSTIVE");
    return value != nullptr && std::string_view(value) == "1";
}

std::string failures(const std::function<FloatCheck()>& new_check, const std::vector<double>& around) {
    const Failures found = exhaustive() ? test_all(new_check) : test_slice(new_check, around);
    if (found.count == 0) return "";
    char text[96];
    std::snprintf(text, sizeof text, "%llu wrong, the first at fp32 pattern 0x%08x (%g)",
                  static_cast<unsigned long long>(found.count), found.first,
                  static_cast<double>(std::bit_cast<float>(found.first)));
    return text;
}

}  // namespace clary::numerics
