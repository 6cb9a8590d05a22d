# SPDX-License-Identifier: Apache-2.0
# Compiles Hopper's kernels of one unit and reads what ptxas says of them: products that wait for each other (its
# messages C7510 to C7519) would be slow without being wrong, so no other test would see it.
#   cmake -DNVCC=.. -DSOURCE_DIR=.. -DUNIT="its definitions" -DOUTPUT=.. -P sm90_ptxas.cmake
separate_arguments(UNIT)
list(TRANSFORM UNIT PREPEND -D)
execute_process(
    COMMAND ${NVCC} -std=c++20 -O3 --fmad=false -I${SOURCE_DIR}/src -I${SOURCE_DIR}/include ${UNIT}
            -gencode arch=compute_90a,code=sm_90a -Xptxas -v -cubin -o ${OUTPUT} ${SOURCE_DIR}/src/cuda/sm90/attention.cu
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(NOT result EQUAL 0)
    message(FATAL_ERROR "nvcc failed:\n${text}")
endif()
string(REGEX MATCHALL "[^\n]*registers[^\n]*" kernels "${text}")
list(LENGTH kernels count)
if(count LESS 4)
    message(FATAL_ERROR "ptxas told of ${count} kernels, not 4:\n${text}")
endif()
string(REGEX MATCHALL "[^\n]*C751[0-9][^\n]*" messages "${text}")
if(messages)
    list(JOIN messages "\n" messages)
    message(FATAL_ERROR "products wait for each other:\n${messages}")
endif()
