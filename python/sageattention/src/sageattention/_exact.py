# SPDX-License-Identifier: Apache-2.0
"""Exact attention in plain PyTorch, for heads that no kernel of the device takes: VAEs have one of 512 channels.

A softmax written out, in fp32, some rows of scores at a time.
"""

from __future__ import annotations

import torch

_SCORES_AT_A_TIME = 2**26  # 256 MB


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    causal: bool | str,
    mask: torch.Tensor | None,
    scale: float | None,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """As clary.attention: layout "hnd" or "nhd"; causal False, "top_left" or "bottom_right"."""
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    rows_out = out
    if layout == "nhd":
        q, k, v, rows_out = (x.transpose(1, 2) for x in (q, k, v, out))
    batch, heads, q_len, head_dim = q.shape
    group, kv_len = heads // k.shape[1], k.shape[2]
    k, v = (x.float().repeat_interleave(group, 1) for x in (k, v))
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device=q.device)
    if mask is not None:
        mask = mask.expand(batch, heads, q_len, kv_len)
    offset = kv_len - q_len if causal == "bottom_right" else 0
    keys = torch.arange(kv_len, device=q.device)
    step = max(1, _SCORES_AT_A_TIME // max(1, batch * heads * kv_len))
    for begin in range(0, q_len, step):
        rows = slice(begin, min(begin + step, q_len))
        scores = q[:, :, rows].float() @ k.transpose(2, 3) * (head_dim**-0.5 if scale is None else scale)
        if mask is not None:
            part = mask[:, :, rows]
            scores = scores.masked_fill(~part, -torch.inf) if part.dtype == torch.bool else scores + part.float()
        if causal:
            queries = torch.arange(rows.start, rows.stop, device=q.device)
            scores = scores.masked_fill(keys > queries[:, None] + offset, -torch.inf)
        lse[:, :, rows] = scores.logsumexp(-1)
        weights = (scores - lse[:, :, rows, None].clamp(min=torch.finfo(torch.float32).min)).exp()
        rows_out[:, :, rows] = (weights @ v).to(q.dtype)
    return (out, lse) if return_lse else out
