# SPDX-License-Identifier: Apache-2.0
"""Operators over packed keys, for graphs in which a cache grows and is attended to: torch.ops.clary.attend and
torch.ops.clary.append. The packed bytes are a tensor; what else there is to know of them is a text (PackedKV._text),
the same at every step and for every layer that looks alike, so that nothing is compiled twice."""

from __future__ import annotations

from typing import Any

import torch

from ._packed import PackedKV, _parse
from .torch_ops import fake_results, register

_VECTORS = ("mask", "kv_lengths", "alibi_slopes", "sinks", "causal_offsets")
_ATTEND = (
    "attend(Tensor q, Tensor memory, "
    + "".join(f"Tensor? {name}, " for name in _VECTORS)
    + "str causal, SymInt causal_offset, SymInt[]? window, str packed, bool return_lse) -> (Tensor, Tensor)"
)
_APPEND = "append(Tensor(a!) memory, Tensor k, Tensor v, Tensor? kv_lengths, str packed) -> ()"


def _attend_now(q: torch.Tensor, memory: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    *vectors, causal, offset, window, text, return_lse = rest
    packed = PackedKV._of(text, memory)
    options = packed._options._replace(
        causal=causal, causal_offset=offset, window=None if window is None else tuple(window)
    )
    made = packed._attend_now(options, {"q": q, **dict(zip(_VECTORS, vectors)), "out": None}, return_lse)
    return made if return_lse else (made, q.new_empty((0,), dtype=torch.float32))


def _attend_fake(q: torch.Tensor, memory: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    options, shapes, *_ = _parse(rest[-2])
    return fake_results(q, shapes["v"][3][-1], options.layout, rest[-1])


def _append_now(memory: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lengths: Any, text: str) -> None:
    PackedKV._of(text, memory)._append_now({"k": k, "v": v, "kv_lengths": kv_lengths})


register(_ATTEND, _attend_now, _attend_fake, ("q", "memory", *_VECTORS))
register(_APPEND, _append_now, lambda *_: None, ("memory", "k", "v", "kv_lengths"))


def call_attend(packed: PackedKV, arrays: dict[str, Any], options: tuple, return_lse: bool) -> tuple[Any, Any]:
    vectors = [arrays[name] for name in _VECTORS]
    return torch.ops.clary.attend(arrays["q"], packed.memory, *vectors, *options, packed._text, return_lse)


def call_append(packed: PackedKV, arrays: dict[str, Any]) -> None:
    torch.ops.clary.append(packed.memory, arrays["k"], arrays["v"], arrays["kv_lengths"], packed._text)
