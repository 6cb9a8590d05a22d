# SPDX-License-Identifier: Apache-2.0
"""LightX2V: point 11, on results that it views without asking for their strides."""

import torch
from attention import close, exact, make

from sageattention import sageattn, sageattn_qk_int8_pv_fp16_triton


def test_11_view_of_an_nhd_result(device):
    q, k, v = make(1, device=device)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # transposed views
    out = sageattn(q, k, v, tensor_layout="NHD").view(200, -1)
    close(out.view(1, 200, 4, 64), exact(q, k, v, layout="NHD")[0])


def test_11_lse_transposed(device):
    q, k, v = make(1, device=device, layout="NHD")
    out, lse = sageattn(q, k, v, tensor_layout="NHD", is_causal=False, sm_scale=0.1, return_lse=True)
    assert lse.transpose(1, 2).contiguous().shape == out.shape[:3]


def test_11_triton_function_as_an_alias(device):
    q, k, v = make(1, device=device, layout="NHD")
    out = sageattn_qk_int8_pv_fp16_triton(q, k, v, tensor_layout="NHD")
    assert out.view(200, 256).shape == (200, 256)
    assert torch.equal(
        out[0], sageattn_qk_int8_pv_fp16_triton(q, k, v, tensor_layout="NHD", quantization_backend="cuda")[0]
    )
