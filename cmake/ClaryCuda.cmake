# SPDX-License-Identifier: Apache-2.0
# The CUDA language and what of it is compiled. Builds need nvcc, not a GPU; running needs NVIDIA's driver (580 or newer for
# CUDA 13). libcudart is linked in, libcuda is found by it at run time.
set(CLARY_CUDA_ARCHS 75 80 86 89 90 100 120 CACHE STRING
    "Architectures with machine code, rising; the newest of several has PTX too. 90 alone is a quick build for one machine")
set(CLARY_CUDA_HEAD_DIMS 32 64 96 128 192 256 192v128 64v128 CACHE STRING
    "Head dims with kernels (those of V after a v where they differ); others are padded to the next")
set(CLARY_CUDA_RECIPES int8_int8 int8_fp16 int8_bf16 fp16_fp16 bf16_bf16 CACHE STRING "Recipes with kernels")
set(CLARY_CUDA_TARGET "" CACHE STRING
    "For tests: compile every architecture with the instructions of this one (75, 80, 89), which later chips run too")
option(CLARY_CUDA_LINEINFO "Source lines for profilers and compute-sanitizer: ten times the size" OFF)
mark_as_advanced(CLARY_CUDA_TARGET)

foreach(arch ${CLARY_CUDA_ARCHS})
    if(NOT arch MATCHES "^(75|80|86|89|90|100|120)$")
        message(FATAL_ERROR "CLARY_CUDA_ARCHS: ${arch}; allowed: 75, 80, 86, 89, 90, 100, 120")
    endif()
endforeach()
list(TRANSFORM CLARY_CUDA_ARCHS APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
list(LENGTH CLARY_CUDA_ARCHS count)
if(count GREATER 1)
    list(GET CLARY_CUDA_ARCHS -1 newest)
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest}-virtual)
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(nvcc nvcc HINTS /usr/local/cuda/bin ENV CUDA_PATH PATH_SUFFIXES bin)
    if(nvcc)
        set(CMAKE_CUDA_COMPILER ${nvcc})
    endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(CLARY_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CLARY_CCACHE})
endif()
