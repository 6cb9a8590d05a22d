# SPDX-License-Identifier: Apache-2.0
# What kernels CUDA's and MXMACA's builds have in common: an attention unit, src/*/attention.*, is compiled for a recipe and
# a pair of head dims, a quantization unit for a pair of head dims.
set(CLARY_GPU_HEAD_DIMS 32 64 96 128 192 256 192v128)  # those of V after a v where they differ; others are padded to the next
set(CLARY_GPU_RECIPES int8_int8 int8_fp16 int8_bf16 int8_fp8 fp16_fp16 bf16_bf16)  # INT4 Q and K are INT8 to kernels

# Definitions of an attention unit: formats (core/recipe.h), sums of P V (gpu/attention/config.h), kernels
# (gpu/host/variants.h).
set(unit_of_int8_int8 CLARY_QK=kInt8 CLARY_PV=kInt8 CLARY_SUMS=kWide CLARY_VARIANTS=CLARY_BYTE_V)
set(unit_of_int8_fp16 CLARY_QK=kInt8 CLARY_PV=kFp16 CLARY_SUMS=kWide CLARY_VARIANTS=CLARY_WIDE_V)
set(unit_of_int8_bf16 CLARY_QK=kInt8 CLARY_PV=kBf16 CLARY_SUMS=kWide CLARY_VARIANTS=CLARY_WIDE_V)
set(unit_of_int8_fp8 CLARY_QK=kInt8 CLARY_PV=kFp8 CLARY_SUMS=kWide CLARY_VARIANTS=CLARY_BYTE_V)
set(unit_of_fp16_fp16 CLARY_QK=kFp16 CLARY_PV=kFp16 CLARY_SUMS=kWide CLARY_VARIANTS=CLARY_EXACT)
set(unit_of_bf16_bf16 CLARY_QK=kBf16 CLARY_PV=kBf16 CLARY_SUMS=kWide CLARY_VARIANTS=CLARY_EXACT)
# accum=fp16_fp32 and fp16, fp32_fp16.
set(unit_of_int8_fp16_half CLARY_QK=kInt8 CLARY_PV=kFp16 CLARY_SUMS=kHalf CLARY_VARIANTS=CLARY_HALF_V)
set(unit_of_int8_fp16_half_row CLARY_QK=kInt8 CLARY_PV=kFp16 CLARY_SUMS=kHalfRow CLARY_VARIANTS=CLARY_HALF_V)
set(unit_of_int8_fp8_half CLARY_QK=kInt8 CLARY_PV=kFp8 CLARY_SUMS=kHalf CLARY_VARIANTS=CLARY_BYTE_V)

# Definitions of any unit of head dims such as 64 or 192v128.
function(clary_head_dims result dims)
    string(REPLACE "v" ";" pair ${dims})
    list(GET pair 0 dim)
    list(GET pair -1 dim_v)
    set(${result} CLARY_HEAD_DIM=${dim} CLARY_HEAD_DIM_V=${dim_v} PARENT_SCOPE)
endfunction()
