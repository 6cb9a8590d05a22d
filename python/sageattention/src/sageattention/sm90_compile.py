# SPDX-License-Identifier: Apache-2.0
"""The names of upstream's attention module for sm90: see `_prequantized.Kernel`."""

from functools import partial

from ._prequantized import Kernel

_sm90 = partial(Kernel, block_q=64, warp_q=16, block_k=128)

qk_int8_sv_f8_accum_f32_attn_inst_buf = _sm90("qk_int8_sv_f8_accum_f32_attn_inst_buf")
qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf = _sm90(
    "qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf", scaled=True
)
