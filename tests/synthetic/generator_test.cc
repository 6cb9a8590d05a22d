// SPDX-License-Identifier: Apache-2.0
// The generator: reproducible, finite, of the asked shape, with the statistics that each preset promises.
#include "synthetic/generator.h"

#include <gtest/gtest.h>

#include <cmath>

namespace clary::synthetic {
namespace {

Tensors make(const std::string& preset, const Dims& dims, uint64_t seed = 1) {
    Tensors tensors;
    const Status status = generate(preset, dims, seed, &tensors);
    EXPECT_TRUE(status.is_ok()) << status.text();
    return tensors;
}

TEST(Generator, EveryPresetIsFiniteReproducibleAndSeeded) {
    const Dims dims{2, 4, 2, 70, 150, 32};
    for (const PresetInfo& info : presets()) {
        const std::string name = info.name == "sigma:<s>" ? "sigma:2.5" : info.name;
        const Tensors a = make(name, dims), b = make(name, dims), c = make(name, dims, 2);
        EXPECT_EQ(a.q.size(), 2u * 4 * 70 * 32) << name;
        EXPECT_EQ(a.k.size(), 2u * 2 * 150 * 32) << name;
        for (const std::vector<float>* array : {&a.q, &a.k, &a.v})
            for (const float x : *array) ASSERT_TRUE(std::isfinite(x)) << name;
        EXPECT_EQ(a.q, b.q) << name;
        EXPECT_EQ(a.k, b.k) << name;
        EXPECT_EQ(a.v, b.v) << name;
        EXPECT_NE(a.v, c.v) << name;
    }
}

TEST(Generator, SmallestShapes) {
    for (const PresetInfo& info : presets()) {
        const std::string name = info.name == "sigma:<s>" ? "sigma:1" : info.name;
        for (const Dims& dims :
             {Dims{1, 1, 1, 1, 1, 1}, Dims{1, 2, 1, 3, 2, 3}, Dims{1, 1, 1, 0, 4, 8}, Dims{1, 1, 1, 4, 0, 8}})
            for (const float x : make(name, dims).k) EXPECT_TRUE(std::isfinite(x)) << name;
    }
}

TEST(Generator, ValuesAreTheSameEverywhere) {
    const Tensors t = make("gauss", {1, 1, 1, 2, 2, 2});
    // Recorded once; a change of the generator must be meant.
    EXPECT_NEAR(t.q[0], -1.55152929, 1e-6);
    EXPECT_NEAR(t.k[1], -2.5817492, 1e-6);
    EXPECT_NEAR(t.v[3], 0.676129282, 1e-6);
}

TEST(Generator, UnknownNamesAreRefusedWithTheAllowedSet) {
    Tensors t;
    Status status = generate("nonsense", {}, 1, &t);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.text().find("'nonsense'"), std::string::npos);
    EXPECT_NE(status.text().find("dit_bias"), std::string::npos);
    for (const char* name : {"sigma:", "sigma:0", "sigma:-1", "sigma:x", "sigma:inf"})
        EXPECT_EQ(generate(name, {}, 1, &t).code(), StatusCode::kInvalidArgument) << name;
}

// Published figures of captured tensors, and what was wanted of each preset.
TEST(Statistics, OfThePresets) {
    const auto of = [](const char* preset) {
        Tensors t = make(preset, {1, 2, 2, 1024, 1024, 64});
        const Statistics s = statistics(t);
        EXPECT_FALSE(describe(s).empty());
        return s;
    };
    const Statistics gauss = of("gauss");
    EXPECT_LT(gauss.k_bias_max, 0.15);
    EXPECT_NEAR(gauss.ess_median / 1024, 0.37, 0.05);  // exp(-1)

    const Statistics mild = of("dit_mild");  // wanted: bias .7 on average, 6 at most; Q and K similar in a block
    EXPECT_NEAR(mild.k_bias_mean, 0.9, 0.3);
    EXPECT_NEAR(mild.k_bias_max, 6, 1.5);
    EXPECT_GT(mild.q_similarity, 0.5);
    EXPECT_GT(mild.k_similarity, 0.4);
    EXPECT_NEAR(mild.ess_median / 1024, 0.2, 0.05);

    const Statistics bias = of("dit_bias");
    EXPECT_GT(bias.k_bias_mean, 3);
    EXPECT_GT(bias.k_bias_max, 20);
    EXPECT_NEAR(bias.v_bias_max, 8.5, 1);
    EXPECT_NEAR(bias.ess_median / 1024, 0.02, 0.01);

    const Statistics loud = of("loud");  // four channels carry 93 % of K's energy
    EXPECT_NEAR(loud.k_top4_energy, 0.93, 0.05);
    EXPECT_NEAR(loud.ess_median, 200, 80);
    EXPECT_LT(loud.ess_min, 10);

    const Statistics sharp = of("sharp");
    EXPECT_NEAR(sharp.ess_median, 6, 3);

    const Statistics llm = of("llm");  // the sink draws most of the attention
    EXPECT_LT(llm.ess_median, 10);
    EXPECT_GT(llm.logit_range, 8);
}

}  // namespace
}  // namespace clary::synthetic
