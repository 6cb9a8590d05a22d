# SPDX-License-Identifier: Apache-2.0
"""Attention in one call."""

from __future__ import annotations

from typing import Any

from . import _tracing
from ._arrays import adopt, is_foreign, is_torch
from ._library import check, lib
from ._overlap import refuse_overlap
from ._problem import (
    Options,
    Plan,
    fresh_results,
    gather,
    parse_causal,
    parse_index,
    parse_layout,
    parse_recipe,
    parse_scale,
    parse_window,
    plan_for,
)
from .errors import InvalidArgument

# The type of every array argument and result; numpy and PyTorch are optional, so it cannot be spelled out.
Array = Any

_LENGTHS = "0 (not known) or the longest sequence's"


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    layout: str = "hnd",
    causal: bool | str = False,
    causal_offset: int | Array | None = None,
    window: tuple[int, ...] | None = None,
    mask: Array | None = None,
    scale: float | None = None,
    kv_lengths: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    block_table: Array | None = None,
    c_k: Array | None = None,
    c_q: Array | None = None,
    q_base: Array | None = None,
    recipe: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """``softmax(scale * q k^T + biases) v``, quantized inside as the recipe says.

    Arrays are ``torch.Tensor`` (CPU or CUDA, torch >= 2.0), ``numpy.ndarray``, or anything with ``__dlpack__``; all on
    one device. q, k and v are fp32, fp16 or bf16, each on its own; any strides and any sizes, 0 included. Inputs are
    never written to. On a GPU the call is queued on the current stream and waits for nothing.

    Args:
        q: ``[batch, heads, q_len, head_dim]``, or ``[batch, q_len, heads, head_dim]`` with ``layout="nhd"``.
        k, v: the same with kv_heads and kv_len; ``heads % kv_heads == 0`` (query head h reads kv head
            ``h // (heads // kv_heads)``). v may have a head_dim of its own. With ``block_table`` they are pages,
            ``[pages, kv_heads, page_size, head_dim]``.
        causal: ``False``; ``"top_left"`` (key j is seen by query i where j <= i, PyTorch's ``is_causal``);
            ``"bottom_right"`` (the last query sees every key); ``True`` where q_len == kv_len, where both are the same.
        causal_offset: instead: key j is seen where j <= i + offset; an integer, or an int array ``[batch]``.
        window: ``(left, right)`` or ``(left, right, keep)`` around the query's position, -1 for no limit; the first
            ``keep`` keys stay visible.
        mask: bool (true = visible), or a float bias in natural units, that broadcasts to ``[batch, heads, q_len,
        kv_len]``.
        scale: default ``1 / sqrt(head_dim)``.
        kv_lengths: int array ``[batch]``: keys at or past the length do not exist.
        alibi_slopes: fp32 ``[heads]``: adds ``-slope * |position - j|``.
        sinks: fp32 ``[heads]``: a learned logit that joins the softmax's denominator.
        block_table: int array ``[batch, max_pages]``; needs kv_lengths.
        c_k, c_q, q_base: smoothing vectors to use instead of the computed ones, see clary.h.
        recipe: e.g. ``"int8_int8:accurate"``; ``"auto"`` takes the most accurate of the fastest. See
        ``clary.recipes()``.
        backend: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"maca"``, ``"reference"``, ``"cpu:avx2"``, ...
        return_lse: also return the log-sum-exp.
        out: array for the result, of any strides and of fp32, fp16 or bf16; overlaps no input.

    Returns:
        The output, contiguous, with q's layout, type and device; with ``return_lse`` the pair of it and lse, fp32
        ``[batch, heads, q_len]`` in every layout, natural logarithm of the softmax's denominator. A row that sees no
        key is zeros with lse -inf.

    Raises:
        InvalidArgument (a ValueError): wrong shapes, types, devices or options; the text names argument, value and
            allowed set.
        Unsupported (a NotImplementedError): no kernel of the backend takes this; ``clary.explain`` says why.
        NoGradient (a RuntimeError): an input requires a gradient while gradients are recorded.
        TypeError: an argument is no array, or arrays of different libraries are mixed.
    """
    layout = parse_layout(layout)
    kind, offset, offsets = parse_causal(causal, causal_offset, causal is True and kv_lengths is None
                                         and block_table is None and _same_length(q, k, layout))  # fmt: skip
    options = Options(layout, kind, offset, parse_window(window), parse_scale(scale), 0, 0, parse_recipe(recipe),
                      parse_recipe(backend, "backend"))  # fmt: skip
    arrays = {"q": q, "k": k, "v": v}
    if not (mask is kv_lengths is alibi_slopes is sinks is offsets is block_table is c_k is c_q is q_base is None):
        arrays |= _given(mask=mask, kv_lengths=kv_lengths, alibi_slopes=alibi_slopes, sinks=sinks,
                         causal_offsets=offsets, block_table=block_table, c_k=c_k, c_q=c_q, q_base=q_base)  # fmt: skip
    return dispatch(options, arrays, return_lse, out)


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    causal: bool | str = False,
    causal_offset: int | Array | None = None,
    window: tuple[int, ...] | None = None,
    scale: float | None = None,
    kv_lengths: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    c_k: Array | None = None,
    c_q: Array | None = None,
    q_base: Array | None = None,
    recipe: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Attention within each of several sequences that lie behind one another.

    q ``[q_tokens, heads, head_dim]``, k and v ``[kv_tokens, kv_heads, head_dim]``; ``cu_seqlens_*``: int32 or int64
    ``[sequences + 1]``, from 0 to the number of tokens; a sequence may be empty. ``max_seqlen_*``: the longest
    sequence; 0 finds it on the CPU, and on a GPU stands for all tokens, which is right but starts more blocks than are
    needed.

    ``causal=True`` needs ``cu_seqlens_k is cu_seqlens_q``; else say ``"top_left"`` or ``"bottom_right"``, which refer
    to each sequence's own lengths. The rest, and what is raised, as in :func:`attention`; there are no masks. Returns
    the output ``[q_tokens, heads, head_dim of v]``, with ``return_lse`` also lse ``[heads, q_tokens]``.
    """
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise InvalidArgument("cu_seqlens_q, cu_seqlens_k: None; allowed: int arrays of sequences + 1 entries")
    kind, offset, offsets = parse_causal(causal, causal_offset, cu_seqlens_q is cu_seqlens_k and kv_lengths is None)
    longest = (
        parse_index("max_seqlen_q", max_seqlen_q, _LENGTHS, 0),
        parse_index("max_seqlen_k", max_seqlen_k, _LENGTHS, 0),
    )
    options = Options("hnd", kind, offset, parse_window(window), parse_scale(scale), *longest, parse_recipe(recipe),
                      parse_recipe(backend, "backend"))  # fmt: skip
    arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    arrays |= _given(kv_lengths=kv_lengths, alibi_slopes=alibi_slopes, sinks=sinks, causal_offsets=offsets, c_k=c_k,
                     c_q=c_q, q_base=q_base)  # fmt: skip
    return dispatch(options, arrays, return_lse, out)


def _given(**arrays: Array | None) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if array is not None}


def _same_length(q: Array, k: Array, layout: str) -> bool:
    q, k = adopt(q), adopt(k)
    axis = 2 if layout == "hnd" else 1
    return len(q.shape) == len(k.shape) == 4 and q.shape[axis] == k.shape[axis]


def dispatch(options: Options, arrays: dict[str, Array], return_lse: bool, out: Array | None) -> Any:
    """Runs at once, or as a torch operator where PyTorch is tracing."""
    if is_foreign(arrays["q"]):
        arrays = {name: adopt(a) for name, a in arrays.items()}
    if is_torch(arrays["q"]):
        import clary.torch_ops as torch_ops  # (`from .` takes twice as long)

        plan = torch_ops.plan_again(options, arrays, fresh_results(return_lse)) if out is None else None
        if plan is not None:
            return _call(plan, arrays, return_lse)
        _tracing.refuse("attention", arrays if out is None else {**arrays, "out": out})
        if _tracing.active(arrays):
            made, lse = _tracing.attention(options, arrays, return_lse)
            if out is not None:
                made = out.copy_(made)
            return (made, lse) if return_lse else made
    return run(options, arrays, return_lse, out)


def run(options: Options, arrays: dict[str, Array], return_lse: bool, out: Array | None = None) -> Any:
    given = out is not None
    if given:
        arrays["out"] = out
    family = gather(arrays)
    if given:
        refuse_overlap(family, arrays)
    made = _call(plan_for(family, options, arrays, fresh_results(return_lse, given)), arrays, return_lse)
    if given:
        family.written(arrays["out"])
    return made


def _call(plan: Plan, arrays: dict[str, Array], return_lse: bool) -> Any:
    family, q = plan.family, arrays["q"]
    if "out" not in arrays:
        arrays["out"] = family.empty(plan.shapes["out"], q.dtype, q, plan.like_q)
    if return_lse:
        arrays["lse"] = family.empty(plan.shapes["lse"], family.float32(q), q)
    bound = plan.bind(arrays)
    check(lib.clary_attention(bound.reference))
    plan.release(bound)
    return (arrays["out"], arrays["lse"]) if return_lse else arrays["out"]
