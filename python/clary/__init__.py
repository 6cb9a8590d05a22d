# SPDX-License-Identifier: Apache-2.0
"""Clary: quantized attention, in 8 and 4 bits at 16-bit quality, for torch, numpy and DLPack arrays on CPUs and GPUs.

    import clary
    out = clary.attention(q, k, v, causal="bottom_right")

Importing it changes nothing elsewhere and imports neither PyTorch nor numpy.
"""

from . import errors
from ._attention import attention, attention_varlen
from ._explain import Kernel, explain, gpu_backend, kernels, recipes
from ._library import build_info, get_num_threads, last_kernel, set_num_threads
from ._library import version as __version__
from ._merge import merge
from ._models import patch, sdpa
from ._packed import KVCache, PackedKV, attention_consume, quantize_kv
from .errors import Error, InvalidArgument, NoDevice, NoGradient, Unsupported
from .recipe_map import RecipeMap

__all__ = [
    "Error",
    "InvalidArgument",
    "KVCache",
    "Kernel",
    "NoDevice",
    "NoGradient",
    "PackedKV",
    "RecipeMap",
    "Unsupported",
    "__version__",
    "attention",
    "attention_consume",
    "attention_varlen",
    "build_info",
    "errors",
    "explain",
    "get_num_threads",
    "gpu_backend",
    "kernels",
    "last_kernel",
    "merge",
    "patch",
    "quantize_kv",
    "recipes",
    "sdpa",
    "set_num_threads",
]
