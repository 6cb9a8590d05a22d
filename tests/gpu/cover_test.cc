// SPDX-License-Identifier: Apache-2.0
// Problems drawn for the table of kernels: a pairwise cover of machine, formats, head dims, tile, variant, granularity,
// options, mask, layout and element type; and on sm80 at head dim 64 all of these crossed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "gpu/run.h"
#include "gpu/target/products.h"

namespace clary::cases {
namespace {

constexpr const char* kGranularities[] = {"per_block", "per_warp", "per_thread", "per_token", "fine", "per_tensor"};
constexpr const char* kOptions8[] = {"", "+smooth_v+no_rotate_v", "+v_scale=channel_tile+rotate_v"};
constexpr const char* kOptions16[] = {"", "+smooth_v+rotate_v", "+no_smooth_k+no_rotate"};
constexpr size_t kCrossed = 5;  // of these, with everything
enum class Mask { kNone, kCausal, kWindow, kLengths, kBoolean, kAdditive, kAlibi, kCount };
constexpr Layout kLayouts[] = {Layout::kHnd, Layout::kNhd, Layout::kGaps, Layout::kTransposed};
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// What a problem is drawn from, besides the kernel.
struct Draw {
    size_t granularity, option, mask, layout, type;
};

bool biased(size_t mask) { return mask >= static_cast<size_t>(Mask::kBoolean); }

Case case_of(const gpu::AttentionNeeds& needs, const Draw& draw) {
    // Every other layout leaves head dims that need padding.
    const int64_t less = draw.layout % 2 == 1 ? 5 : 0;
    Case c{.name = "drawn",
           .batch = 1,
           .q_heads = 2,
           .kv_heads = 1,
           .q_len = 37,
           .kv_len = 150,
           .dim = needs.head_dim - less,
           .dim_v = needs.head_dim_v - less,
           .q = kTypes[draw.type],
           .k = kTypes[draw.type],
           .v = kTypes[draw.type],
           .out = kTypes[draw.type],
           .q_layout = kLayouts[draw.layout],
           .out_layout = kLayouts[draw.layout]};
    switch (static_cast<Mask>(draw.mask)) {
        case Mask::kCausal:
            c.causal = Causal::kBottomRight;
            break;
        case Mask::kWindow:
            c.causal = Causal::kBottomRight;
            c.window = {.enabled = true, .left = 40, .right = -1, .keep = 3};
            c.sinks = true;
            break;
        case Mask::kLengths:
            c.batch = 2;
            c.kv_lengths = {129, 64};
            break;
        case Mask::kBoolean:
            c.mask = MaskForm::kBoolean;
            break;
        case Mask::kAdditive:
            c.mask = MaskForm::kBF16;
            c.mask_axes[1] = false;
            c.causal = Causal::kTopLeft;
            break;
        case Mask::kAlibi:
            c.alibi = true;
            c.causal = Causal::kBottomRight;
            break;
        default:
            break;
    }
    return c;
}

std::string recipe_of(const gpu::AttentionNeeds& needs, const Draw& draw) {
    std::string formats = fmt::format("{}_{}", element_name(needs.qk), element_name(needs.v));
    if (needs.qk != gpu::Element::kS8) return formats;
    const bool fp8 = needs.v == gpu::Element::kE4m3, wide = needs.sums == gpu::Sums::kWide;
    // Kernels with sums of fp16 take 16-bit V of both tiles.
    const int tile = fp8 || wide || draw.layout % 2 == 0 ? needs.tile_k : 128;
    const char* const sums = wide                                ? ""
                             : needs.sums == gpu::Sums::kHalfRow ? "+accum=fp16"
                             : fp8                               ? "+accum=fp32_fp16"
                                                                 : "+accum=fp16_fp32";
    return fmt::format("{}{}+tile={}+granularity={}{}{}", formats, needs.key_bias ? "" : ":fast", tile,
                       kGranularities[draw.granularity],
                       (gpu::element_bits(needs.v) == 8 ? kOptions8 : kOptions16)[draw.option], sums);
}

// Whether the kernel is one for such a problem, and options that mean nothing are drawn once.
bool fits(const gpu::AttentionConfig& config, const gpu::AttentionNeeds& needs, const Draw& draw) {
    if (needs.qk != gpu::Element::kS8 && (draw.granularity > 0 || draw.option > 0)) return false;
    AttentionDesc desc;
    if (!parse_recipe(recipe_of(needs, draw), &desc.recipe).is_ok()) return false;
    desc.head_dim = needs.head_dim;
    desc.head_dim_v = needs.head_dim_v;
    if (biased(draw.mask)) desc.mask_kind = MaskKind::kBoolean;
    return gpu::serves(config, desc);
}

void check(const Simulated& kernel, const Draw& draw) {
    const gpu::AttentionNeeds& needs = kernel.entry.needs;
    const std::string recipe = recipe_of(needs, draw);
    SCOPED_TRACE(fmt::format("{}, {}, mask {}, layout {}, type {}", name_of(kernel.entry), recipe, draw.mask,
                             draw.layout, draw.type));
    Problem problem(case_of(needs, draw));
    const AttentionDesc desc = gpu_desc_of(problem, recipe);
    const ReferencePacked packed(desc, gpu::arrangement_of(kernel.entry.machine));
    run(kernel, &problem, desc, packed.q, packed.kv);
    if (testing::Test::HasFatalFailure()) return;
    expect_near(problem.output(), oracle_of(problem, desc, packed), desc.recipe, problem.spec());
}

template <class Visit>
void for_draws(const Visit& visit) {
    for (size_t granularity = 0; granularity < std::size(kGranularities); ++granularity)
        for (size_t option = 0; option < std::size(kOptions8); ++option)
            for (size_t mask = 0; mask < static_cast<size_t>(Mask::kCount); ++mask)
                for (size_t layout = 0; layout < std::size(kLayouts); ++layout)
                    for (size_t type = 0; type < std::size(kTypes); ++type)
                        visit(Draw{granularity, option, mask, layout, type});
}

// -- pairs --

// The factors of a run as numbers: machine, formats, head dims, tile, variant, granularity, options, mask, layout, type.
// -1: the kernel has no such factor.
constexpr size_t kKernelFactors = 5, kFactors = 10;
using Factors = std::array<int, kFactors>;

Factors factors_of(const KernelEntry& kernel, const Draw& draw) {
    const gpu::AttentionNeeds& n = kernel.needs;
    const bool exact = n.qk != gpu::Element::kS8;
    const auto at = [](size_t x) { return static_cast<int>(x); };
    return {at(static_cast<size_t>(kernel.machine.chip)),
            (at(static_cast<size_t>(n.qk)) * 16 + at(static_cast<size_t>(n.v))) * 4 + at(static_cast<size_t>(n.sums)),
            n.head_dim * 1000 + n.head_dim_v,
            exact ? -1 : n.tile_k,
            n.key_bias * 4 + n.biased * 2 + (n.key_scales == gpu::KeyScales::kKey && !n.biased),
            exact ? -1 : at(draw.granularity),
            exact ? -1 : at(draw.option),
            at(draw.mask),
            at(draw.layout),
            at(draw.type)};
}

using Pair = std::array<int, 4>;  // two factors and their values

template <class Visit>
void for_pairs(const Factors& f, size_t count, const Visit& visit) {
    for (size_t i = 0; i < count; ++i)
        for (size_t j = i + 1; j < count; ++j)
            if (f[i] >= 0 && f[j] >= 0) visit(Pair{static_cast<int>(i), static_cast<int>(j), f[i], f[j]});
}

// Draws for every kernel, until no draw for any kernel has a pair that none had before: the kernels in turn, each the draw
// with the most new pairs.
std::vector<std::vector<Draw>> draw_cover() {
    const auto& all = kernels();
    std::vector<std::vector<Draw>> candidates(all.size()), chosen(all.size());
    for (size_t k = 0; k < all.size(); ++k)
        for_draws([&](const Draw& draw) {
            if (fits(all[k].config, all[k].entry.needs, draw)) candidates[k].push_back(draw);
        });
    std::set<Pair> seen;
    for (bool more = true; more;) {
        more = false;
        for (size_t k = 0; k < all.size(); ++k) {
            size_t best = 0, most = 0;
            for (size_t i = 0; i < candidates[k].size(); ++i) {
                size_t fresh = 0;
                for_pairs(factors_of(all[k].entry, candidates[k][i]), kFactors,
                          [&](const Pair& pair) { fresh += seen.count(pair) == 0; });
                if (fresh > most) {
                    most = fresh;
                    best = i;
                }
            }
            if (most == 0 && !chosen[k].empty()) continue;
            if (candidates[k].empty()) continue;
            more = more || most > 0;
            chosen[k].push_back(candidates[k][best]);
            for_pairs(factors_of(all[k].entry, candidates[k][best]), kFactors,
                      [&](const Pair& pair) { seen.insert(pair); });
        }
    }
    return chosen;
}

class Cover : public testing::TestWithParam<size_t> {};

TEST_P(Cover, IsTheOracle) {
    static const std::vector<std::vector<Draw>> cover = draw_cover();
    ASSERT_FALSE(cover[GetParam()].empty());
    for (const Draw& draw : cover[GetParam()]) {
        check(kernels()[GetParam()], draw);
        if (HasFailure()) return;
    }
}

std::string cover_name(const testing::TestParamInfo<size_t>& test) { return name_of(kernels()[test.param].entry); }

INSTANTIATE_TEST_SUITE_P(Kernels, Cover, testing::Range<size_t>(0, kernels().size()), cover_name);

// A kernel of the table that does not fit is left out silently: so what is missing is counted here.
TEST(Table, CoversPairsOfMachineFormatsDimsTileAndVariant) {
    if (!has_all_parts()) GTEST_SKIP() << "this build has some of the kernels";
    // What a block needs at least: Q and two stages of K, V and digits.
    const auto bytes = [](const gpu::AttentionNeeds& n) {
        const int qk = gpu::element_bits(n.qk) / 8, v = gpu::element_bits(n.v) / 8;
        const int stage = n.tile_k * (n.head_dim * qk + n.head_dim_v * v + (n.key_bias ? 32 : 0));
        return static_cast<uint32_t>(64 * n.head_dim * qk + 2 * stage);
    };
    const auto products = [](const gpu::Machine& machine, RecipeFormats formats, gpu::Sums sums) {
        using gpu::Element;
        const Element qk = gpu::element_of(formats.qk), v = gpu::element_of(formats.pv);
        const auto sum = [](Element e) { return e == Element::kS8 ? Element::kS32 : Element::kF32; };
        return gpu::has_product(machine, qk, qk, sum(qk)) &&
               gpu::has_product(machine, v, v, sums == gpu::Sums::kWide ? sum(v) : Element::kF16);
    };
    std::map<Pair, std::string> wanted;
    for (const gpu::Machine& machine : {gpu::kSm75, gpu::kSm80, gpu::kSm89, gpu::kXcore1000})
        for (const RecipeFormats& formats : kGpuRecipes)
            for (const auto& [dim, dim_v] :
                 {std::pair{32, 32}, {64, 64}, {96, 96}, {128, 128}, {192, 192}, {256, 256}, {192, 128}})
                for (const int tile : {64, 128})
                    for (const Variant variant : kVariants)
                        for (const gpu::Sums sums : {gpu::Sums::kWide, gpu::Sums::kHalf, gpu::Sums::kHalfRow}) {
                            if (!products(machine, formats, sums) || !is_variant(formats, tile, variant) ||
                                !has_sums(formats, dim, dim_v, tile, variant, sums))
                                continue;
                            const KernelEntry kernel = entry(machine, formats, dim, dim_v, tile, variant, sums);
                            if (bytes(kernel.needs) > machine.shared_bytes) continue;
                            for_pairs(factors_of(kernel, {}), kKernelFactors,
                                      [&](const Pair& pair) { wanted.emplace(pair, name_of(kernel)); });
                        }
    for (const Simulated& kernel : kernels())
        for_pairs(factors_of(kernel.entry, {}), kKernelFactors, [&](const Pair& pair) { wanted.erase(pair); });
    for (const auto& [pair, example] : wanted)
        ADD_FAILURE() << "factors " << pair[0] << " and " << pair[1] << " in no kernel as in " << example;
}

// -- everything at head dim 64 on sm80: by formats and granularity --

class Cross : public testing::TestWithParam<std::tuple<RecipeFormats, size_t>> {};

TEST_P(Cross, IsTheOracle) {
    if (!has_all_parts()) GTEST_SKIP() << "this build has some of the kernels";
    const auto& [formats, granularity] = GetParam();
    int runs = 0;
    for (const int tile : {64, 128})
        for (const bool key_bias : {true, false}) {
            gpu::AttentionNeeds needs =
                entry(gpu::kSm80, formats, 64, 64, tile, key_bias ? Variant::kBias : Variant::kPlain).needs;
            if (needs.qk != gpu::Element::kS8 && (key_bias || tile != 64)) continue;
            for_draws([&](const Draw& draw) {
                if (draw.granularity != granularity || HasFailure()) return;
                // Of the kernels that serve it the first, as the backend would choose.
                AttentionDesc desc;
                if (needs.qk != gpu::Element::kS8 && draw.option > 0) return;
                if (!parse_recipe(recipe_of(needs, draw), &desc.recipe).is_ok()) return;
                desc.head_dim = desc.head_dim_v = 64;
                if (biased(draw.mask)) desc.mask_kind = MaskKind::kBoolean;
                // Tiles and options are crossed with masks; layouts and types too where the options are the preset's.
                if ((draw.option > 0 || tile == 64) && needs.qk == gpu::Element::kS8 &&
                    (draw.layout + draw.type + draw.mask) % 6 > 0)
                    return;
                for (const Simulated* kernel : kernels_for(desc)) {
                    if (kernel->entry.machine.chip != gpu::Chip::kSm80) continue;
                    Simulated as_asked = *kernel;
                    as_asked.entry.needs.key_bias = key_bias;
                    check(as_asked, draw);
                    ++runs;
                }
            });
        }
    EXPECT_GT(runs, 0);
}

std::vector<std::tuple<RecipeFormats, size_t>> crossed() {
    std::vector<std::tuple<RecipeFormats, size_t>> list;
    for (const RecipeFormats& formats : kGpuRecipes)
        for (size_t i = 0; formats.pv != Format::kFp8 && i < (formats.qk == Format::kInt8 ? kCrossed : 1); ++i)
            list.emplace_back(formats, i);
    return list;
}

std::string cross_name(const testing::TestParamInfo<std::tuple<RecipeFormats, size_t>>& test) {
    const auto& [formats, granularity] = test.param;
    return fmt::format("{}_{}_{}", format_name(formats.qk), format_name(formats.pv),
                       formats.qk == Format::kInt8 ? kGranularities[granularity] : "exact");
}

INSTANTIATE_TEST_SUITE_P(Dim64, Cross, testing::ValuesIn(crossed()), cross_name);

}  // namespace
}  // namespace clary::cases
