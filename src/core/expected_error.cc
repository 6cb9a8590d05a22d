// SPDX-License-Identifier: Apache-2.0
#include "core/expected_error.h"

namespace clary {
namespace {

const ExpectedError kMeasured[] = {
    {preset_recipe(Format::kInt8, Format::kInt8, Preset::kAccurate), .0120, .0149, .0141},
    {preset_recipe(Format::kInt8, Format::kInt8, Preset::kFast), .0261, .0526, .0156},
    {preset_recipe(Format::kInt8, Format::kFp16, Preset::kAccurate), .0071, .0096, .0104},
};

}  // namespace

const ExpectedError* expected_error(const Recipe& recipe) {
    for (const ExpectedError& measured : kMeasured)
        if (measured.recipe == recipe) return &measured;
    return nullptr;
}

}  // namespace clary
