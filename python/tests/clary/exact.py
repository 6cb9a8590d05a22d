# SPDX-License-Identifier: Apache-2.0
"""Attention from its definition, in float64 with numpy, how far a result is from it, and what tests give to it."""

import numpy as np

# Relative L1 allowed on N(0,1) data: the ceilings that docs/accuracy.md records, and for short sequences, over which
# errors do not average out, half as much again.
LIMIT = {"int8_int8": 0.0225, "int8_fp16": 0.0175, "int8_bf16": 0.0175, "fp32_fp32": 1e-5, "auto": 0.0225}


class Foreign:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def qkv(rng, batch=2, heads=4, kv_heads=None, q_len=130, kv_len=None, dim=64, dim_v=None):
    """q, k, v [batch, heads, tokens, dim] of N(0,1), float32."""
    kv_heads, kv_len = kv_heads or heads, q_len if kv_len is None else kv_len
    shapes = (batch, heads, q_len, dim), (batch, kv_heads, kv_len, dim), (batch, kv_heads, kv_len, dim_v or dim)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def visible(q_len, kv_len, causal, offset=None):
    shift = {"top_left": 0, "bottom_right": kv_len - q_len}.get(causal, offset)
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)[None]
    return keys <= rows + shift


def exact(q, k, v, scale=None, mask=None, sinks=None):
    """(out, lse) of [batch, heads, tokens, dim]; mask bool (true = visible) or additive; a row that sees nothing: 0,
    -inf."""
    q, k, v = (np.asarray(a, dtype=np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        mask = np.asarray(mask)
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(np.float64)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks, dtype=np.float64)[None, :, None, None])
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, dtype=np.float64)[None, :, None, None] - top)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return weights / np.where(total == 0, 1, total) @ v, lse


def rel_l1(out, reference):
    out, reference = np.asarray(out, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    assert out.shape == reference.shape
    return np.abs(out - reference).sum() / max(np.abs(reference).sum(), 1e-30)
