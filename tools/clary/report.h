// SPDX-License-Identifier: Apache-2.0
// The page of `clary accuracy --html`: one file without outside resources, for desktop and phone, light and dark.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "accuracy.h"

namespace clary::cli {

struct AccuracyReport {
    std::string input, shape, machine, date;
    int threads = 1;
    std::map<std::string, std::string> metadata;  // of the input file
    std::vector<RecipeAccuracy> results;
};

std::string html_page(const AccuracyReport& report);

}  // namespace clary::cli
