# SPDX-License-Identifier: Apache-2.0
"""Whether an array that is written shares memory with one that is read: then the result would depend on who comes
first. Views of one buffer that lie side by side (heads of a fused projection) do not."""

from __future__ import annotations

import functools
from typing import Any

from ._arrays import WIDTHS
from .errors import InvalidArgument

_STEPS = 10_000  # of the search, after which memory counts as shared


@functools.lru_cache(maxsize=4096)
def _extent(family: Any, name: str, facts: tuple) -> tuple[int, int, tuple]:
    """Bytes from the array's pointer to its first and behind its last one, and its (count, stride in bytes)."""
    dtype, _, _, shape, strides = family.describe(name, facts)
    width = WIDTHS[dtype]
    dims = tuple((n, s * width) for n, s in zip(shape, strides))
    if not all(shape):
        return 0, 0, ()
    low, high = (sum(side(0, (n - 1) * s) for n, s in dims) for side in (min, max))
    return low, high + width, (*dims, (width, 1))


def _reaches(dims: list[tuple[int, int]], target: int) -> bool:
    """Whether some sum of i * stride, 0 <= i < count for each (count, stride), is the target."""
    counts: dict[int, int] = {}
    for count, stride in dims:
        if stride < 0:  # counted from the other end
            target -= stride * (count - 1)
        if stride and count > 1:
            counts[abs(stride)] = counts.get(abs(stride), 0) + count - 1
    ordered = sorted(counts.items(), reverse=True)
    rest = [0]
    for stride, most in reversed(ordered):
        rest.append(rest[-1] + stride * most)
    rest.reverse()  # rest[i]: the largest sum of the strides from the i-th on
    steps = 0

    def search(depth: int, left: int) -> bool:
        nonlocal steps
        steps += 1
        if steps > _STEPS:
            return True
        if not 0 <= left <= rest[depth]:
            return False
        if depth == len(ordered):
            return left == 0
        stride, most = ordered[depth]
        first = max(0, -((rest[depth + 1] - left) // stride))
        return any(search(depth + 1, left - i * stride) for i in range(first, min(most, left // stride) + 1))

    return search(0, target)


def refuse_overlap(family: Any, arrays: dict[str, Any]) -> None:
    """Raises InvalidArgument where `out` shares a byte with another of the arrays."""
    out = arrays["out"]
    start = family.pointer(out)
    low, high, dims = _extent(family, "out", family.facts(out))
    for name, array in arrays.items():
        if name == "out":
            continue
        other = family.pointer(array)
        other_low, other_high, other_dims = _extent(family, name, family.facts(array))
        apart = not dims or not other_dims or start + high <= other + other_low or other + other_high <= start + low
        if not apart and _reaches([*dims, *((n, -s) for n, s in other_dims)], other - start):
            raise InvalidArgument(f"out: overlaps {name}; allowed: memory of its own")
