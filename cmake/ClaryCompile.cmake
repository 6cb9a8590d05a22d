# SPDX-License-Identifier: Apache-2.0
# Compiler settings that every target of this project shares.
include(GNUInstallDirs)
find_package(fmt REQUIRED)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Programs in build/<preset>/bin, libraries in build/<preset>/lib; installed programs find the library beside them.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
file(RELATIVE_PATH clary_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(CMAKE_INSTALL_RPATH $ORIGIN/${clary_bin_to_lib})

find_program(CLARY_CCACHE ccache)
if(CLARY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${CLARY_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CLARY_CCACHE})
endif()

# A code is decided by explicit fma only, so that every backend, compiler and optimisation level decides alike.
add_library(clary_options INTERFACE)
target_compile_options(clary_options INTERFACE -ffp-contract=off -Wall -Wextra -Wpedantic
    $<$<COMPILE_LANGUAGE:CXX>:-Wconversion -Wshadow> $<$<BOOL:${CLARY_WERROR}>:-Werror>)

set(CLARY_SANITIZE "" CACHE STRING "Sanitizers for the whole build, e.g. address,undefined or thread")
if(CLARY_SANITIZE)
    add_compile_options(-fsanitize=${CLARY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${CLARY_SANITIZE})
endif()

# clary_add_objects(name SOURCES... ): an object library of the folder's sources, seen from src/ as include root.
function(clary_add_objects name)
    add_library(${name} OBJECT ${ARGN})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(${name} PUBLIC fmt::fmt-header-only PRIVATE clary_options)
endfunction()

# clary_add_fuzzer(name LIBS SOURCES... ): the libFuzzer harness bin/fuzz_<name>; LIBS is a list. `fuzzers` builds all.
function(clary_add_fuzzer name libs)
    add_executable(fuzz_${name} ${ARGN})
    target_link_libraries(fuzz_${name} PRIVATE ${libs} clary_options)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    if(NOT TARGET fuzzers)
        add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers fuzz_${name})
endfunction()
