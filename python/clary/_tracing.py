# SPDX-License-Identifier: Apache-2.0
"""What eager calls must know about PyTorch's tracers and autograd; the operators themselves are in torch_ops."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .errors import NoGradient

_GRADIENT = ("clary: {} requires a gradient, and quantized attention has none; allowed: torch.no_grad(), "
             "torch.inference_mode(), or .detach()")  # fmt: skip


def refuse_gradients(arrays: dict[str, Any]) -> None:
    """An output without grad_fn would leave what comes before it untrained, without a word."""
    torch = sys.modules["torch"]
    if not torch.is_grad_enabled():
        return
    for name, array in arrays.items():
        if array is not None and getattr(array, "requires_grad", False):
            raise NoGradient(_GRADIENT.format(name))


def active(arrays: Iterable[Any]) -> bool:
    """Whether this call must go through PyTorch's dispatcher: under torch.compile, torch.export and other tracers, and
    for tensors that only pretend to hold data."""
    from . import torch_ops

    return torch_ops.active(arrays)


def attention(options: Any, arrays: dict[str, Any], return_lse: bool) -> tuple[Any, Any]:
    from . import torch_ops

    return torch_ops.call_attention(options, arrays, return_lse)


def merge(*arguments: Any) -> None:
    from . import torch_ops

    torch_ops.torch.ops.clary.merge(*arguments)
