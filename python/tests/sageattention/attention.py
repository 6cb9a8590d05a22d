# SPDX-License-Identifier: Apache-2.0
"""What the tests of the drop-in share: attention from its definition, in float64, and how far a result is from it."""

import torch

# Relative L1 allowed against float64 on N(0,1) tensors: the ceilings of the recipes (.0150 and .0115), and .005 for
# results rounded to bf16 and for short sequences, over which errors do not average out.
LIMIT = {"int8_int8": 0.020, "int8_fp16": 0.0165}


def make(
    batch=2,
    heads=4,
    kv_heads=None,
    q_len=200,
    kv_len=None,
    head_dim=64,
    dtype=torch.bfloat16,
    device="cpu",
    layout="HND",
):
    """q, k, v of N(0,1) in the layout."""
    kv_heads, kv_len = kv_heads or heads, q_len if kv_len is None else kv_len
    shapes = [(batch, heads, q_len, head_dim)] + 2 * [(batch, kv_heads, kv_len, head_dim)]
    made = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    return [x if layout == "HND" else x.transpose(1, 2).contiguous() for x in made]


def exact(q, k, v, causal=None, scale=None, mask=None, layout="HND"):
    """(output, lse) in float64 on the CPU. causal: None, "top_left", "bottom_right"; mask bool (True = seen) or
    additive, broadcast to [batch, heads, q_len, kv_len]. A row without a visible key: 0, -inf."""
    q, k, v = (x.detach().cpu().double() for x in (q, k, v))
    if layout == "NHD":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        mask = mask.detach().cpu()
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.double()
    if causal:
        offset = k.shape[2] - q.shape[2] if causal == "bottom_right" else 0
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(offset)
        scores = scores.masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None].nan_to_num(neginf=0)).exp() @ v
    return (out if layout == "HND" else out.transpose(1, 2)), lse


def rel_l1(out, reference):
    assert out.shape == reference.shape, (out.shape, reference.shape)
    out, reference = out.detach().cpu().double(), reference.cpu().double()
    return ((out - reference).abs().sum() / reference.abs().sum()).item()


def close(out, reference, limit=LIMIT["int8_int8"]):
    found = rel_l1(out, reference)
    assert found <= limit, f"relative L1 {found:.4f}, allowed {limit}"
