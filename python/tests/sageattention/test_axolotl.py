# SPDX-License-Identifier: Apache-2.0
"""axolotl: point 13, and its way into transformers, by the attention interface of real models."""

import pytest
import torch
from attention import close, exact, make, rel_l1

from sageattention import sageattn, sageattn_varlen


def attention_forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """transformers' signature; query [batch, heads, len, head_dim]; the result [batch, len, heads, head_dim]."""
    causal = attention_mask is None and query.shape[2] > 1
    out = sageattn(
        query, key, value, attn_mask=attention_mask, is_causal="bottom_right" if causal else False, sm_scale=scaling,
        tensor_layout="HND",
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def test_13_dense(device):
    q, k, v = make(heads=8, kv_heads=2, device=device)
    out = sageattn(q, k, v, is_causal=True, sm_scale=0.1, tensor_layout="HND")
    close(out, exact(q, k, v, "top_left", 0.1)[0])


def test_13_varlen_tolerates_tensor_layout_and_smooth_k(device):
    q, k, v = (x.flatten(0, 1) for x in make(3, device=device, layout="NHD"))
    cu = (torch.arange(4, dtype=torch.int32) * 200).to(device)
    out = sageattn_varlen(
        q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=200, max_seqlen_k=200, is_causal=True, sm_scale=0.1,
        smooth_k=False, tensor_layout="NHD",
    )  # fmt: skip
    q, k, v = (x.unflatten(0, (3, 200)) for x in (q, k, v))
    close(out.unflatten(0, (3, 200)), exact(q, k, v, "top_left", 0.1, layout="NHD")[0])


@pytest.fixture(scope="module")
def model():
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

    AttentionInterface.register("sage_for_this_test", attention_forward)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.real_package
def test_13_package_model(model):
    tokens = torch.randint(0, 100, (2, 150))
    with torch.no_grad():
        model.set_attn_implementation("eager")
        reference = model(tokens).logits
        model.set_attn_implementation("sage_for_this_test")
        logits = model(tokens).logits
    assert 0 < rel_l1(logits, reference) < 0.01


@pytest.mark.real_package
def test_13_package_generation_with_a_cache(model):
    """Prefill of several tokens, then one query against all keys."""
    tokens = torch.randint(0, 100, (1, 40))
    texts = []
    for implementation in ("eager", "sage_for_this_test"):
        model.set_attn_implementation(implementation)
        texts.append(model.generate(tokens, max_new_tokens=8, do_sample=False))
    assert texts[0].shape == texts[1].shape == (1, 48)
    assert (texts[0] == texts[1]).float().mean() > 0.9
