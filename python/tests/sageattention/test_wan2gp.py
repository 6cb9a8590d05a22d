# SPDX-License-Identifier: Apache-2.0
"""Wan2GP: point 6, packed sequences by position, and WanVideoWrapper's keywords."""

import torch
from attention import close, exact, make

import sageattention
from sageattention import sageattn, sageattn_varlen


def test_02_versions_by_prefix():
    from importlib.metadata import version

    assert version("sageattention").startswith("2") and version("sageattention").startswith("2.2")


def test_06_varlen_by_position(device):
    """q and k of different lengths; lengths in int32 tensors, and maxima that may be tensors."""
    q_lengths, k_lengths = [50, 0, 130], [7, 60, 200]
    q = torch.randn(sum(q_lengths), 4, 64, device=device, dtype=torch.bfloat16)
    k, v = torch.randn(2, sum(k_lengths), 4, 64, device=device, dtype=torch.bfloat16)
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int().to(device) for n in (q_lengths, k_lengths))
    out = sageattn_varlen(q, k, v, cu_q, cu_k, 130, 200)
    again = sageattn_varlen(q, k, v, cu_q.long(), cu_k.long(), torch.tensor(130), torch.tensor(200))
    assert torch.equal(out, again)
    parts = zip(out.split(q_lengths), q.split(q_lengths), k.split(k_lengths), v.split(k_lengths))
    for out_, q_, k_, v_ in parts:
        if len(out_):
            close(out_[None], exact(q_[None], k_[None], v_[None], layout="NHD")[0])


def test_06_nhd(device):
    q, k, v = make(1, device=device, layout="NHD", head_dim=128)
    close(sageattn(q, k, v, tensor_layout="NHD"), exact(q, k, v, layout="NHD")[0])


def test_wanvideowrapper_keywords(device):
    q, k, v = make(device=device, layout="NHD")
    out = sageattn(q, k, v, attn_mask=None, dropout_p=0, is_causal=False, tensor_layout="NHD")
    close(out, exact(q, k, v, layout="NHD")[0])


def test_deep_imports_that_work_or_fail_as_imports():
    from sageattention.quant import per_block_int8, per_channel_fp8, per_warp_int8, sub_mean  # noqa: F401

    assert not hasattr(sageattention, "_fused")
