# SPDX-License-Identifier: Apache-2.0
"""Which recipe a function runs: the format that its name says where the device has a kernel for it, else Clary's
default recipe, which is more accurate, with one line in the log ("sageattention", level WARNING)."""

from __future__ import annotations

import functools
import logging

import clary

log = logging.getLogger("sageattention")

#: What "auto" stands for up to MAX_QUANTIZED_HEAD_DIM; above it "auto" takes the exact path.
DEFAULT = "int8_int8"
MAX_QUANTIZED_HEAD_DIM = 256


@functools.cache
def formats_of(backend: str) -> frozenset[str]:
    return frozenset(kernel.recipe for kernel in clary.kernels() if kernel.usable and kernel.backend == backend)


@functools.cache
def _say_once(text: str) -> None:
    log.warning(text)


def choose(function: str, format_name: str, device_type: str, head_dim: int, smooth_v: bool) -> str:
    """The recipe for `function`, whose name says `format_name` ("int8_fp8", ...), on tensors of a "cpu" or "cuda"
    device."""
    if head_dim > MAX_QUANTIZED_HEAD_DIM:
        _say_once(f"{function}: head_dim {head_dim} is above {MAX_QUANTIZED_HEAD_DIM}: exact attention runs instead")
        return "auto"
    if format_name != DEFAULT and format_name not in formats_of(device_type):
        _say_once(
            f"{function}: no {format_name} kernel for {device_type} tensors: {DEFAULT}:accurate, which is more "
            "accurate, runs instead"
        )
        format_name = DEFAULT
    if smooth_v:
        return f"{format_name}+smooth_v"
    return "auto" if format_name == DEFAULT else format_name


# What runs depends on device and shape alone, so a compiled graph may hold the answer as a constant. This is the mark
# that torch.compiler.assume_constant_result makes, without importing PyTorch.
choose._dynamo_marked_constant = True  # type: ignore[attr-defined]
