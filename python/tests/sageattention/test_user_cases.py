# SPDX-License-Identifier: Apache-2.0
"""Failures that users of SageAttention met, by their ids, as far as no caller's file has them. T01, T16, T22, T37,
T38, T42, T51, T54, T55 and others stand there; `grep -ri _t54` finds one."""

import pytest
import torch
from attention import close, exact, make

import sageattention
from sageattention import sageattn, sageattn_qk_int8_pv_fp16_cuda

DENSE = [name for name in sageattention.__all__ if name.startswith("sageattn") and name != "sageattn_varlen"]


@pytest.mark.parametrize("name", DENSE)
def test_t06_scores_of_ten_thousand(device, name):
    """Rows are one-hot."""
    q, k, v = make(1, 2, device=device, dtype=torch.float32)
    q, k = 40 * q, 40 * k
    out = getattr(sageattention, name)(q, k, v, sm_scale=1.0)
    assert out.isfinite().all()
    scores = q.cpu().double() @ k.cpu().double().transpose(2, 3)
    assert scores.abs().max() > 1e4
    best, index = scores.topk(2)
    clear = (best[..., 0] - best[..., 1]) > 0.01 * scores.abs().amax()  # beyond what 8 bits resolve
    picked = v.cpu().gather(2, index[..., :1].expand(-1, -1, -1, 64))
    assert clear.float().mean() > 0.8
    assert (out.cpu() - picked).abs()[clear].max() < 0.05


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("batch, q_len, heads", [(9, 20, 12), (1, 20, 9)])
def test_t20_short_self_attention(device, name, batch, q_len, heads):
    q, k, v = make(batch, heads, q_len=q_len, head_dim=128, device=device, dtype=torch.float16)
    close(getattr(sageattention, name)(q, k, v), exact(q, k, v)[0])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_t21_memory_freed_with_nan(device, head_dim):
    for _ in range(3):
        torch.full((1, 4, 1001, head_dim), float("nan"), device=device)
        q, k, v = make(1, 4, q_len=1001, kv_len=503, head_dim=head_dim, device=device)
        close(sageattn_qk_int8_pv_fp16_cuda(q, k, v), exact(q, k, v)[0])


@pytest.mark.parametrize("kv_len", [64, 511, 5000])
def test_t23_one_query_and_many_keys(device, kv_len):
    q, k, v = make(1, 8, q_len=1, kv_len=kv_len, device=device, dtype=torch.float16)
    for name in DENSE:
        close(getattr(sageattention, name)(q, k, v), exact(q, k, v)[0], 0.03)


def test_t26_text_encoder_of_77_tokens(device):
    q, k, v = make(1, 12, q_len=77, device=device, dtype=torch.float16)
    close(sageattn(q, k, v, is_causal=True), exact(q, k, v, "top_left")[0])


def test_t40_additive_bias_is_in_natural_units(device):
    """Two keys of equal scores, bias 0 and 2: the weight of the second is 0.881, not 0.800."""
    q, k = torch.zeros(1, 1, 1, 64, device=device), torch.zeros(1, 1, 2, 64, device=device)
    v = torch.zeros(1, 1, 2, 64, device=device)
    v[0, 0, 1] = 1
    bias = torch.tensor([0.0, 2.0], device=device).view(1, 1, 1, 2)
    for name in DENSE:
        out = getattr(sageattention, name)(q, k, v, attn_mask=bias)
        assert (out - 0.8808).abs().max() < 0.01, name


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("name", DENSE)
def test_t52_pair_of_output_and_lse(device, name, layout):
    q, k, v = make(1, 6, 2, q_len=50, kv_len=70, device=device, layout=layout)
    out, lse = getattr(sageattention, name)(q, k, v, tensor_layout=layout, return_lse=True)
    assert out.shape == q.shape and out.dtype == q.dtype
    assert lse.shape == (1, 6, 50) and lse.dtype == torch.float32 and lse.device == q.device
    assert (lse.cpu() - exact(q, k, v, layout=layout)[1]).abs().max() < 0.05


def test_t64_no_function_aborts(device):
    """A function that names a machine which this is not gives a result or an exception, never an abort."""
    tensors = make(device=device)
    for name in DENSE:
        assert getattr(sageattention, name)(*tensors).isfinite().all()
