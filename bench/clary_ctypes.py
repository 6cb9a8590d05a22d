# SPDX-License-Identifier: Apache-2.0
"""The structs of clary.h for ctypes, and views of PyTorch tensors: what the benchmarks against PyTorch share."""

import ctypes
import subprocess

import torch

MAX_DIMS = 5
MAX_SECTIONS = 32
DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


class Tensor(ctypes.Structure):
    """clary_tensor"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("stride", ctypes.c_int64 * MAX_DIMS),
    ]


class Params(ctypes.Structure):
    """clary_attention_params"""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("q", Tensor), ("k", Tensor), ("v", Tensor), ("out", Tensor), ("lse", Tensor),
        ("recipe", ctypes.c_char_p), ("backend", ctypes.c_char_p),
        ("scale", ctypes.c_double), ("has_scale", ctypes.c_int32),
        ("causal", ctypes.c_int32), ("causal_offset", ctypes.c_int64), ("causal_offsets", Tensor),
        ("has_window", ctypes.c_int32), ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64),
        ("window_keep", ctypes.c_int64),
        ("mask", Tensor), ("kv_lengths", Tensor), ("alibi_slopes", Tensor), ("sinks", Tensor),
        ("cu_seqlens_q", Tensor), ("cu_seqlens_k", Tensor), ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64), ("block_table", Tensor),
        ("c_k", Tensor), ("c_q", Tensor), ("q_base", Tensor),
        ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
        ("workspace_size", ctypes.c_size_t),
    ]  # fmt: skip


class Section(ctypes.Structure):
    """clary_section"""

    _fields_ = [("name", ctypes.c_char * 24), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("shape", ctypes.c_int64 * MAX_DIMS), ("offset", ctypes.c_int64)]  # fmt: skip


class PackedLayout(ctypes.Structure):
    """clary_packed_layout"""

    _fields_ = [("struct_size", ctypes.c_uint32), ("section_count", ctypes.c_int32), ("bytes", ctypes.c_int64),
                ("tile", ctypes.c_int32), ("is_kv", ctypes.c_int32), ("recipe", ctypes.c_char * 256),
                ("sections", Section * MAX_SECTIONS)]  # fmt: skip


class Packed(ctypes.Structure):
    """clary_packed"""

    _fields_ = [("struct_size", ctypes.c_uint32), ("device", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("kv_capacity", ctypes.c_int64)]  # fmt: skip


def view(tensor: torch.Tensor) -> Tensor:
    made = Tensor(data=tensor.data_ptr(), dtype=DTYPES[tensor.dtype], ndim=tensor.ndim)
    if tensor.is_cuda:
        made.device, made.device_index = 1, tensor.get_device()
    made.shape[: tensor.ndim] = list(tensor.shape)
    made.stride[: tensor.ndim] = list(tensor.stride())
    return made


class Library:
    def __init__(self, path: str):
        self.lib = ctypes.CDLL(path)
        for name in ("clary_last_error", "clary_last_kernel", "clary_build_info"):
            getattr(self.lib, name).restype = ctypes.c_char_p

    def call(self, name: str, *arguments) -> None:
        """Structs are passed by reference; a failure raises with the library's text."""
        refer = [ctypes.byref(a) if isinstance(a, (ctypes.Structure, ctypes.c_size_t)) else a for a in arguments]
        if getattr(self.lib, name)(*refer) != 0:
            raise RuntimeError(f"{name}: {self.lib.clary_last_error().decode()}")

    def last_kernel(self) -> str:
        return self.lib.clary_last_kernel().decode()


def rel_l1(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference.double()).abs().sum() / reference.double().abs().sum()).item()


def git_commit() -> str:
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"
