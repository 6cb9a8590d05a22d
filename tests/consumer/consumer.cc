// SPDX-License-Identifier: Apache-2.0
// Uses an installed Clary from C++20 through the header-only wrapper.
#include <clary/clary.hpp>
#include <cstdio>
int main() { std::puts(clary_version()); }
