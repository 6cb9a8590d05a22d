# SPDX-License-Identifier: Apache-2.0
"""ComfyUI's core: point 7."""

import inspect

import pytest
import torch
from attention import close, exact, make

from sageattention import sageattn


def comfy_call(q, k, v, mask=None, layout="NHD"):
    """What its attention function passes."""
    more = {}
    if mask is not None and "attn_mask" in inspect.signature(sageattn).parameters:
        more["attn_mask"] = mask
    return sageattn(q, k, v, is_causal=False, tensor_layout=layout, sm_scale=None, smooth_k=False, **more)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_07_without_mask(device, layout, dtype):
    q, k, v = make(device=device, layout=layout, dtype=dtype)
    close(comfy_call(q, k, v, layout=layout), exact(q, k, v, layout=layout)[0])


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("kind", ["bool", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 201), (2, 1, 1, 201), (1, 1, 200, 201), (2, 1, 200, 201), (1, 4, 200, 201), (2, 4, 200, 201)]
)
def test_07_t42_masks(device, layout, kind, shape):
    q, k, v = make(device=device, layout=layout, kv_len=201)
    mask = torch.rand(shape) < 0.7
    if kind != "bool":
        mask = torch.randn(shape).masked_fill(~mask, float("-inf")).to(getattr(torch, kind))
    out = comfy_call(q, k, v, mask.to(device), layout)
    close(out, exact(q, k, v, mask=mask, layout=layout)[0])


def test_07_t42_mask_broadcast_by_stride_zero(device):
    q, k, v = make(device=device)
    mask = (torch.rand(2, 1, 1, 200) < 0.5).to(device)
    assert torch.equal(comfy_call(q, k, v, mask, "HND"), comfy_call(q, k, v, mask.expand(2, 4, 200, 200), "HND"))


def test_07_smooth_k_false_is_never_worse(device):
    """T13: hosts pass smooth_k=False on every call; K with constant offsets would lose all its levels to them."""
    q, k, v = make(device=device, q_len=512)
    k[..., :4] += 50
    out = comfy_call(q, k, v, layout="HND")
    close(out, exact(q, k, v)[0])
    assert torch.equal(out, sageattn(q, k, v))


def test_07_fused_projection_views(device):
    """q, k and v as slices of one projection, as [batch, len, heads * head_dim] viewed by heads."""
    fused = torch.randn(2, 100, 3 * 256, device=device, dtype=torch.bfloat16)
    q, k, v = (x.view(2, -1, 4, 64) for x in fused.chunk(3, -1))
    out = comfy_call(q, k, v)
    close(out, exact(q, k, v, layout="NHD")[0])
    assert out.reshape(2, -1, 256).data_ptr() == out.data_ptr()  # a view: the result is contiguous
