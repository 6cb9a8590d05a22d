// SPDX-License-Identifier: Apache-2.0
// Accuracy where it counts: captured layers of a language model against recorded values, and inputs made to break 8-bit
// attention against what the definition of int8_int8 gives on them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cases/problem.h"
#include "cpu/run.h"
#include "io/tensor_file.h"
#include "numerics/formats.h"
#include "synthetic/generator.h"

namespace clary::cases {
namespace {

// A problem over dense arrays [B, H, L, D] that the test holds; out fp32.
struct Dense {
    clary_attention_params params{};
    std::vector<float> out;

    static clary_tensor view(const void* data, DType dtype, int64_t b, int64_t h, int64_t l, int64_t d) {
        clary_tensor t{};
        t.data = const_cast<void*>(data);
        t.dtype = static_cast<int32_t>(dtype);
        t.ndim = 4;
        const int64_t shape[] = {b, h, l, d}, stride[] = {h * l * d, l * d, d, 1};
        std::copy_n(shape, 4, t.shape);
        std::copy_n(stride, 4, t.stride);
        return t;
    }

    void finish() {
        params.struct_size = sizeof(params);
        const clary_tensor& q = params.q;
        out.resize(static_cast<size_t>(q.shape[0] * q.shape[1] * q.shape[2] * params.v.shape[3]));
        params.out = view(out.data(), DType::kF32, q.shape[0], q.shape[1], q.shape[2], params.v.shape[3]);
    }

    std::vector<float> run(const char* recipe, const char* backend) {
        params.recipe = recipe;
        params.backend = backend;
        params.context = two_threads();
        EXPECT_EQ(clary_attention(&params), CLARY_OK) << clary_last_error();
        return out;
    }
};

// Expected relative L1 of int8_int8 accurate (tile 128) on 2 heads, 2048 x 128, bf16 inputs: what an emulation of the
// recipe's definition in fp32 and exact integers, written apart from this library, gives on these very tensors.
struct Hostile {
    const char* preset;
    double rel_l1;
};
void PrintTo(const Hostile& hostile, std::ostream* stream) { *stream << hostile.preset; }
constexpr Hostile kHostile[] = {
    {"gauss", .01364},      {"v_half_zero", .01396},  {"v_eighth_tiny", .01362}, {"v_lognormal", .01386},
    {"v_one_loud", .01444}, {"q_one_loud30", .01360}, {"q_one_loud100", .01368}, {"q_zero", .00574},
    {"q_constant", .00940}, {"k_equal", .00574},      {"k_half_zero", .01293},   {"sink", .01602},
    {"k_bias", .01279},
};

class HostileInput : public testing::TestWithParam<Hostile> {};

TEST_P(HostileInput, CostsWhatTheDefinitionSays) {
    synthetic::Tensors t;
    const Status made = synthetic::generate(GetParam().preset, {1, 2, 2, 2048, 2048, 128}, 1, &t);
    ASSERT_TRUE(made.is_ok()) << made.text();
    for (std::vector<float>* array : {&t.q, &t.k, &t.v})
        for (float& x : *array) x = numerics::Bf16::from_float(x).to_float();
    Dense problem;
    problem.params.q = Dense::view(t.q.data(), DType::kF32, 1, 2, 2048, 128);
    problem.params.k = Dense::view(t.k.data(), DType::kF32, 1, 2, 2048, 128);
    problem.params.v = Dense::view(t.v.data(), DType::kF32, 1, 2, 2048, 128);
    problem.finish();
    // The exact recipe errs by 2e-6 (conformance_test.cc) and is a hundred times as fast as float64.
    const std::vector<float> exact = problem.run("fp32_fp32", "cpu");
    const std::vector<float> result = problem.run("int8_int8", "cpu");
    const double error = relative_l1(result, exact);
    RecordProperty("rel_l1", std::to_string(error));
    std::printf("%s: relative L1 %.5f, expected %.4f\n", GetParam().preset, error, GetParam().rel_l1);
    EXPECT_NEAR(error, GetParam().rel_l1, .05 * GetParam().rel_l1);
}

std::string preset_of(const testing::TestParamInfo<Hostile>& param) { return param.param.preset; }
INSTANTIATE_TEST_SUITE_P(Presets, HostileInput, testing::ValuesIn(kHostile), preset_of);

// Two layers of SmolLM2-135M on a text, causal: relative L1 against exact attention, recorded with the kernel and with
// the oracle, which agree to all digits given. A change of more than 1 % has to be understood.
struct Recorded {
    const char* layer;
    const char* recipe;
    double rel_l1;
    double cosine;  // at least
};
void PrintTo(const Recorded& recorded, std::ostream* stream) { *stream << recorded.recipe; }
constexpr double kRecordedWithin = .01;  // and so within 1.05 x the oracle
constexpr Recorded kRecorded[] = {
    {"23", "int8_int8", .014950, .9998},         {"26", "int8_int8", .014180, .9998},
    {"23", "int8_int8+tile=64", .013312, .9998}, {"26", "int8_int8+tile=64", .012865, .9998},
    {"23", "int8_int8:fast", .049577, .999},     {"26", "int8_int8:fast", .045273, .999},
    {"23", "int8_fp16", .009089, .9999},         {"26", "int8_fp16", .008888, .9999},
    {"23", "int8_fp16:sage2", .024283, .9996},   {"26", "int8_fp16:sage2", .031673, .9993},
    {"23", "int8_bf16", .009101, .9999},         {"26", "int8_bf16", .008900, .9999},
};

class Captured : public testing::TestWithParam<Recorded> {
  protected:
    static const io::TensorFile& file() {
        static const io::TensorFile* const loaded = [] {
            auto* const made = new io::TensorFile;
            const Status status = io::load(CLARY_EXAMPLES_DIR "/smollm2_gpl3_layers.safetensors", made);
            EXPECT_TRUE(status.is_ok()) << status.text();
            return made;
        }();
        return *loaded;
    }
    static Dense& layer(const std::string& name) {
        static std::map<std::string, Dense> layers;
        Dense& dense = layers[name];
        if (!dense.out.empty()) return dense;
        for (const auto& [role, tensor] :
             {std::pair{"q", &dense.params.q}, {"k", &dense.params.k}, {"v", &dense.params.v}})
            for (const io::Tensor& t : file().tensors)
                if (t.name == "layer." + name + "." + role)
                    *tensor = Dense::view(t.bytes.data(), t.dtype, t.shape[0], t.shape[1], t.shape[2], t.shape[3]);
        dense.params.causal = CLARY_CAUSAL_TOP_LEFT;
        dense.finish();
        return dense;
    }
    static const std::vector<float>& exact(const std::string& name) {
        static std::map<std::string, std::vector<float>> results;
        std::vector<float>& result = results[name];
        if (result.empty()) result = layer(name).run("fp32_fp32", "cpu");
        return result;
    }
};

TEST_P(Captured, AsRecorded) {
    const Recorded& r = GetParam();
    const std::vector<float>& expected = exact(r.layer);
    for (const char* tier : tiers()) {
        if (!exhaustive() && tier != tiers().front()) break;  // tiers against each other: conformance_test.cc
        const std::vector<float> result = layer(r.layer).run(r.recipe, tier);
        const double error = relative_l1(result, expected);
        std::printf("layer %s %s on %s: relative L1 %.6f, cosine %.7f\n", r.layer, r.recipe, tier, error,
                    cosine(result, expected));
        EXPECT_NEAR(error, r.rel_l1, kRecordedWithin * r.rel_l1);
        EXPECT_GE(cosine(result, expected), r.cosine);
    }
    if (!exhaustive()) return;
    const double oracle = relative_l1(layer(r.layer).run(r.recipe, "reference"), expected);
    std::printf("layer %s %s oracle: relative L1 %.6f\n", r.layer, r.recipe, oracle);
    EXPECT_NEAR(oracle, r.rel_l1, kRecordedWithin * r.rel_l1);
}

std::string recorded_name(const testing::TestParamInfo<Recorded>& param) {
    std::string name = std::string("layer") + param.param.layer + "_" + param.param.recipe;
    for (char& letter : name)
        if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
    return name;
}
INSTANTIATE_TEST_SUITE_P(SmolLM2, Captured, testing::ValuesIn(kRecorded), recorded_name);

}  // namespace
}  // namespace clary::cases
