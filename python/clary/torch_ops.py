# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's dispatcher, for torch.compile, torch.export and whatever else traces:
torch.ops.clary.attention and torch.ops.clary.merge. Registered when the first torch.Tensor comes along.

Made with torch.library.Library, which every PyTorch from 2.0 on has. The fakes are kernels of the Meta key; they give
shape, strides and type, and PyTorch adds the device. Eager calls do not pass here: the dispatcher costs some
microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from . import _attention, _merge, _tracing
from ._problem import INPUTS, Options

_SCHEMA = (
    "attention(Tensor q, Tensor k, Tensor v, "
    + "".join(f"Tensor? {name}=None, " for name in INPUTS[3:])
    + 'str layout="hnd", str causal="none", SymInt causal_offset=0, SymInt[]? window=None, float? scale=None, '
    'SymInt max_seqlen_q=0, SymInt max_seqlen_k=0, str recipe="auto", str backend="auto", bool return_lse=False) '
    "-> (Tensor, Tensor)"
)
_MERGE_SCHEMA = 'merge(Tensor(a!) out_a, Tensor(b!) lse_a, Tensor out_b, Tensor lse_b, str layout="hnd") -> ()'
_TENSORS = len(INPUTS)
_DEFAULTS = (*[None] * _TENSORS, *Options(), False)

library = torch.library.Library("clary", "DEF")


def _unflatten(flat: tuple) -> tuple[Options, dict[str, Any], bool]:
    flat += _DEFAULTS[len(flat) :]  # the dispatcher leaves off trailing arguments that have their default value
    options = Options(*flat[_TENSORS:-1])
    if options.window is not None:
        options = options._replace(window=tuple(options.window))
    return options, dict(zip(INPUTS, flat)), flat[-1]


def _attention_now(*flat: Any) -> tuple[torch.Tensor, torch.Tensor]:
    options, arrays, return_lse = _unflatten(flat)
    q = arrays["q"]
    made = _attention.run(options, arrays, return_lse)
    return made if return_lse else (made, q.new_empty((0,), dtype=torch.float32))


def _attention_fake(*flat: Any) -> tuple[torch.Tensor, torch.Tensor]:
    options, arrays, return_lse = _unflatten(flat)
    q, v = arrays["q"], arrays["v"]
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    if not return_lse:
        lse = (0,)
    elif q.dim() == 3:
        lse = (q.shape[1], q.shape[0])
    else:
        lse = (q.shape[0], q.shape[2], q.shape[1]) if options.layout == "nhd" else q.shape[:3]
    return out, q.new_empty(lse, dtype=torch.float32)


def _below_autograd(name: str, inputs: tuple[str, ...]) -> Any:
    def kernel(*flat: Any) -> Any:
        _tracing.refuse_gradients(dict(zip(inputs, flat)))
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(torch.ops.clary, name).default(*flat)

    return kernel


def _register(schema: str, now: Any, fake: Any, inputs: tuple[str, ...]) -> None:
    tags = [tag for tag in (getattr(torch.Tag, "pt2_compliant_tag", None),) if tag is not None]
    library.define(schema, tags=tags) if tags else library.define(schema)
    name = schema.split("(")[0]
    library.impl(name, now, "CompositeExplicitAutograd")
    library.impl(name, fake, "Meta")
    library.impl(name, _below_autograd(name, inputs), "Autograd")


_register(_SCHEMA, _attention_now, _attention_fake, INPUTS)
_register(_MERGE_SCHEMA, _merge.run, lambda *_: None, ("out_a", "lse_a", "out_b", "lse_b"))


def _no_compiler() -> bool:
    """PyTorch 2.0, where asking means importing the compiler."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and dynamo.is_compiling()


compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _no_compiler)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_jit_state = torch._C._get_tracing_state
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def active(arrays: Iterable[Any]) -> bool:
    """Whether a call must go through the dispatcher: somebody traces, or one of the tensors only pretends to hold data
    (a result that is still on its way from another rank is such a one)."""
    if compiling() or _modes() > 0 or _jit_state() is not None:
        return True
    for a in arrays:
        if type(a) in _PLAIN:
            if a.is_meta:
                return True
        elif a is not None and isinstance(a, torch.Tensor):
            return True
    return False


def call_attention(options: Options, arrays: dict[str, Any], return_lse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.clary.attention(*[arrays.get(name) for name in INPUTS], *options, return_lse)
