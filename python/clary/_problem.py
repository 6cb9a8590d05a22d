# SPDX-License-Identifier: Apache-2.0
"""One attention problem as clary.h wants it: options parsed once, arrays described once, and the filled struct kept.

A call whose arrays and options look as before costs a dictionary look-up and one store per pointer: everything else of
clary_attention_params depends on shapes, strides, types, devices and options alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _structs
from ._arrays import adopt, family_of, is_foreign
from ._library import check, lib, threads
from .errors import InvalidArgument

INPUTS = (
    "q",
    "k",
    "v",
    "mask",
    "kv_lengths",
    "alibi_slopes",
    "sinks",
    "causal_offsets",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_table",
    "c_k",
    "c_q",
    "q_base",
)
RESULTS = ("out", "lse")
_WRITTEN = (*RESULTS, "out_a", "lse_a")
# Of pointers within the struct, in words: of each tensor's data, then others.
_WORD = ctypes.sizeof(ctypes.c_void_p)
_DATA = {name: (getattr(_structs.Params, name).offset + _structs.Tensor.data.offset) // _WORD
         for name in INPUTS + RESULTS}  # fmt: skip
_CONTEXT, _STREAM, _WORKSPACE, _WORKSPACE_BYTES = (
    getattr(_structs.Params, name).offset // _WORD for name in ("context", "stream", "workspace", "workspace_size")
)

_FAR = 2**62  # numbers that are no sizes stay below: ctypes would keep the low bits of larger ones without a word

CAUSAL = {"none": 0, "top_left": 1, "bottom_right": 2, "offset": 3}
_PERMUTED = ("q", "k", "v", "out")
FP32 = 1


class Options(NamedTuple):
    """What is not an array. Hashable."""

    layout: str = "hnd"
    causal: str = "none"
    causal_offset: int = 0
    window: tuple[int, ...] | None = None
    scale: float | None = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    recipe: str = "auto"
    backend: str = "auto"


def parse_layout(layout: str) -> str:
    lower = layout.lower() if isinstance(layout, str) else layout
    if lower not in ("hnd", "nhd"):
        raise InvalidArgument(
            f"layout: {layout!r}; allowed: 'hnd' [batch, heads, tokens, head_dim], "
            "'nhd' [batch, tokens, heads, head_dim]"
        )
    return lower


def is_index(value: Any) -> bool:
    """Whether it is an int or stands for one. PyTorch 2.11 does not trace `hasattr` of a symbolic int, which is an int."""
    return not isinstance(value, bool) and (isinstance(value, int) or hasattr(value, "__index__"))


def parse_index(name: str, value: Any, allowed: str, low: int = -_FAR, high: int = _FAR) -> int:
    """An int as it is: in a graph it may be symbolic, and turning it into a number would hold it fast."""
    if not is_index(value):
        raise InvalidArgument(f"{name}: {value!r}; allowed: {allowed}")
    found = value if isinstance(value, int) else value.__index__()
    if not low <= found <= high:
        raise InvalidArgument(f"{name}: {value}; allowed: {allowed}")
    return found


def parse_causal(causal: Any, offset: Any, same_length: bool) -> tuple[str, int, Any]:
    """(kind, offset, offsets). `True` is refused where the two corners differ: half of the world means the other
    one."""
    if offset is not None:
        if causal not in (False, True, None, "offset"):
            raise InvalidArgument(f"causal: {causal!r} with causal_offset; allowed: one of the two")
        if getattr(offset, "ndim", 0) or is_foreign(offset):
            return "offset", 0, offset
        return "offset", parse_index("causal_offset", offset, "-2^62..2^62, or an int array [batch]"), None
    if causal is True:
        if not same_length:
            raise InvalidArgument(
                "causal: True is ambiguous where queries and keys differ in number; allowed: 'top_left' (key j is seen "
                "by query i where j <= i; PyTorch's is_causal), 'bottom_right' (the last query sees every key), "
                "causal_offset"
            )
        return "top_left", 0, None
    if causal is False or causal is None:
        return "none", 0, None
    if causal not in ("none", "top_left", "bottom_right"):
        raise InvalidArgument(f"causal: {causal!r}; allowed: False, True, 'top_left', 'bottom_right'")
    return causal, 0, None


def parse_window(window: Any) -> tuple[int, ...] | None:
    if window is None:
        return None
    allowed = "(left, right) or (left, right, keep), -1 for no limit"
    if isinstance(window, str) or not hasattr(window, "__iter__"):
        raise InvalidArgument(f"window: {window!r}; allowed: {allowed}")
    found = tuple(window)
    if len(found) not in (2, 3) or not all(is_index(w) for w in found):
        raise InvalidArgument(f"window: {window!r}; allowed: {allowed}")
    return tuple(parse_index("window", w.__index__(), allowed) for w in found)


def parse_recipe(recipe: Any, what: str = "recipe") -> str:
    if recipe is None:
        return "auto"
    if not isinstance(recipe, str) or not recipe.isascii() or "\0" in recipe:  # C strings end at a NUL
        raise InvalidArgument(f"{what}: {recipe!r}; allowed: a string such as 'auto'")
    return recipe


def parse_scale(scale: Any) -> float | None:
    if scale is None or type(scale) is float:
        return scale
    if isinstance(scale, (bool, str)) or not (hasattr(scale, "__float__") or hasattr(scale, "__index__")):
        raise InvalidArgument(f"scale: {scale!r}; allowed: a number or None")
    try:
        return float(scale)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"scale: {scale!r}; allowed: a number or None") from None


def fill_tensor(to: _structs.Tensor, name: str, described: tuple, nhd: bool, pointer: int = 0) -> None:
    dtype, device, index, shape, strides = described
    if not 1 <= len(shape) <= _structs.MAX_DIMS:
        raise InvalidArgument(f"{name}: {len(shape)} dimensions; allowed: 1..4")
    if nhd and len(shape) == 4:
        shape, strides = (tuple(s[i] for i in (0, 2, 1, 3)) for s in (shape, strides))
    to.dtype, to.device, to.device_index, to.ndim, to.data = dtype, device, index, len(shape), pointer
    to.shape[: len(shape)] = shape
    to.stride[: len(shape)] = strides


def make_params(options: Options, described: dict[str, tuple]) -> _structs.Params:
    """Everything but the pointers of tensors. `described`: by tensor name, what a family's describe() answers."""
    params = _structs.Params(struct_size=ctypes.sizeof(_structs.Params))
    nhd = options.layout == "nhd"
    for name, what in described.items():
        fill_tensor(getattr(params, name), name, what, nhd and name in _PERMUTED)
    params.recipe, params.backend = options.recipe.encode(), options.backend.encode()
    params.causal, params.causal_offset = CAUSAL[options.causal], options.causal_offset
    if options.scale is not None:
        params.scale, params.has_scale = options.scale, 1
    if options.window is not None:
        params.has_window = 1
        params.window_left, params.window_right = options.window[:2]
        params.window_keep = options.window[2] if len(options.window) == 3 else 0
    params.max_seqlen_q, params.max_seqlen_k = options.max_seqlen_q, options.max_seqlen_k
    return params


def workspace_bytes(params: _structs.Params, one_shot: bool) -> int:
    found = ctypes.c_size_t()
    check(lib.clary_workspace_size(ctypes.byref(params), int(one_shot), ctypes.byref(found)))
    return found.value


class Bound:
    """The struct of one call at a time, its pointers as words, and its workspace, if it has one."""

    workspace = 0

    def __init__(self, family: Any, template: bytes):
        self.family = family
        self.params = _structs.Params.from_buffer_copy(template)
        self.reference = ctypes.byref(self.params)
        self.words = memoryview(self.params).cast("B").cast("N")

    def free(self) -> None:
        if self.workspace:
            self.family.free(self.workspace)
            self.workspace = 0

    __del__ = free  # where the call failed


class Plan:
    """The filled struct of a problem, but for pointers, and the shapes of the results that a call makes itself."""

    def __init__(self, family: Any, options: Options, described: dict[str, tuple], fresh: tuple[str, ...],
                 one_shot: bool):  # fmt: skip
        self.family = family
        self.shapes = fresh_shapes(options, described)
        for name in fresh:
            dtype = FP32 if name == "lse" else described["q"][0]
            shape = self.shapes[name]
            described[name] = (dtype, *described["q"][1:3], shape, contiguous(shape))
        self.params = make_params(options, described)  # keeps the strings alive that the template points to
        self.template = bytes(self.params)
        self.idle: list[Bound] = []  # of calls that have returned
        self.like_q = described.get("out") == described["q"]
        self.q_bytes: dict[int, int] = {}  # of a packed Q, by the capacity of the cache that it attends to
        self.on_gpu, self.device_index = described["q"][1] != 0, described["q"][2]
        # On the CPU the library takes its workspace from the heap, of the size that this call's lengths need.
        self.workspace = max(workspace_bytes(self.params, one_shot), 64) if self.on_gpu else 0

    def bind(self, arrays: dict[str, Any]) -> Bound:
        """A struct for one call, with its workspace; to be released when all is queued."""
        try:
            bound = self.idle.pop()  # (of one thread alone)
        except IndexError:
            bound = Bound(self.family, self.template)
        self.store(bound, arrays)
        words = bound.words
        if self.on_gpu:
            family, index = self.family, self.device_index
            words[_STREAM] = stream = family.stream(index)
            words[_WORKSPACE] = bound.workspace = family.workspace(self.workspace, index, stream)
            words[_WORKSPACE_BYTES] = self.workspace
        else:
            words[_CONTEXT] = threads.context or 0
        return bound

    def store(self, bound: Bound, arrays: dict[str, Any]) -> None:
        words, pointer = bound.words, self.family.pointer
        for name, array in arrays.items():
            words[_DATA[name]] = pointer(array)

    def release(self, bound: Bound) -> None:
        """After the call: its struct and memory may serve another."""
        bound.free()
        self.idle.append(bound)


def contiguous(shape: tuple) -> tuple:
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


def fresh_results(return_lse: bool, given: bool = False) -> tuple[str, ...]:
    """What a call makes itself; `given`: not the output."""
    return (("lse",) if return_lse else ()) if given else (("out", "lse") if return_lse else ("out",))


def fresh_shapes(options: Options, described: dict[str, tuple]) -> dict[str, tuple]:
    """Of out, like q but with v's head_dim, and of lse, which is [batch, heads, tokens] in every layout."""
    q, v = described["q"][3], described["v"][3]
    if len(q) == 4:
        lse = (q[0], q[2], q[1]) if options.layout == "nhd" else q[:3]
    else:
        lse = q[1::-1]
    return {"out": (*q[:-1], *v[-1:]), "lse": lse}


_PLANS_KEPT = 4096
plans: dict[tuple, Plan] = {}  # by plan_key


def plan_for(family: Any, options: Options, arrays: dict[str, Any], fresh: tuple[str, ...] = (),
             fixed: tuple = (), one_shot: bool = True) -> Plan:  # fmt: skip
    """The plan of arrays and options that look like these, made at the first of them. `fresh`: results that the call
    will make itself; `fixed`: pairs of a name and what describe() answers, for tensors that have no data in this
    call."""
    facts = family.facts
    looks = [facts(a) for a in arrays.values()]
    key = plan_key(family.name, options, one_shot, fresh, fixed, arrays, looks)
    plan = plans.get(key)
    if plan is None:
        described = {name: family.describe(name, look) for name, look in zip(arrays, looks)}
        plan = Plan(family, options, {**dict(fixed), **described}, fresh, one_shot)
        if len(plans) >= _PLANS_KEPT:
            plans.clear()
        plans[key] = plan
    return plan


def plan_key(family: str, options: Options, one_shot: bool, fresh: tuple[str, ...], fixed: tuple, names: Iterable[str],
             looks: list) -> tuple:  # fmt: skip
    """Of the plan of arrays with these names and looks, their family's facts."""
    return (family, options, one_shot, fresh, fixed, *names, *looks)


_REQUIRED = frozenset(("q", "k", "v", "out_a", "lse_a", "out_b", "lse_b"))


def gather(arrays: dict[str, Any]) -> Any:
    """The family of the first array, which the others must be of too. Drops those that are None, and puts plain arrays
    in the place of those that are not."""
    family, kind, first = None, None, None
    present = {name: a for name, a in arrays.items() if a is not None or name in _REQUIRED}
    arrays.clear()
    arrays.update(present)
    for name, array in arrays.items():
        if type(array) is kind:
            continue
        if is_foreign(array):
            arrays[name] = array = adopt(array, family)
        found = family_of(name, array)
        if family is None:
            family, kind, first = found, type(array), name
        elif found is not family:
            raise TypeError(f"{name}: a {found.name}, but {first} is a {family.name}; allowed: the same kind")
    for name, array in arrays.items():
        arrays[name] = family.plain(name, array, name in _WRITTEN)
    return family
