// SPDX-License-Identifier: Apache-2.0
// The recipes on Q, K and V of two layers of a real language model (examples/data), causal: against the values recorded
// when the reference was made, and against what the project promises. Random data cannot judge smoothing and rotation.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/element.h"
#include "io/tensor_file.h"
#include "reference/exact.h"
#include "reference/oracle.h"
#include "reference/problem.h"

namespace clary::test {
namespace {

struct Measured {
    double l1;
    double cosine;
};

class RealLayer : public testing::TestWithParam<int> {
  protected:
    static void copy(const io::TensorFile& file, const std::string& name, std::vector<float>* values) {
        const io::Tensor* tensor = file.find(name);
        ASSERT_NE(tensor, nullptr) << name;
        ASSERT_EQ(static_cast<size_t>(tensor->element_count()), values->size());
        const auto size = static_cast<size_t>(dtype_size(tensor->dtype));
        for (size_t i = 0; i < values->size(); ++i)
            (*values)[i] = load_element(tensor->bytes.data() + i * size, tensor->dtype);
    }
};

TEST_P(RealLayer, ErrorsAreTheRecordedOnes) {
    Problem problem({1, 9, 3, 2048, 2048, 64, 64});
    problem.desc.causal = Causal::kBottomRight;
    io::TensorFile file;
    const Status status = io::load(CLARY_LAYERS_FILE, &file);
    ASSERT_TRUE(status.is_ok()) << status.text();
    const std::string layer = "layer." + std::to_string(GetParam());
    ASSERT_NO_FATAL_FAILURE(copy(file, layer + ".q", &problem.q));
    ASSERT_NO_FATAL_FAILURE(copy(file, layer + ".k", &problem.k));
    ASSERT_NO_FATAL_FAILURE(copy(file, layer + ".v", &problem.v));
    ASSERT_TRUE(reference::attend_exact(problem.desc).is_ok());
    const std::vector<float> exact = problem.out;

    // Relative L1 of layers 23 and 26. A second implementation of the definition gave .0149 and .0145 (int8_int8),
    // .0132 and .0133 (tile 64), .0326 and .0388 (SageAttention 2 with FP8 PV).
    const std::map<std::string, std::pair<double, double>> recorded = {
        {"int8_int8", {.01495, .01418}},      {"int8_int8+tile=64", {.01331, .01287}},
        {"int8_int8:fast", {.04958, .04527}}, {"int8_fp16", {.00909, .00889}},
        {"int8_fp8", {.02244, .02228}},       {"int8_fp16:sage2", {.02428, .03167}},
        {"int8_fp8:sage2", {.03191, .03835}},
    };
    std::map<std::string, Measured> measured;
    for (const auto& [text, values] : recorded) {
        ASSERT_TRUE(parse_recipe(text, &problem.desc.recipe).is_ok());
        ASSERT_TRUE(reference::attend_recipe(problem.desc).is_ok());
        Measured& m = measured[text];
        m = {relative_l1(problem.out, exact), 1 - cosine_distance(problem.out, exact)};
        const double expected = GetParam() == 23 ? values.first : values.second;
        EXPECT_NEAR(m.l1, expected, 0.01 * expected) << text;
    }
    EXPECT_GE(measured["int8_int8"].cosine, 0.9998);
    EXPECT_GE(measured["int8_fp16"].cosine, 0.9999);
    EXPECT_LT(measured["int8_int8"].l1, measured["int8_fp16:sage2"].l1)
        << "8-bit PV done right beats 16-bit PV done as usual";
}

INSTANTIATE_TEST_SUITE_P(Reference, RealLayer, testing::Values(23, 26), testing::PrintToStringParamName());

}  // namespace
}  // namespace clary::test
