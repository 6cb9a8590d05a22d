// SPDX-License-Identifier: Apache-2.0
// The plots of the accuracy page, each drawn for a given width: a narrow one is laid out anew, not shrunk.
#pragma once

#include <string>
#include <vector>

#include "accuracy.h"

namespace clary::cli {

// Error (up: worse) against speed (right: faster); emulated recipes have no speed and stand in a band on the left.
std::string error_speed_plot(const std::vector<RecipeAccuracy>& results, bool narrow);

// One strip per recipe with a dot per layer and head, and a bar at the median.
std::string head_error_plot(const std::vector<RecipeAccuracy>& results, bool narrow);

std::string recipe_class(const std::string& recipe);  // the CSS class of its colour, by formats

}  // namespace clary::cli
