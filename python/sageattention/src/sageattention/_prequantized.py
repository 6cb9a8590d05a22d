# SPDX-License-Identifier: Apache-2.0
"""Attention over tensors that a host quantized in SageAttention's layouts (`sageattention.quant`).

Clary's kernels read a packed format of their own, so codes and scales are multiplied out and the exact path attends:
right for any length, head dim and mask, but without the speed and memory of an 8-bit kernel. Hosts that want those
call the one-step functions, or `clary.quantize_kv`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import clary

from . import _formats, _groups
from ._groups import Groups, heads_first
from .quant import _V_ORDER

_LOG2E = math.log2(math.e)
LAYOUTS = ("NHD", "HND")  # by upstream's code: 0, 1


def rows_of(codes: torch.Tensor, scale: torch.Tensor, groups: Groups, name: str) -> torch.Tensor:
    """int8 codes [batch, heads, length, head_dim] times their scales: fp32."""
    batch, heads, length, _ = codes.shape
    if tuple(scale.shape) != (batch, heads, groups.count):
        raise ValueError(f"{name}: shape {tuple(scale.shape)}; allowed: {(batch, heads, groups.count)}")
    return codes.float() * scale.gather(2, groups.index.expand(batch, heads, length))[..., None]


def values_of(v: torch.Tensor, scale: torch.Tensor | None, tensor_layout: str, length: int) -> torch.Tensor:
    """V [batch, kv_heads, length, head_dim] of what `per_channel_fp8` made; 16-bit V as it is."""
    if not v.is_floating_point():
        raise ValueError(f"value: dtype {v.dtype}; allowed: float16, bfloat16, float8_e4m3fn")
    if v.element_size() > 1:
        return heads_first(v, tensor_layout)
    rows = heads_first(v, tensor_layout).float()  # [batch, kv_heads, head_dim, padded]
    if rows.shape[-1] < length:
        raise ValueError(f"value: {rows.shape[-1]} tokens; allowed: {length} or more, a multiple of 16")
    order = torch.tensor(_V_ORDER, device=v.device).argsort()
    rows = rows.unflatten(-1, (-1, 16))[..., order].flatten(-2)[..., :length]
    return (rows if scale is None else rows * scale[..., None]).transpose(2, 3)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact attention; all heads first. (output in q's type, lse natural)."""
    _formats.say_once(
        "tensors that a host quantized are multiplied out and exact attention runs, slower and with more memory than "
        "sageattn() on the tensors themselves"
    )
    recipe = "fp16_fp16" if "fp16_fp16" in _formats.formats_of(q.device.type) else "fp32_fp32"
    return clary.attention(
        q,
        k,
        v,
        layout="hnd",
        causal="top_left" if causal else False,
        mask=mask,
        scale=scale,
        recipe=recipe,
        return_lse=True,
    )


def attend_block(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    tensor_layout: str = "HND",
    attn_mask: torch.Tensor | None = None,
    output_dtype: torch.dtype = torch.float16,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `per_block_int8` made (128 rows, 64 keys; the softmax scale and log2(e) lie in q) -> (output, lse).

    lse: fp32 [batch, q_heads, q_len] to base 2, as upstream's; empty where it is not asked for.
    """
    return _attend_block(q, k, v, q_scale, k_scale, tensor_layout, attn_mask, output_dtype, return_lse, causal=False)


def attend_block_causal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    tensor_layout: str = "HND",
    output_dtype: torch.dtype = torch.float16,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend_block` with a causal mask from the top left corner."""
    return _attend_block(q, k, v, q_scale, k_scale, tensor_layout, None, output_dtype, return_lse, causal=True)


def _attend_block(q, k, v, q_scale, k_scale, tensor_layout, mask, output_dtype, return_lse, causal):
    q, k, v = (heads_first(x, tensor_layout) for x in (q, k, v))
    rows = rows_of(q, q_scale, _groups.per_block(q.shape[2], 128, q.device), "q_scale")
    keys = rows_of(k, k_scale, _groups.per_block(k.shape[2], 64, k.device), "k_scale")
    out, lse = attend(rows, keys, v, causal, 1 / _LOG2E, mask)
    out = heads_first(out.to(output_dtype), tensor_layout).contiguous()
    return out, lse * _LOG2E if return_lse else lse.new_empty(0)


class Kernel:
    """An attention function of upstream's compiled modules.

    (query int8, key int8, value, output, query_scale, key_scale, [value_scale], [value_mean], tensor_layout 0 NHD / 1
    HND, is_causal, qk_quant_gran 2 per warp / 3 per thread, sm_scale, return_lse) -> lse fp32 [batch, q_heads, q_len]
    to base 2, or an empty tensor. Writes `output` in its type.
    """

    def __init__(
        self,
        name: str,
        block_q: int = 128,
        warp_q: int = 32,
        block_k: int = 64,
        scaled: bool = False,
        mean: bool = False,
        narrow: bool = False,
    ):
        self.__name__, self.block_q, self.warp_q, self.block_k = name, block_q, warp_q, block_k
        self.extra = ("value_scale",) * scaled + ("value_mean",) * mean
        self.narrow = narrow  # 16 rows per warp where head_dim is 128

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        query_scale: torch.Tensor,
        key_scale: torch.Tensor,
        *rest: Any,
    ) -> torch.Tensor:
        if len(rest) != len(self.extra) + 5:
            raise TypeError(f"{self.__name__}: {6 + len(rest)} arguments; allowed: {11 + len(self.extra)}")
        extra = dict(zip(self.extra, rest))
        layout_code, is_causal, granularity, sm_scale, return_lse = rest[len(self.extra) :]
        if layout_code not in (0, 1):
            raise ValueError(f"{self.__name__}: tensor_layout: {layout_code}; allowed: 0 (NHD), 1 (HND)")
        if granularity not in (_groups.PER_WARP, _groups.PER_THREAD):
            raise ValueError(f"{self.__name__}: qk_quant_gran: {granularity}; allowed: 2 (per warp), 3 (per thread)")
        layout = LAYOUTS[layout_code]
        q, k = heads_first(query, layout), heads_first(key, layout)
        warp_q = 16 if self.narrow and q.shape[-1] == 128 else self.warp_q
        q_groups = _groups.query_groups(granularity, q.shape[2], self.block_q, warp_q, q.device)
        k_groups = _groups.key_groups(granularity, k.shape[2], self.block_k, self.block_k, k.device)
        v = values_of(value, extra.get("value_scale"), layout, k.shape[2])
        out, lse = attend(
            rows_of(q, query_scale, q_groups, "query_scale"), rows_of(k, key_scale, k_groups, "key_scale"), v,
            bool(is_causal), sm_scale,
        )  # fmt: skip
        if (mean := extra.get("value_mean")) is not None:
            out = out + mean.repeat_interleave(q.shape[1] // mean.shape[1], 1)[:, :, None]
        heads_first(output, layout).copy_(out)
        return lse * _LOG2E if return_lse else lse.new_empty(0)
