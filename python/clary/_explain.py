# SPDX-License-Identifier: Apache-2.0
"""Looking inside: which kernel would run and why, which kernels and recipes there are."""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from typing import Any

from . import _structs
from ._arrays import CPU, CUDA, MACA, adopt, dtype_code, gpu_of
from ._library import check, lib
from ._problem import (
    Options,
    contiguous,
    is_index,
    make_params,
    parse_causal,
    parse_index,
    parse_layout,
    parse_recipe,
    parse_scale,
    parse_window,
)
from .errors import InvalidArgument


@dataclass(frozen=True)
class Kernel:
    """A kernel of the loaded library."""

    name: str
    backend: str
    arch: str
    recipe: str
    usable: bool
    reason: str  # why it is not usable on this machine, or ""


def kernels() -> list[Kernel]:
    """Every kernel of the loaded library, and whether it runs on this machine."""
    found = []
    for index in range(lib.clary_kernel_count()):
        info = _structs.KernelInfo(struct_size=ctypes.sizeof(_structs.KernelInfo))
        check(lib.clary_kernel_get(index, ctypes.byref(info)))
        text = [getattr(info, name).decode() for name in ("name", "backend", "arch", "recipe")]
        found.append(Kernel(*text, bool(info.usable), info.reason.decode()))
    return found


def gpu_backend() -> str:
    """The backend of "cuda" tensors: ``"cuda"``, or ``"maca"`` with MetaX's PyTorch. Where PyTorch is not loaded: the
    library's."""
    if "torch" in sys.modules:
        return "maca" if gpu_of(sys.modules["torch"]) == MACA else "cuda"
    backends = {kernel.backend for kernel in kernels()}
    return "maca" if "maca" in backends and "cuda" not in backends else "cuda"


def recipes() -> dict[str, list[str]]:
    """The names of recipes, each with the backends whose kernels run it on this machine. Presets and options
    are added as in ``"int8_int8:fast+tile=64"``, see docs/recipes.md."""
    found: dict[str, list[str]] = {}
    for kernel in kernels():
        backends = found.setdefault(kernel.recipe, [])
        if kernel.usable and kernel.backend not in backends:
            backends.append(kernel.backend)
    return found


def _dtype_name(dtype: Any) -> str:
    return str(getattr(dtype, "name", getattr(dtype, "__name__", dtype))).replace("torch.", "")


def explain(
    q_shape: Any,
    kv_shape: Any = None,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    layout: str = "hnd",
    head_dim_v: int | None = None,
    causal: bool | str = False,
    causal_offset: int | None = None,
    window: tuple[int, ...] | None = None,
    scale: float | None = None,
    mask: str | None = None,
    recipe: str = "auto",
    backend: str = "auto",
) -> dict[str, Any]:
    """Which kernel would run, why no other, memory, bytes moved and expected error; runs nothing.

    Args:
        q_shape: shape of q, or q itself, of which shape, type and device are taken.
        kv_shape: shape of k, or k itself; default that of q.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``, or PyTorch's or numpy's object of that name.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, as PyTorch names it: with MetaX's the GPUs of backend ``"maca"``.
        mask: ``None``, ``"bool"`` or a dtype: as if a mask of the full size were given.

    Returns:
        The JSON of ``clary_explain``: ``kernel`` (None where no kernel takes the problem; then ``error``, what a call
        would say), ``recipe``,
        ``other_kernels`` (each with its ``reason``), ``workspace_bytes``, ``bytes_moved``, ``expected_rel_l1``,
        ``key_pieces`` (that the keys of a short query are cut into), ``warnings``, ...
    """
    q_shape, kv_shape = adopt(q_shape), adopt(kv_shape)
    if hasattr(q_shape, "shape"):
        dtype, device = q_shape.dtype, getattr(q_shape, "device", "cpu")
    dtype, device = _dtype_name(dtype), str(device)
    q = tuple(getattr(q_shape, "shape", q_shape))
    k = q if kv_shape is None else tuple(getattr(kv_shape, "shape", kv_shape))
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or not (index.isdecimal() or index == "" == device[len(kind) :]):
        raise InvalidArgument(f"device: {device!r}; allowed: cpu, cuda, cuda:<index>")
    if len(q) != 4 or len(k) != 4 or not all(is_index(n) for n in q + k):
        raise InvalidArgument(f"q_shape: {q}, kv_shape: {k}; allowed: 4 dimensions each")
    for name, shape in (("q", q), ("k", k)):
        for axis, n in enumerate(shape):
            parse_index(f"{name}: shape[{axis}]", n, "0..2^40", 0)
    where = ((MACA if gpu_backend() == "maca" else CUDA) if kind == "cuda" else CPU, int(index or 0))
    layout = parse_layout(layout)
    tokens, heads = (1, 2) if layout == "nhd" else (2, 1)

    def described(shape: tuple, of: str = dtype, name: str = "dtype") -> tuple:
        return (dtype_code(name, of), *where, shape, contiguous(shape))

    v = k if head_dim_v is None else (*k[:3], head_dim_v)
    causal, offset, _ = parse_causal(causal, causal_offset, q[tokens] == k[tokens])
    options = Options(layout, causal, offset, parse_window(window), parse_scale(scale), 0, 0, parse_recipe(recipe),
                      parse_recipe(backend, "backend"))  # fmt: skip
    tensors = {"q": described(q), "k": described(k), "v": described(v)}
    if mask is not None:
        tensors["mask"] = described((q[0], q[heads], q[tokens], k[tokens]), _dtype_name(mask), "mask")
    params = make_params(options, tensors)
    text = ctypes.c_char_p()
    check(lib.clary_explain(ctypes.byref(params), ctypes.byref(text)))
    return json.loads(text.value.decode())
