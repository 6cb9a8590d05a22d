# SPDX-License-Identifier: Apache-2.0
"""The names of upstream's attention module for sm80: see `_prequantized.Kernel`."""

from ._prequantized import Kernel

qk_int8_sv_f16_accum_f32_attn = Kernel("qk_int8_sv_f16_accum_f32_attn")
qk_int8_sv_f16_accum_f16_attn = Kernel("qk_int8_sv_f16_accum_f16_attn")
qk_int8_sv_f16_accum_f16_attn_inst_buf = Kernel("qk_int8_sv_f16_accum_f16_attn_inst_buf", narrow=True)
qk_int8_sv_f16_accum_f16_fuse_v_mean_attn = Kernel("qk_int8_sv_f16_accum_f16_fuse_v_mean_attn", mean=True)
