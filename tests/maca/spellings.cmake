# SPDX-License-Identifier: Apache-2.0
# What mxcc sees has no spelling of CUDA or of the simulator, and no builtin but those below: each has its evidence in
# docs/maca.md.
cmake_minimum_required(VERSION 3.25)
set(allowed
    __builtin_mxc_mma_16x16x16i8 __builtin_mxc_mma_16x16x16f16 __builtin_mxc_mma_16x16x16bf16
    __builtin_mxc_mma_16x16x32i8 __builtin_mxc_mma_16x16x32f8 __builtin_mxc_ldg_b128_bsm_predicator
    __builtin_mxc_arrive_gvmcnt __builtin_mxc_arrive_bsmcnt __builtin_mxc_barrier_inst
    __builtin_mxc_load_shared_trans_4x16_i64 __builtin_mxc_mov_raw_shfl __builtin_mxc_byte_perm __builtin_mxc_rcpf
    __builtin_mxc_cvt_pk_f32tobf16 __builtin_mxc_cvt_pk4_f32tof8 __builtin_exp2f __builtin_fmaf)
file(GLOB sources ${SOURCE_DIR}/src/maca/*.h ${SOURCE_DIR}/src/maca/*.cc ${SOURCE_DIR}/tools/maca_probe/*.cc)
set(bad "")
set(used "")
foreach(file ${sources})
    file(STRINGS ${file} lines)
    foreach(line ${lines})
        string(REGEX MATCHALL "__builtin_mxc_[a-z0-9_]+|__builtin_(exp2f|fmaf)" names "${line}")
        foreach(name ${names})
            list(APPEND used ${name})
            if(NOT name IN_LIST allowed)
                list(APPEND bad "${file}: ${name}")
            endif()
        endforeach()
        if(line MATCHES "cuda|nvidia|wmma|asm volatile|sim::|sim/|__CUDA|__syncthreads|__syncwarp")
            list(APPEND bad "${file}: ${line}")
        endif()
    endforeach()
endforeach()
foreach(name ${allowed})
    if(NOT name IN_LIST used)
        list(APPEND bad "${name}: allowed and not used")
    endif()
endforeach()
if(bad)
    list(JOIN bad "\n  " text)
    message(FATAL_ERROR "spellings that are not MetaX's:\n  ${text}")
endif()
