# SPDX-License-Identifier: Apache-2.0
"""FastVideo: point 11, strides of results, also of SageAttention3's under torch.compile."""

import pytest
import torch
from attention import close, exact, make
from sageattn3 import sageattn3_blackwell

from sageattention import sageattn


def test_11_strides_of_a_contiguous_q(device):
    q, k, v = make(device=device, layout="NHD")
    out = sageattn(q, k, v, tensor_layout="NHD", is_causal=False)
    assert out.stride() == q.stride()
    close(out, exact(q, k, v, layout="NHD")[0])


@pytest.mark.recent_torch
def test_11_sage3_compiled(device):
    def block(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return sageattn3_blackwell(q, k, v, is_causal=False).transpose(1, 2) * 2

    q, k, v = make(device=device, layout="NHD")
    out = torch.compile(block, backend="aot_eager", fullgraph=True)(q, k, v)
    assert torch.equal(out, block(q, k, v))
    assert out.transpose(1, 2).is_contiguous()
