# SPDX-License-Identifier: Apache-2.0
"""The structs of clary.h for ctypes; names and order are those of the header."""

import ctypes

MAX_DIMS = 5
MAX_SECTIONS = 32


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


class MergeParams(ctypes.Structure):
    """clary_merge_params"""

    _fields_ = [("struct_size", ctypes.c_uint32),
                ("out_a", Tensor), ("lse_a", Tensor), ("out_b", Tensor), ("lse_b", Tensor),
                ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p)]  # fmt: skip


class KernelInfo(ctypes.Structure):
    """clary_kernel_info"""

    _fields_ = [("struct_size", ctypes.c_uint32), ("name", ctypes.c_char * 48), ("backend", ctypes.c_char * 16),
                ("arch", ctypes.c_char * 16), ("recipe", ctypes.c_char * 24), ("usable", ctypes.c_int32),
                ("reason", ctypes.c_char * 160)]  # fmt: skip
