# SPDX-License-Identifier: Apache-2.0
"""What eager calls must know about PyTorch's tracers and autograd; the operators themselves are in torch_ops."""

from __future__ import annotations

from typing import Any

from .errors import NoGradient, Unsupported

_GRADIENT = ("clary: {}, and quantized attention has none; allowed: torch.no_grad(), torch.inference_mode(), or "
             ".detach()")  # fmt: skip


def refuse(what: str, arrays: dict[str, Any]) -> None:
    """An output without grad_fn would leave what comes before it untrained, one without a tangent would be a constant,
    without a word; and tensors inside torch.func's transforms have no memory that could be read."""
    from . import torch_ops

    grad, transform, forward = torch_ops.grad_enabled(), False, False
    if not torch_ops.compiling():
        transform, forward = torch_ops.transforming(), torch_ops.forward_mode()
    if not (grad or transform or forward):
        return
    for name, array in arrays.items():
        if array is None:
            continue
        if grad and getattr(array, "requires_grad", False):
            raise NoGradient(_GRADIENT.format(f"{name} requires a gradient"))
        if transform and torch_ops.is_wrapped(array):
            raise Unsupported(f"{what}: {name} is under a transform of torch.func (vmap, ...); allowed: outside")
        if forward and torch_ops.has_tangent(array):
            raise NoGradient(_GRADIENT.format(f"{name} has a tangent"))


def active(arrays: dict[str, Any]) -> bool:
    """Whether this call must go through PyTorch's dispatcher: under torch.compile, torch.export and other tracers, and
    for tensors that only pretend to hold data."""
    from . import torch_ops

    return torch_ops.active(arrays)


def attention(options: Any, arrays: dict[str, Any], return_lse: bool) -> tuple[Any, Any]:
    from . import torch_ops

    return torch_ops.call_attention(options, arrays, return_lse)


def attend(packed: Any, arrays: dict[str, Any], options: tuple, return_lse: bool) -> tuple[Any, Any]:
    from . import torch_packed

    return torch_packed.call_attend(packed, arrays, options, return_lse)


def append(packed: Any, arrays: dict[str, Any]) -> None:
    from . import torch_packed

    torch_packed.call_append(packed, arrays)


def merge(*arguments: Any) -> None:
    from . import torch_ops

    torch_ops.torch.ops.clary.merge(*arguments)
