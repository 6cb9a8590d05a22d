// SPDX-License-Identifier: Apache-2.0
// The kernels of a CUDA build with all recipes and head dims, whatever this one has compiled: entries without code, linked in
// place of CMake's units.cc and sm90_units.cc into the program that writes docs/support_cuda.md.
#include <iterator>
#include <utility>
#include <vector>

#include "cuda/entries.h"
#include "cuda/sm90/entries.h"
#include "cuda_units.h"
#include "gpu/attention/shared_bytes.h"
#include "gpu/host/variants.h"
#include "sim/sim.h"

namespace clary::cuda {
namespace {

constexpr char kCode = 0;  // never launched

template <gpu::Machine kMachine, gpu::AttentionConfig kConfig>
constexpr uint32_t shared_bytes_on() {
    return gpu::shared_bytes_needed<sim::Sim<gpu::roomy(kMachine)>, kConfig>();
}

template <gpu::AttentionConfig kConfig>
AttentionEntry entry(Format pv) {
    return {pv,
            kConfig,
            {shared_bytes_on<gpu::kSm75, kConfig>(), shared_bytes_on<gpu::kSm80, kConfig>(),
             shared_bytes_on<gpu::kSm89, kConfig>()},
            {"", &kCode, kConfig.waves * 32}};
}

template <size_t kIndex>
QuantizeEntry quantize_entry() {
    return {gpu::kQuantizeConfigs[kIndex], {}, {}, {{"", &kCode, 0}, 0}, {}, {}, {}, {}, {}};
}
template <size_t... kIndex>
std::vector<const QuantizeEntry*> every_quantize_entry(std::index_sequence<kIndex...>) {
    static const QuantizeEntry entries[] = {quantize_entry<kIndex>()...};
    return {&entries[kIndex]...};
}

}  // namespace

std::span<const AttentionEntry* const> attention_entries() {
    static const auto all = [] {
        std::vector<const AttentionEntry*> list;
#define CLARY_ENTRY(suffix, ...) entry<kUnit.config(__VA_ARGS__)>(kUnit.pv),
#define CLARY_LIST(qk, pv, sums, variants, dim, dim_v)                                         \
    {                                                                                          \
        static constexpr gpu::Unit kUnit{Format::qk, Format::pv, gpu::Sums::sums, dim, dim_v}; \
        static const AttentionEntry entries[] = {variants(CLARY_ENTRY)};                       \
        for (const AttentionEntry& each : entries) list.push_back(&each);                      \
    }
        CLARY_UNITS(CLARY_LIST)
        return list;
    }();
    return all;
}

std::span<const QuantizeEntry* const> quantize_entries() {
    static const auto all = every_quantize_entry(std::make_index_sequence<std::size(gpu::kQuantizeConfigs)>());
    return all;
}

namespace sm90 {
namespace {

Entry entry(Format pv, int head_dim, int head_dim_v, bool key_bias, bool want_lse) {
    return {{gpu::element_of(pv), head_dim, head_dim_v, key_bias, want_lse}, 0, {"", &kCode, kThreads}};
}

}  // namespace

std::span<const std::span<const Entry>> entries() {
#define CLARY_HOPPER_LIST(qk, pv, sums, variants, dim, dim_v)                                \
    entry(Format::pv, dim, dim_v, false, false), entry(Format::pv, dim, dim_v, false, true), \
        entry(Format::pv, dim, dim_v, true, false), entry(Format::pv, dim, dim_v, true, true),
    static const Entry all[] = {CLARY_HOPPER_UNITS(CLARY_HOPPER_LIST)};
    static const std::span<const Entry> units[] = {all};
    return units;
}

}  // namespace sm90
}  // namespace clary::cuda
