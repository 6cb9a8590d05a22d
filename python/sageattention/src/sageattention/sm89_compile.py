# SPDX-License-Identifier: Apache-2.0
"""The names of upstream's attention module for sm89 and sm120: see `_prequantized.Kernel`."""

from ._prequantized import Kernel

qk_int8_sv_f8_accum_f32_attn = Kernel("qk_int8_sv_f8_accum_f32_attn")
qk_int8_sv_f8_accum_f32_fuse_v_scale_attn = Kernel("qk_int8_sv_f8_accum_f32_fuse_v_scale_attn", scaled=True)
qk_int8_sv_f8_accum_f32_fuse_v_scale_fuse_v_mean_attn = Kernel(
    "qk_int8_sv_f8_accum_f32_fuse_v_scale_fuse_v_mean_attn", scaled=True, mean=True
)
qk_int8_sv_f8_accum_f32_attn_inst_buf = Kernel("qk_int8_sv_f8_accum_f32_attn_inst_buf")
qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf = Kernel(
    "qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf", scaled=True
)
qk_int8_sv_f8_accum_f16_attn_inst_buf = Kernel("qk_int8_sv_f8_accum_f16_attn_inst_buf")
qk_int8_sv_f8_accum_f16_fuse_v_scale_attn_inst_buf = Kernel(
    "qk_int8_sv_f8_accum_f16_fuse_v_scale_attn_inst_buf", scaled=True
)
