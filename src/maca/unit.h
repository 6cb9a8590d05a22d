// SPDX-License-Identifier: Apache-2.0
// What the files of kernels share. The build compiles them for one architecture at a time: CLARY_MACA_ARCH (1000, 1500);
// CLARY_UNIT names the unit, such as xcore1000_int8_int8_d128.
#pragma once

#include "maca/entries.h"
#include "maca/target.h"

#if defined(__MACA_ARCH__) && __MACA_ARCH__ != CLARY_MACA_ARCH
#error "the unit is compiled for another architecture than its name says"
#endif

namespace clary::maca {

inline constexpr gpu::Machine kMachine = CLARY_MACA_ARCH == 1500 ? gpu::kXcore1500 : gpu::kXcore1000;

}  // namespace clary::maca

#define CLARY_PASTE2(a, b, c) a##b##c
#define CLARY_PASTE(a, b, c) CLARY_PASTE2(a, b, c)
#define CLARY_TEXT2(x) #x
#define CLARY_TEXT(x) CLARY_TEXT2(x)
