# SPDX-License-Identifier: Apache-2.0
"""Which rows of Q and keys of K share a scale in SageAttention's packed tensors, as index vectors.

A table of scales is fp32 [batch, heads, groups]; `index[i]` is the group of row i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

PER_WARP, PER_THREAD = 2, 3  # upstream's codes of a granularity; anything else is per block


@dataclass(frozen=True)
class Groups:
    index: torch.Tensor  # int64 [length]
    count: int


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def per_block(length: int, block: int, device: torch.device) -> Groups:
    return Groups(torch.arange(length, device=device) // block, _blocks(length, block))


def query_groups(granularity: int, length: int, block: int, warp: int, device: torch.device) -> Groups:
    """Rows of Q: `warp` consecutive ones (per warp), or those of a warp with equal row mod 8 (per thread)."""
    row = torch.arange(length, device=device)
    count = _blocks(length, block) * (block // warp)
    if granularity == PER_THREAD:
        return Groups(row // warp * 8 + row % 8, count * 8)
    return Groups(row // warp, count)


def key_groups(granularity: int, length: int, block: int, warp: int, device: torch.device) -> Groups:
    """Keys of K: a block of them (per warp), or those of a warp's keys with equal (key mod 8) / 2 (per thread)."""
    key = torch.arange(length, device=device)
    if granularity == PER_THREAD:
        return Groups(key // warp * 4 + key % 8 // 2, _blocks(length, block) * (block // warp) * 4)
    return Groups(key // block, _blocks(length, block))


def heads_first(x: torch.Tensor, tensor_layout: str) -> torch.Tensor:
    """A view [batch, heads, length, head_dim] of a tensor in layout "HND" or "NHD"."""
    if tensor_layout not in ("HND", "NHD"):
        raise ValueError(f"tensor_layout: {tensor_layout!r}; allowed: 'HND', 'NHD'")
    return x if tensor_layout == "HND" else x.transpose(1, 2)
