# SPDX-License-Identifier: Apache-2.0
"""Keywords that hosts pass beyond SageAttention's own parameters.

SageAttention swallows every keyword it does not know. Here each one that a host is known to pass is honoured, or
refused where it asks for what these functions cannot do; any other is a TypeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    import torch


class HostKeywords(TypedDict, total=False):
    """The keywords after an attention function's own."""

    causal: bool | None  # another name of is_causal
    softmax_scale: float | None  # other names of sm_scale
    scale: float | None
    enable_gqa: bool  # any value: grouped heads need no asking
    deterministic: bool  # any value: results are the same bits from run to run
    dropout_p: float  # 0
    window_size: tuple[int, int]  # (-1, -1)
    softcap: float  # 0
    alibi_slopes: torch.Tensor | None  # None
    return_softmax: bool  # False


class Softmax(NamedTuple):
    """What is_causal, sm_scale and their other names say: arguments of clary.attention."""

    causal: bool | str
    scale: float | None


_SCALES = ("softmax_scale", "scale")
_IGNORED = ("causal", "enable_gqa", "deterministic", *_SCALES)
# What must hold, and where Clary has what is refused.
_REFUSED = {
    "dropout_p": ("0", "attention here is for inference"),
    "window_size": ("(-1, -1)", "clary.attention has window="),
    "softcap": ("0", "no recipe has it"),
    "alibi_slopes": ("None", "clary.attention has alibi_slopes="),
    "return_softmax": ("False", "the softmax is never materialised"),
}


def _is_trivial(name: str, value: Any) -> bool:
    if value is None:
        return True
    if name == "alibi_slopes":
        return False
    if name == "window_size":
        return isinstance(value, (tuple, list)) and all(w == -1 for w in value)
    return value == 0


def _parse_causal(function: str, is_causal: Any, causal: Any) -> bool | str:
    if isinstance(is_causal, str) and is_causal in ("top_left", "bottom_right"):
        found: bool | str = is_causal
    elif is_causal is None or (getattr(is_causal, "ndim", 0) == 0 and is_causal in (0, 1)):
        found = "top_left" if is_causal else False
    else:
        raise ValueError(f"{function}: is_causal: {is_causal!r}; allowed: True, False, 'top_left', 'bottom_right'")
    if causal is None or bool(causal) == bool(found):
        return found
    if found:
        raise ValueError(f"{function}: is_causal is {is_causal!r}, but causal is {causal!r}; allowed: one of the two")
    return "top_left"


def _parse_scale(function: str, sm_scale: Any, host: Mapping[str, Any]) -> float | None:
    found, source = sm_scale, "sm_scale"
    for name in _SCALES:
        value = host.get(name)
        if value is None:
            continue
        if found is not None and value != found:
            raise ValueError(f"{function}: {source} is {found!r}, but {name} is {value!r}; allowed: one of the two")
        found, source = value, name
    if isinstance(found, (bool, str)):
        raise TypeError(f"{function}: {source}: {found!r}; allowed: a number or None")
    return found


def parse(function: str, is_causal: Any, sm_scale: Any, host: Mapping[str, Any]) -> Softmax:
    """Raises TypeError for a keyword that nobody knows and ValueError for a value that cannot be honoured."""
    for name, value in host.items():
        if name in _REFUSED:
            if not _is_trivial(name, value):
                allowed, instead = _REFUSED[name]
                raise ValueError(f"{function}: {name}: {value!r}; allowed: {allowed} ({instead})")
        elif name not in _IGNORED:
            raise TypeError(
                f"{function}() got an unexpected keyword argument '{name}'; allowed beyond its own parameters: "
                f"{', '.join(sorted([*_IGNORED, *_REFUSED]))}"
            )
    return Softmax(_parse_causal(function, is_causal, host.get("causal")), _parse_scale(function, sm_scale, host))
