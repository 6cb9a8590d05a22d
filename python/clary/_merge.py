# SPDX-License-Identifier: Apache-2.0
"""Merging partial results over disjoint keys."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _structs, _tracing
from ._arrays import CPU, adopt, is_torch
from ._library import check, lib
from ._problem import fill_tensor, gather, parse_layout

Array = Any


def merge(out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, *, layout: str = "hnd") -> tuple[Array, Array]:
    """Merges two partial results over disjoint keys, as ``attention(..., return_lse=True)`` gave them, **into the
    first** (ring attention, split K and V): out_a becomes the mean of both weighted by exp(lse), lse_a the log of the
    summed denominators, computed in fp32. Exact for -inf on either side. With learned sinks, give the sink to one
    partial call only.

    Args:
        out_a, out_b: ``[batch, heads, tokens, head_dim]`` in the given layout, or packed ``[tokens, heads, head_dim]``.
        lse_a, lse_b: fp32 ``[batch, heads, tokens]``, or packed ``[heads, tokens]``.

    Returns:
        ``(out_a, lse_a)``, the arrays that were given, updated in place.
    """
    out_a, lse_a, out_b, lse_b = map(adopt, (out_a, lse_a, out_b, lse_b))
    layout = parse_layout(layout)
    if is_torch(out_a):
        arrays = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
        _tracing.refuse("merge", arrays)
        if _tracing.active(arrays):
            _tracing.merge(out_a, lse_a, out_b, lse_b, layout)
            return out_a, lse_a
    run(out_a, lse_a, out_b, lse_b, layout)
    return out_a, lse_a


def run(out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, layout: str = "hnd") -> None:
    arrays = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    family = gather(arrays)
    params = _structs.MergeParams(struct_size=ctypes.sizeof(_structs.MergeParams))
    for name, array in arrays.items():
        described = family.describe(name, family.facts(array))
        fill_tensor(getattr(params, name), name, described, layout == "nhd", family.pointer(array))
        if described[1] != CPU:
            params.stream = family.stream(described[2])
    check(lib.clary_merge(ctypes.byref(params)))
    family.written(out_a)
    family.written(lse_a)
