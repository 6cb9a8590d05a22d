# SPDX-License-Identifier: Apache-2.0
"""SageAttention3's function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core import _dense

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from ._hosts import HostKeywords
    from .core import Result


def sageattn3_blackwell(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    per_block_mean: bool = True,
    *,
    tensor_layout: str = "HND",
    sm_scale: float | None = None,
    return_lse: bool = False,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """FP4 attention: tensors and result as in `sageattention.core`.

    Unlike upstream's it leaves k as it is, honours the mask and the scale, and takes grouped heads and any head_dim.
    per_block_mean: a request (the recipe smooths Q per block).
    """
    name = "sageattn3_blackwell"
    if per_block_mean not in (True, False):
        raise ValueError(f"{name}: per_block_mean: {per_block_mean!r}; allowed: True, False")
    return _dense(
        name, "fp4_fp4", q, k, v, tensor_layout, (is_causal, sm_scale, host), attn_mask, False, recipe, return_lse
    )
