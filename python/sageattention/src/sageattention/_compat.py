# SPDX-License-Identifier: Apache-2.0
"""What hosts import from `sageattention.core` beside the public functions. Names that are not here are ImportErrors, so
that hosts which probe for them take their other path."""

from __future__ import annotations

import importlib
from typing import Any

# name in sageattention.core -> (module of this package, name in it; "": the module itself)
_NAMES = {
    "per_block_int8_cuda": ("quant", "per_block_int8"),
    "per_block_int8_triton": ("quant", "per_block_int8"),
    "per_warp_int8_cuda": ("quant", "per_warp_int8"),
    "per_thread_int8_triton": ("quant", "per_thread_int8"),
    "per_channel_fp8": ("quant", "per_channel_fp8"),
    "sub_mean": ("quant", "sub_mean"),
    "attn_false": ("_prequantized", "attend_block"),
    "attn_true": ("_prequantized", "attend_block_causal"),
    "sm80_compile": ("sm80_compile", ""),
    "sm89_compile": ("sm89_compile", ""),
    "sm90_compile": ("sm90_compile", ""),
    "_qattn_sm80": ("sm80_compile", ""),
    "_qattn_sm89": ("sm89_compile", ""),
    "_qattn_sm90": ("sm90_compile", ""),
    "get_cuda_arch_versions": ("_devices", "get_cuda_arch_versions"),
    "get_cuda_version": ("_devices", "get_cuda_version"),
    "SM80_ENABLED": ("_devices", "ENABLED"),
    "SM89_ENABLED": ("_devices", "ENABLED"),
    "SM90_ENABLED": ("_devices", "ENABLED"),
}


def find(name: str) -> Any:
    try:
        module, attribute = _NAMES[name]
    except KeyError:
        raise AttributeError(f"module 'sageattention.core' has no attribute {name!r}") from None
    found = importlib.import_module(f"sageattention.{module}")
    return getattr(found, attribute) if attribute else found
