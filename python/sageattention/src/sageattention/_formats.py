# SPDX-License-Identifier: Apache-2.0
"""Which recipe a function runs: the format that its name says where the device has a kernel for it, but for FP8; else
Clary's default recipe, which is more accurate, with one line in the log ("sageattention", level WARNING)."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

import clary

log = logging.getLogger("sageattention")

#: What "auto" stands for up to MAX_QUANTIZED_HEAD_DIM; above it "auto" takes the exact kernel of the device, if any.
DEFAULT = "int8_int8"
MAX_QUANTIZED_HEAD_DIM = 256
#: Formats that are never more accurate than the default nor faster.
NEVER_BETTER = ("int8_fp8",)


def _constant_in_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile calls it while it traces and keeps the answer: what torch.compiler.assume_constant_result does,
    without importing PyTorch."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@functools.cache
def formats_of(device_type: str) -> frozenset[str]:
    """The recipes' names for which "cpu" or "cuda" tensors have a kernel that runs on this machine."""
    backend = clary.gpu_backend() if device_type == "cuda" else device_type
    return frozenset(kernel.recipe for kernel in clary.kernels() if kernel.usable and kernel.backend == backend)


@_constant_in_graphs
def _has(format_name: str, device_type: str) -> bool:
    return format_name in formats_of(device_type)


@functools.cache
def _say_first_time(text: str) -> None:
    log.warning(text)


@_constant_in_graphs
def say_once(text: str) -> None:
    _say_first_time(text)


def choose(function: str, format_name: str, device_type: str, head_dim: int, smooth_v: bool) -> str | None:
    """The recipe for `function`, whose name says `format_name` ("int8_fp8", ...), on "cpu" or "cuda" tensors.

    None: exact attention, for which the device has no kernel.
    """
    if head_dim > MAX_QUANTIZED_HEAD_DIM:
        say_once(f"{function}: head_dim is above {MAX_QUANTIZED_HEAD_DIM}: exact attention runs instead")
        return "auto" if _has("fp32_fp32", device_type) else None
    if format_name != DEFAULT and (format_name in NEVER_BETTER or not _has(format_name, device_type)):
        why = f"recipe='{format_name}' insists on it"
        if not _has(format_name, device_type):
            why = f"{device_type} tensors have no kernel for it"
        say_once(f"{function}: {DEFAULT}:accurate, which is more accurate, runs instead of {format_name} ({why})")
        format_name = DEFAULT
    if smooth_v:
        return f"{format_name}+smooth_v"
    return "auto" if format_name == DEFAULT else format_name
