# SPDX-License-Identifier: Apache-2.0
"""`F.scaled_dot_product_attention = sageattn`: point 12 and the failures of that recipe."""

import pytest
import torch
import torch.nn.functional as F
from attention import close, exact, make

from sageattention import sageattn

SHARP = 0.05  # a scale four times the usual one: few keys share a row's weight, and errors of scores weigh more


@pytest.fixture
def patched(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", sageattn)


def test_12_keywords(device, patched):
    q, k, v = make(heads=8, kv_heads=2, device=device)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True, scale=0.25, enable_gqa=True
    )
    close(out, exact(q, k, v, "top_left", 0.25)[0])


def test_12_t37_mask_of_padded_text(device, patched):
    q, k, v = make(device=device, kv_len=256)
    mask = (torch.arange(256) < 31)[None, None, None].to(device)
    close(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), exact(q, k, v, mask=mask)[0])


def test_12_t38_scale(device, patched):
    q, k, v = make(device=device)
    close(F.scaled_dot_product_attention(q, k, v, scale=0.5), exact(q, k, v, scale=0.5)[0], SHARP)


@pytest.mark.parametrize("arguments", [(None,), (None, 0.0, True), (torch.ones(200, 200, dtype=torch.bool),)])
def test_12_positional_arguments_of_sdpa_are_refused(device, patched, arguments):
    """The fourth place is tensor_layout here."""
    with pytest.raises(ValueError, match="tensor_layout.*clary.sdpa"):
        F.scaled_dot_product_attention(*make(device=device), *arguments)


def test_12_dropout_is_refused(device, patched):
    with pytest.raises(ValueError, match="dropout_p"):
        F.scaled_dot_product_attention(*make(device=device), dropout_p=0.1)


def test_12_mask_and_causal_together(device, patched):
    q, k, v = make(device=device)
    mask = torch.rand(200, 200) < 0.5
    mask[:, 0] = True
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(device), is_causal=True)
    close(out, exact(q, k, v, "top_left", mask=mask)[0])


def test_12_multihead_attention(device, patched):
    """A module of PyTorch's that calls it by name, with positional mask and dropout: refused, not silently unmasked."""
    module = torch.nn.MultiheadAttention(128, 2, batch_first=True, device=device).eval()
    x = torch.randn(1, 20, 128, device=device, requires_grad=False)
    with torch.no_grad(), pytest.raises(ValueError, match="tensor_layout"):
        F.multi_head_attention_forward(
            *(x.transpose(0, 1),) * 3, 128, 2, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0,
            module.out_proj.weight, module.out_proj.bias, training=False, need_weights=False,
        )  # fmt: skip
