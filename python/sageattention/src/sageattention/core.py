# SPDX-License-Identifier: Apache-2.0
"""SageAttention's functions: upstream's parameters in upstream's order, then keywords.

Every dense function takes q [batch, q_heads, q_len, head_dim], k and v [batch, kv_heads, kv_len, head_dim] (layout
"HND") or [batch, len, heads, head_dim] ("NHD"), fp16, bf16 or fp32, each on its own, on one device, with any strides;
q_heads is a multiple of kv_heads. It returns the output, contiguous, with q's type, layout and device; with
`return_lse` the pair (output, lse), lse fp32 [batch, q_heads, q_len] in either layout: the natural logarithm of the
softmax's denominator, over the scaled, unsmoothed scores. A query that sees no key gives zeros and -inf.

Keywords of the dense functions:

attn_mask   bool (True = seen), or fp32, fp16, bf16 added to the scaled score; it is broadcast to
            [batch, q_heads, q_len, kv_len]
recipe      one of Clary's recipes, e.g. "int8_int8:fast", instead of the function's own (docs/recipes.md)
and those of `HostKeywords`: other names that hosts use. An unknown keyword is a TypeError.

`is_causal` aligns the top left corner where lengths differ, as upstream does; "bottom_right" is allowed too.
`smooth_k`, `smooth_v`, `qk_quant_gran`, `pv_accum_dtype`, `quantization_backend`, `per_block_mean` are requests:
checked, and never followed to a less accurate result than Clary's own choice. docs/sageattention.md says what each
comes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import clary

from . import _compat, _formats, _hosts
from ._errors import ArgumentError

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from ._hosts import HostKeywords

    Result = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]

LAYOUTS = {"HND": "hnd", "NHD": "nhd"}
GRANULARITIES = ("per_warp", "per_thread")
MACA_GRANULARITIES = (*GRANULARITIES, "per_block")


def sageattn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    return_lse: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    smooth_k: bool = True,
    smooth_v: bool = False,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """Attention by the most accurate of the fastest recipes of the device: Clary's "auto"."""
    return _dense(
        "sageattn",
        _formats.DEFAULT,
        q,
        k,
        v,
        tensor_layout,
        (is_causal, sm_scale, host),
        attn_mask,
        smooth_v,
        recipe,
        return_lse,
    )


def sageattn_qk_int8_pv_fp16_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    quantization_backend: str = "triton",
    is_causal: bool = False,
    attn_mask: torch.Tensor | None = None,
    sm_scale: float | None = None,
    smooth_k: bool = True,
    return_lse: bool = False,
    *,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """INT8 scores, FP16 P and V. quantization_backend: "triton" or "cuda", the same here."""
    name = "sageattn_qk_int8_pv_fp16_triton"
    _one_of(name, "quantization_backend", quantization_backend, ("triton", "cuda"), ValueError)
    return _dense(
        name, "int8_fp16", q, k, v, tensor_layout, (is_causal, sm_scale, host), attn_mask, False, recipe, return_lse
    )


def sageattn_qk_int8_pv_fp16_cuda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    qk_quant_gran: str = "per_thread",
    sm_scale: float | None = None,
    pv_accum_dtype: str = "fp32",
    smooth_k: bool = True,
    smooth_v: bool = False,
    return_lse: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """INT8 scores, FP16 P and V, sums in fp32 whatever `pv_accum_dtype` ("fp32", "fp16", "fp16+fp32") asks for."""
    name = "sageattn_qk_int8_pv_fp16_cuda"
    _one_of(name, "qk_quant_gran", qk_quant_gran, GRANULARITIES, ArgumentError)
    _one_of(name, "pv_accum_dtype", pv_accum_dtype, ("fp32", "fp16", "fp16+fp32"), ValueError)
    return _dense(
        name, "int8_fp16", q, k, v, tensor_layout, (is_causal, sm_scale, host), attn_mask, smooth_v, recipe, return_lse
    )


def sageattn_qk_int8_pv_fp16_maca(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    qk_quant_type: str = "int8",
    qk_quant_gran: str = "per_thread",
    pv_accum_dtype: str = "fp32",
    sm_scale: float | None = None,
    smooth_k: bool = True,
    smooth_v: bool = False,
    return_lse: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """INT8 scores, FP16 P and V, by the name of MetaX's port; pv_accum_dtype "fp32", "fp16", "fp16+fp16": sums in
    fp32.
    """
    name = "sageattn_qk_int8_pv_fp16_maca"
    _one_of(name, "qk_quant_type", qk_quant_type, ("int8",), ValueError)
    _one_of(name, "qk_quant_gran", qk_quant_gran, MACA_GRANULARITIES, ArgumentError)
    _one_of(name, "pv_accum_dtype", pv_accum_dtype, ("fp32", "fp16", "fp16+fp16"), ValueError)
    return _dense(
        name, "int8_fp16", q, k, v, tensor_layout, (is_causal, sm_scale, host), attn_mask, smooth_v, recipe, return_lse
    )


def sageattn_qk_int8_pv_fp8_cuda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    qk_quant_gran: str = "per_thread",
    sm_scale: float | None = None,
    pv_accum_dtype: str = "fp32+fp16",
    smooth_k: bool = True,
    smooth_v: bool = False,
    return_lse: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """INT8 scores, FP8 P and V. pv_accum_dtype: "fp32", "fp32+fp32", "fp32+fp16"; the sums end in fp32."""
    name = "sageattn_qk_int8_pv_fp8_cuda"
    _one_of(name, "qk_quant_gran", qk_quant_gran, GRANULARITIES, ArgumentError)
    _one_of(name, "pv_accum_dtype", pv_accum_dtype, ("fp32", "fp32+fp32", "fp32+fp16"), ValueError)
    return _dense(
        name, "int8_fp8", q, k, v, tensor_layout, (is_causal, sm_scale, host), attn_mask, smooth_v, recipe, return_lse
    )


def sageattn_qk_int8_pv_fp8_cuda_sm90(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    qk_quant_gran: str = "per_thread",
    sm_scale: float | None = None,
    pv_accum_dtype: str = "fp32+fp32",
    smooth_k: bool = True,
    return_lse: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """INT8 scores, FP8 P and V. pv_accum_dtype: "fp32+fp32"; "fp32" is a NotImplementedError, as upstream."""
    name = "sageattn_qk_int8_pv_fp8_cuda_sm90"
    _one_of(name, "qk_quant_gran", qk_quant_gran, GRANULARITIES, ArgumentError)
    if pv_accum_dtype == "fp32":
        raise NotImplementedError(f"{name}: pv_accum_dtype: 'fp32'; allowed: 'fp32+fp32'")
    _one_of(name, "pv_accum_dtype", pv_accum_dtype, ("fp32+fp32",), ValueError)
    return _dense(
        name, "int8_fp8", q, k, v, tensor_layout, (is_causal, sm_scale, host), attn_mask, False, recipe, return_lse
    )


def sageattn_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    is_causal: bool = False,
    sm_scale: float | None = None,
    smooth_k: bool = True,
    *,
    tensor_layout: str = "NHD",
    attn_mask: None = None,
    return_lse: bool = False,
    recipe: str | None = None,
    **host: Unpack[HostKeywords],
) -> Result:
    """Attention within packed sequences: q [tokens, q_heads, head_dim], k and v [kv_tokens, kv_heads, head_dim].

    cu_seqlens_q, cu_seqlens_k: int32 or int64 [sequences + 1], where each sequence begins, and the end; a sequence may
    be empty. Means for smoothing are each sequence's own. Returns the output like q; with `return_lse` also lse fp32
    [q_heads, tokens].
    """
    name = "sageattn_varlen"
    _one_of(name, "tensor_layout", tensor_layout, ("NHD",), ValueError)
    if attn_mask is not None:
        raise ValueError(f"{name}: attn_mask: a mask; allowed: None (packed sequences have no masks)")
    softmax = _hosts.parse(name, is_causal, sm_scale, host)
    _check_tensors(name, q, k, v)
    return clary.attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q=0 if max_seqlen_q is None else max_seqlen_q,
        max_seqlen_k=0 if max_seqlen_k is None else max_seqlen_k,
        causal=softmax.causal,
        scale=softmax.scale,
        recipe=recipe or "auto",
        return_lse=return_lse,
    )


def _one_of(function: str, argument: str, value: Any, allowed: tuple[str, ...], error: type[Exception]) -> None:
    if value not in allowed:
        raise error(f"{function}: {argument}: {value!r}; allowed: {', '.join(map(repr, allowed))}")


def _check_tensors(function: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """What upstream asserts and Clary does not take either; Clary checks the rest."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not hasattr(x, "is_cuda"):
            raise TypeError(f"{function}: {name}: {type(x).__name__}; allowed: torch.Tensor")
    for name, x in (("k", k), ("v", v)):
        if x.device != q.device:
            raise ArgumentError(
                f"{function}: {name} is on {x.device}, but q on {q.device}; allowed: one device for all"
            )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if str(x.dtype) not in ("torch.float16", "torch.bfloat16", "torch.float32"):
            raise ArgumentError(f"{function}: {name}: dtype {x.dtype}; allowed: float16, bfloat16, float32")


def _check_mask(function: str, mask: torch.Tensor, q: torch.Tensor) -> None:
    """What Clary would say under the name that it has for masks."""
    if not hasattr(mask, "is_cuda"):
        raise TypeError(f"{function}: attn_mask: {type(mask).__name__}; allowed: torch.Tensor or None")
    if mask.device != q.device:
        raise ArgumentError(
            f"{function}: attn_mask is on {mask.device}, but q on {q.device}; allowed: one device for all"
        )
    if str(mask.dtype) not in ("torch.bool", "torch.float16", "torch.bfloat16", "torch.float32"):
        raise ValueError(f"{function}: attn_mask: dtype {mask.dtype}; allowed: bool, float16, bfloat16, float32")


def _dense(
    function: str,
    format_name: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str,
    asked: tuple[Any, Any, HostKeywords],  # is_causal, sm_scale, keywords of hosts
    attn_mask: torch.Tensor | None,
    smooth_v: bool,
    recipe: str | None,
    return_lse: bool,
) -> Result:
    if not isinstance(tensor_layout, str) or tensor_layout not in LAYOUTS:
        shown = repr(tensor_layout) if isinstance(tensor_layout, str) else type(tensor_layout).__name__
        raise ValueError(
            f"{function}: tensor_layout: {shown}; allowed: 'HND', 'NHD' (in place of F.scaled_dot_product_attention, "
            "whose fourth argument is a mask, use clary.sdpa)"
        )
    softmax = _hosts.parse(function, *asked)
    _check_tensors(function, q, k, v)
    if attn_mask is not None:
        _check_mask(function, attn_mask, q)
    if recipe is None:
        recipe = _formats.choose(function, format_name, q.device.type, q.shape[-1], bool(smooth_v))
        if recipe is None:
            return _attend_exactly(q, k, v, LAYOUTS[tensor_layout], *softmax, attn_mask, return_lse)
    return clary.attention(
        q,
        k,
        v,
        layout=LAYOUTS[tensor_layout],
        causal=softmax.causal,
        mask=attn_mask,
        scale=softmax.scale,
        recipe=recipe,
        return_lse=return_lse,
    )


def _attend_exactly(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    causal: bool | str,
    scale: float | None,
    mask: torch.Tensor | None,
    return_lse: bool,
) -> Result:
    from . import _exact  # needs PyTorch

    return _exact.attend(q, k, v, layout, causal, mask, scale, return_lse)


def __getattr__(name: str) -> Any:
    """Names that are no public functions but that hosts import from here; PyTorch is loaded at the first of them."""
    return _compat.find(name)
