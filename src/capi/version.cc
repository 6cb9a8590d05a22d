// SPDX-License-Identifier: Apache-2.0
// What was built, and how. version_text.h is written at every build (cmake/ClaryVersion.cmake).
#include "clary/clary.h"
#ifndef CLARY_VERSION_TEXT
#include "version_text.h"
#endif

#if defined(__clang__)
#define CLARY_COMPILER_TEXT "clang " __clang_version__
#else
#define CLARY_COMPILER_TEXT "gcc " __VERSION__
#endif

extern "C" {

const char* clary_version(void) { return CLARY_VERSION_TEXT; }

const char* clary_build_info(void) {
    return "clary " CLARY_VERSION_TEXT " " CLARY_COMPILER_TEXT " " CLARY_BUILD_TYPE " backends: " CLARY_BACKENDS;
}

}  // extern "C"
