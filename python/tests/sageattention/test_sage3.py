# SPDX-License-Identifier: Apache-2.0
"""sageattn3: point 14."""

import pytest
import torch
from attention import close, exact, make
from sageattn3 import sageattn3_blackwell


@pytest.mark.parametrize("per_block_mean", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_14_t16_k_is_unchanged_and_the_result_contiguous(device, causal, per_block_mean):
    q, k, v = make(device=device)
    before = [x.clone() for x in (q, k, v)]
    out = sageattn3_blackwell(q, k, v, is_causal=causal, per_block_mean=per_block_mean)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before))
    assert out.is_contiguous()
    close(out, exact(q, k, v, causal and "top_left")[0])


@pytest.mark.parametrize("length", [512, 1100])
def test_14_t45_causal_is_as_accurate_as_full(device, length):
    q, k, v = make(2, 1, q_len=length, head_dim=128, device=device)
    for causal in (False, True):
        close(sageattn3_blackwell(q, k, v, is_causal=causal), exact(q, k, v, causal and "top_left")[0])


def test_14_t51_grouped_heads(device):
    q, k, v = make(1, 28, 4, device=device)
    close(sageattn3_blackwell(q, k, v, enable_gqa=True), exact(q, k, v)[0])


def test_14_mask_scale_and_head_dim_are_honoured(device):
    q, k, v = make(1, 2, head_dim=40, device=device)
    mask = torch.rand(1, 1, 1, 200) < 0.5
    out = sageattn3_blackwell(q, k, v, mask.to(device), scale=0.3)
    close(out, exact(q, k, v, scale=0.3, mask=mask)[0])


def test_14_layout_by_keyword(device):
    q, k, v = make(1, 2, device=device, layout="NHD")
    close(sageattn3_blackwell(q, k, v, tensor_layout="NHD"), exact(q, k, v, layout="NHD")[0])


def test_14_unknown_keywords(device):
    with pytest.raises(TypeError, match="no_such"):
        sageattn3_blackwell(*make(device=device), no_such=1)
