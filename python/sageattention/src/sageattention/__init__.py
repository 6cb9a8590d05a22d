# SPDX-License-Identifier: Apache-2.0
"""SageAttention's public names on Clary. Importing needs no GPU, no Triton, no compiler and no PyTorch."""

from __future__ import annotations

from ._errors import ArgumentError
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

__version__: str


def __getattr__(name: str) -> str:
    """__version__ is looked up when somebody asks: reading metadata takes longer than all the rest."""
    if name == "__version__":
        from ._version import version

        return version()
    raise AttributeError(f"module 'sageattention' has no attribute {name!r}")
