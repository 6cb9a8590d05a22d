# SPDX-License-Identifier: Apache-2.0
"""SageAttention's public names on Clary. Importing needs no GPU, no Triton, no compiler and no PyTorch."""

from ._errors import ArgumentError
from ._version import __version__
from .core import (
    sageattn,
    sageattn_qk_int8_pv_fp8_cuda,
    sageattn_qk_int8_pv_fp8_cuda_sm90,
    sageattn_qk_int8_pv_fp16_cuda,
    sageattn_qk_int8_pv_fp16_maca,
    sageattn_qk_int8_pv_fp16_triton,
    sageattn_varlen,
)

__all__ = [
    "ArgumentError",
    "__version__",
    "sageattn",
    "sageattn_qk_int8_pv_fp8_cuda",
    "sageattn_qk_int8_pv_fp8_cuda_sm90",
    "sageattn_qk_int8_pv_fp16_cuda",
    "sageattn_qk_int8_pv_fp16_maca",
    "sageattn_qk_int8_pv_fp16_triton",
    "sageattn_varlen",
]
