# SPDX-License-Identifier: Apache-2.0
"""SageAttention's quantizers, for hosts that quantize and attend in two steps: upstream's parameters, shapes and
layouts, in plain PyTorch, on any device.

Differences from upstream's, all towards one rule: values are rounded to nearest even (upstream's Triton kernels round
halves away from zero: codes may differ by one), a group of zeros has codes 0 and a scale above 0, means are taken off
in fp32, and addresses are 64 bits wide. Clary's own packed format, which its kernels read, is `clary.quantize_kv`'s.
"""

from __future__ import annotations

import math

import torch

from . import _groups
from ._groups import Groups, heads_first

_AMAX_FLOOR = 1e-7
_FP8_MAX = 448.0  # e4m3
_LOG2E = math.log2(math.e)
# Position p of 16 tokens of a packed V holds token _V_ORDER[p]: what a thread's P registers multiply.
_V_ORDER = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)

Quantized = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _int8(x: torch.Tensor, tensor_layout: str, groups: Groups) -> tuple[torch.Tensor, torch.Tensor]:
    """x in fp32 -> int8 codes in x's layout, contiguous, and the scales fp32 [batch, heads, groups]."""
    rows = heads_first(x, tensor_layout)
    batch, heads, length, _ = rows.shape
    largest = rows.new_zeros(batch, heads, groups.count)
    index = groups.index.expand(batch, heads, length)
    largest.scatter_reduce_(2, index, rows.abs().amax(-1), "amax")
    scale = largest.clamp_(min=_AMAX_FLOOR) / 127
    codes = (rows / scale.gather(2, index)[..., None]).round_().clamp_(-127, 127).to(torch.int8)
    return (codes if tensor_layout == "HND" else codes.transpose(1, 2)).contiguous(), scale


def _keys(k: torch.Tensor, km: torch.Tensor | None, tensor_layout: str) -> torch.Tensor:
    """fp32 k - km; km [batch, kv_heads, head_dim], or with an axis of 1 where k's tokens are."""
    tokens = 2 if tensor_layout == "HND" else 1
    if km is None:
        return k.float()
    return k.float() - (km if km.ndim == k.ndim else km.unsqueeze(tokens)).float()


def _quantize(
    q: torch.Tensor, k: torch.Tensor, km: torch.Tensor | None, tensor_layout: str, q_groups: Groups, k_groups: Groups,
    q_factor: float = 1.0,
) -> Quantized:  # fmt: skip
    q_codes, q_scale = _int8(q.float() * q_factor, tensor_layout, q_groups)
    k_codes, k_scale = _int8(_keys(k, km, tensor_layout), tensor_layout, k_groups)
    return q_codes, q_scale, k_codes, k_scale


def _lengths(q: torch.Tensor, k: torch.Tensor, tensor_layout: str) -> tuple[int, int]:
    return heads_first(q, tensor_layout).shape[2], heads_first(k, tensor_layout).shape[2]


def per_block_int8(
    q: torch.Tensor,
    k: torch.Tensor,
    km: torch.Tensor | None = None,
    BLKQ: int = 128,
    BLKK: int = 64,
    sm_scale: float | None = None,
    tensor_layout: str = "HND",
) -> Quantized:
    """One scale per BLKQ rows of q and BLKK keys of k; q is multiplied by sm_scale * log2(e) first (default: head_dim
    ** -0.5).

    Returns (q_int8 like q, q_scale [batch, q_heads, ceil(q_len / BLKQ)], k_int8 like k, k_scale [.., ceil(kv_len /
    BLKK)]).
    """
    q_len, k_len = _lengths(q, k, tensor_layout)
    scale = (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale) * _LOG2E
    q_groups, k_groups = _groups.per_block(q_len, BLKQ, q.device), _groups.per_block(k_len, BLKK, k.device)
    return _quantize(q, k, km, tensor_layout, q_groups, k_groups, scale)


def per_warp_int8(
    q: torch.Tensor,
    k: torch.Tensor,
    km: torch.Tensor | None = None,
    BLKQ: int = 128,
    WARPQ: int = 32,
    BLKK: int = 64,
    tensor_layout: str = "HND",
) -> Quantized:
    """One scale per WARPQ rows of q and BLKK keys of k.

    Returns (q_int8 like q, q_scale [batch, q_heads, ceil(q_len / BLKQ) * BLKQ / WARPQ], k_int8 like k,
    k_scale [batch, kv_heads, ceil(kv_len / BLKK)]).
    """
    q_len, k_len = _lengths(q, k, tensor_layout)
    q_groups = _groups.query_groups(_groups.PER_WARP, q_len, BLKQ, WARPQ, q.device)
    k_groups = _groups.key_groups(_groups.PER_WARP, k_len, BLKK, BLKK, k.device)
    return _quantize(q, k, km, tensor_layout, q_groups, k_groups)


def per_thread_int8(
    q: torch.Tensor,
    k: torch.Tensor,
    km: torch.Tensor | None = None,
    BLKQ: int = 128,
    WARPQ: int = 32,
    BLKK: int = 64,
    WARPK: int = 64,
    sm_scale: float | None = None,
    tensor_layout: str = "HND",
) -> Quantized:
    """Eight scales per WARPQ rows of q (row mod 8) and four per WARPK keys of k ((key mod 8) / 2); sm_scale is not
    used.

    Returns (q_int8 like q, q_scale [batch, q_heads, ceil(q_len / BLKQ) * BLKQ / WARPQ * 8], k_int8 like k,
    k_scale [batch, kv_heads, ceil(kv_len / BLKK) * BLKK / WARPK * 4]).
    """
    q_len, k_len = _lengths(q, k, tensor_layout)
    q_groups = _groups.query_groups(_groups.PER_THREAD, q_len, BLKQ, WARPQ, q.device)
    k_groups = _groups.key_groups(_groups.PER_THREAD, k_len, BLKK, WARPK, k.device)
    return _quantize(q, k, km, tensor_layout, q_groups, k_groups)


def sub_mean(v: torch.Tensor, tensor_layout: str = "HND") -> tuple[torch.Tensor, torch.Tensor]:
    """(v minus its mean over the tokens, fp16 like v; the mean [batch, kv_heads, head_dim] in v's type)."""
    rows = heads_first(v, tensor_layout).float()
    mean = rows.mean(2).to(v.dtype)
    smoothed = (rows - mean.float()[:, :, None]).to(torch.float16)
    return (smoothed if tensor_layout == "HND" else smoothed.transpose(1, 2)).contiguous(), mean


def per_channel_fp8(
    v: torch.Tensor, tensor_layout: str = "HND", scale_max: float = _FP8_MAX, smooth_v: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """V as e4m3, transposed, its tokens permuted in runs of 16, filled up with zeros to a multiple of 64 tokens.

    Returns (v_fp8 [batch, kv_heads, head_dim, padded], or "NHD": [batch, head_dim, kv_heads, padded]; the scales fp32
    [batch, kv_heads, head_dim] = largest magnitude / scale_max; the means fp32 [batch, kv_heads, head_dim], or None).
    """
    e4m3 = getattr(torch, "float8_e4m3fn", None)
    if e4m3 is None:
        raise NotImplementedError(
            f"per_channel_fp8: PyTorch {torch.__version__} has no float8_e4m3fn; allowed: 2.1 or newer"
        )
    rows = heads_first(v, tensor_layout).float().transpose(2, 3)  # [batch, kv_heads, head_dim, kv_len]
    mean = rows.mean(-1) if smooth_v else None
    if mean is not None:
        rows = rows - mean[..., None]
    scale = (
        rows.abs().amax(-1).clamp(min=_AMAX_FLOOR) / scale_max if rows.shape[-1] else rows.new_zeros(rows.shape[:-1])
    )
    rows = torch.nn.functional.pad(rows / scale[..., None], (0, -rows.shape[-1] % 64))
    order = torch.tensor(_V_ORDER, device=v.device)
    codes = rows.unflatten(-1, (-1, 16))[..., order].flatten(-2).clamp(-_FP8_MAX, _FP8_MAX).to(e4m3)
    return (codes if tensor_layout == "HND" else codes.transpose(1, 2)).contiguous(), scale, mean
