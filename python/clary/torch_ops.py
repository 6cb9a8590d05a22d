# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's dispatcher, for torch.compile, torch.export and whatever else traces:
torch.ops.clary.attention and torch.ops.clary.merge. Registered when the first torch.Tensor comes along.

Made with torch.library.Library, which every PyTorch from 2.0 on has. The fakes are kernels of the Meta key; they give
shape, strides and type, and PyTorch adds the device. Eager calls do not pass them, since the dispatcher costs some
microseconds; what they must know of PyTorch's state is here too.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from . import _attention, _merge, _problem, _tracing
from ._arrays import TorchFamily
from ._library import check, lib
from ._problem import INPUTS, Options, Plan, make_params
from .errors import InvalidArgument

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
    _check_fake(options, arrays)
    return fake_results(arrays["q"], arrays["v"].shape[-1], options.layout, return_lse)


def fake_results(q: torch.Tensor, head_dim_v: int, layout: str, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE as they will look; without LSE an empty tensor stands in its place."""
    if not return_lse:
        lse = (0,)
    elif q.dim() == 3:
        lse = (q.shape[1], q.shape[0])
    else:
        lse = (q.shape[0], q.shape[2], q.shape[1]) if layout == "nhd" else q.shape[:3]
    return q.new_empty((*q.shape[:-1], head_dim_v)), q.new_empty(lse, dtype=torch.float32)


def _check_fake(options: Options, arrays: dict[str, Any]) -> None:
    """What a call would refuse, refused while tracing: where every size is known, all that the library checks."""
    q, described = arrays["q"], {}
    for name, a in arrays.items():
        if a is None:
            continue
        if a.device != q.device:
            raise InvalidArgument(f"{name} is on {a.device}, but q on {q.device}; allowed: one device for all")
        dtype, _, shape, strides = TorchFamily.facts(a)
        described[name] = TorchFamily.describe(name, (dtype, torch.device("cpu"), shape, strides))
    numbers = [options.causal_offset, *(options.window or ()), options.max_seqlen_q, options.max_seqlen_k]
    for _, _, _, shape, strides in described.values():
        numbers += [*shape, *strides]
    if all(type(n) is int for n in numbers):
        params, text = make_params(options._replace(backend="auto"), described), ctypes.c_char_p()
        check(lib.clary_explain(ctypes.byref(params), ctypes.byref(text)))


@contextlib.contextmanager
def _old_guard() -> Iterator[None]:
    guard = torch._C._AutoDispatchBelowAutograd()
    try:
        yield
    finally:
        del guard


#: In PyTorch 2.0 the guard is no context manager but holds while it lives.
_guard = torch._C._AutoDispatchBelowAutograd
if not hasattr(_guard, "__enter__"):
    _guard = _old_guard


def _below_autograd(name: str, inputs: tuple[str, ...]) -> Any:
    def kernel(*flat: Any) -> Any:
        _tracing.refuse(name, dict(zip(inputs, flat)))
        with _guard():
            return getattr(torch.ops.clary, name).default(*flat)

    return kernel


def register(schema: str, now: Any, fake: Any, inputs: tuple[str, ...]) -> None:
    tags = [tag for tag in (getattr(torch.Tag, "pt2_compliant_tag", None),) if tag is not None]
    library.define(schema, tags=tags) if tags else library.define(schema)
    name = schema.split("(")[0]
    library.impl(name, now, "CompositeExplicitAutograd")
    library.impl(name, fake, "Meta")
    library.impl(name, _below_autograd(name, inputs), "Autograd")


register(_SCHEMA, _attention_now, _attention_fake, INPUTS)
register(_MERGE_SCHEMA, _merge.run, lambda *_: None, ("out_a", "lse_a", "out_b", "lse_b"))


def _no_compiler() -> bool:
    """PyTorch 2.0, where asking means importing the compiler."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and dynamo.is_compiling()


compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _no_compiler)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_jit_state = torch._C._get_tracing_state
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_Tensor, _strided = torch.Tensor, torch.strided
grad_enabled = torch.is_grad_enabled
_transforms = torch._C._functorch.peek_interpreter_stack
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def transforming() -> bool:
    """Whether one of torch.func's vmap, grad, jvp, ... is at work; is_wrapped(tensor): whether on this one. Not to be
    asked, like the next, while torch.compile traces."""
    return _transforms() is not None


def is_wrapped(array: Any) -> bool:
    return isinstance(array, torch.Tensor) and _wrapped(array)


def forward_mode() -> bool:
    """Whether tensors may have tangents; has_tangent(tensor): whether this one has."""
    return forward_ad._current_level >= 0


def has_tangent(array: Any) -> bool:
    return isinstance(array, torch.Tensor) and forward_ad.unpack_dual(array).tangent is not None


def active(arrays: dict[str, Any]) -> bool:
    """Whether a call must go through the dispatcher: somebody traces, or one of the tensors only pretends to hold data
    (a result that is still on its way from another rank is such a one)."""
    pretends = False
    for name, a in arrays.items():
        if a is None:
            continue
        if type(a) in _PLAIN:
            pretends |= a.is_meta
        elif isinstance(a, torch.Tensor):
            if a.is_nested:
                raise InvalidArgument(f"{name}: a nested tensor, {a.layout}; allowed: a dense tensor")
            pretends = True
    return pretends or compiling() or _modes() > 0 or _jit_state() is not None


def plan_again(options: Options, arrays: dict[str, Any], fresh: tuple[str, ...]) -> Plan | None:
    """The plan of a call, if one like it was made before, and its arrays need nothing but to be read: one pass over them
    instead of those that refuse, convert and describe."""
    if compiling() or _modes() > 0 or _jit_state() is not None or transforming() or forward_mode():
        return None
    grad, looks = grad_enabled(), []
    try:
        for a in arrays.values():
            if type(a) is not _Tensor or a.layout is not _strided or a.is_neg() or (grad and a.requires_grad):
                return None
            looks.append((a.dtype, a.device, a.shape, a.stride()))  # as TorchFamily.facts
    except RuntimeError:  # a nested tensor, which has neither
        return None
    return _problem.plans.get(_problem.plan_key(TorchFamily.name, options, True, fresh, (), arrays, looks))


def call_attention(options: Options, arrays: dict[str, Any], return_lse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.clary.attention(*[arrays.get(name) for name in INPUTS], *options, return_lse)
