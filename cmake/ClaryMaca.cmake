# SPDX-License-Identifier: Apache-2.0
# The MXMACA backend's compiler. Variables of CMake or of the environment:
#
#   MACA_PATH              the SDK; /opt/maca. Where none is there, kernels are compiled for the simulator, and run on it
#   MXCC                   the compiler; MACA_PATH/mxgpu_llvm/bin/mxcc
#   SAGEATTN_OFFLOAD_ARCH  architectures, e.g. "xcore1000,xcore1500"; else what macainfo says of this machine's GPUs; else
#                          xcore1000. Of the simulator: both
#   SAGEATTN_SKIP_BUILD    set: no kernels are compiled; the table says so
#   CXX_APPEND_FLAGS       more flags for mxcc
include(ClaryGpu)
set(CLARY_MACA_HEAD_DIMS ${CLARY_GPU_HEAD_DIMS} CACHE STRING
    "Head dims with kernels (those of V after a v where they differ); others are padded to the next")
set(CLARY_MACA_RECIPES ${CLARY_GPU_RECIPES} CACHE STRING "Recipes with kernels")
option(CLARY_MACA_SIMULATE "Compile for the simulator although there is an SDK" OFF)

foreach(name MACA_PATH MXCC SAGEATTN_OFFLOAD_ARCH SAGEATTN_SKIP_BUILD CXX_APPEND_FLAGS)
    if(NOT DEFINED ${name} AND DEFINED ENV{${name}})
        set(${name} $ENV{${name}})
    endif()
endforeach()
if(NOT MACA_PATH)
    set(MACA_PATH /opt/maca)
endif()
if(NOT MXCC)
    set(MXCC ${MACA_PATH}/mxgpu_llvm/bin/mxcc)
endif()
if(EXISTS ${MXCC} AND NOT CLARY_MACA_SIMULATE)
    set(CLARY_MACA_SDK ON)
else()
    set(CLARY_MACA_SDK OFF)
    message(STATUS "CLARY_MACA: no ${MXCC}; kernels are compiled for the simulator")
endif()

# Architectures, in three steps: what is asked for, what the machine has, what is most common.
string(REPLACE "," ";" CLARY_MACA_ARCHS "${SAGEATTN_OFFLOAD_ARCH}")
if(NOT CLARY_MACA_ARCHS AND NOT CLARY_MACA_SDK)
    set(CLARY_MACA_ARCHS xcore1000 xcore1500)
endif()
if(NOT CLARY_MACA_ARCHS)
    find_program(macainfo macainfo HINTS ${MACA_PATH}/bin NO_CACHE)
    if(macainfo)
        execute_process(COMMAND ${macainfo} OUTPUT_VARIABLE text ERROR_QUIET)
        string(TOLOWER "${text}" text)
        string(REGEX MATCHALL "xcore1[05]00" CLARY_MACA_ARCHS "${text}")
        list(REMOVE_DUPLICATES CLARY_MACA_ARCHS)
    endif()
endif()
if(NOT CLARY_MACA_ARCHS)
    set(CLARY_MACA_ARCHS xcore1000)
endif()
foreach(arch ${CLARY_MACA_ARCHS})
    if(NOT arch MATCHES "^xcore1[05]00$")
        message(FATAL_ERROR "SAGEATTN_OFFLOAD_ARCH: ${arch}; allowed: xcore1000, xcore1500")
    endif()
endforeach()
if(SAGEATTN_SKIP_BUILD)
    set(CLARY_MACA_ARCHS "")
endif()
message(STATUS "CLARY_MACA: kernels for ${CLARY_MACA_ARCHS}")

# What host code needs to call the runtime.
add_library(clary_maca_runtime INTERFACE)
if(CLARY_MACA_SDK)
    find_library(mcruntime mcruntime HINTS ${MACA_PATH}/lib REQUIRED)
    target_include_directories(clary_maca_runtime SYSTEM INTERFACE ${MACA_PATH}/include ${MACA_PATH}/include/mcr
        ${MACA_PATH}/include/common)
    target_link_libraries(clary_maca_runtime INTERFACE ${mcruntime})
else()
    target_include_directories(clary_maca_runtime SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/src/sim/maca)
    target_link_libraries(clary_maca_runtime INTERFACE clary_sim_maca)
endif()

# The command that compiles a file of kernels, up to what differs. Codes are decided by explicit fma only, as on the CPU
# (docs/decisions/0003-written-arithmetic.md).
get_target_property(fmt_includes fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
list(TRANSFORM fmt_includes PREPEND -I)
separate_arguments(more NATIVE_COMMAND "${CXX_APPEND_FLAGS}")
set(CLARY_MXCC_COMMAND ${MXCC} -x maca --maca-path=${MACA_PATH} -std=c++20 -O3 -fPIC -ffp-contract=off -fvisibility=hidden
    -DFMT_HEADER_ONLY=1 ${fmt_includes} -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include ${more})

# clary_add_maca_unit(name source arch DEFINITIONS...): one object of kernels for one architecture. What libraries link with
# it is the global property CLARY_MACA_OBJECTS.
function(clary_add_maca_unit name source arch)
    set(definitions CLARY_UNIT=${name} ${ARGN})
    if(NOT CLARY_MACA_SDK)
        clary_add_objects(clary_maca_${name} ${source})
        target_compile_definitions(clary_maca_${name} PRIVATE ${definitions})
        target_link_libraries(clary_maca_${name} PRIVATE clary_maca_runtime)
        # Compiling takes longer than running.
        target_compile_options(clary_maca_${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
        set_property(GLOBAL APPEND PROPERTY CLARY_MACA_OBJECTS $<TARGET_OBJECTS:clary_maca_${name}>)
        return()
    endif()
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    list(TRANSFORM definitions PREPEND -D)
    add_custom_command(OUTPUT ${object}
        COMMAND ${CLARY_MXCC_COMMAND} -offload-arch=${arch} ${definitions} -MD -MF ${object}.d
                -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
        DEPENDS ${source} DEPFILE ${object}.d COMMENT "mxcc ${name}" VERBATIM COMMAND_EXPAND_LISTS)
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set_property(GLOBAL APPEND PROPERTY CLARY_MACA_OBJECTS ${object})
endfunction()
