# SPDX-License-Identifier: Apache-2.0
"""diffusers: points 5 and 6, and its own dispatch, models and ring on CPU tensors."""

import pytest
import torch
from attention import LIMIT, close, exact, make

from processes import run_ranks

import clary
import sageattention
from sageattention import sageattn, sageattn_varlen

DENSE = [
    "sageattn",
    "sageattn_qk_int8_pv_fp8_cuda",
    "sageattn_qk_int8_pv_fp8_cuda_sm90",
    "sageattn_qk_int8_pv_fp16_cuda",
    "sageattn_qk_int8_pv_fp16_triton",
]
BACKENDS = ["sage", "sage_varlen", "_sage_qk_int8_pv_fp8_cuda", "_sage_qk_int8_pv_fp8_cuda_sm90",
            "_sage_qk_int8_pv_fp16_cuda", "_sage_qk_int8_pv_fp16_triton"]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize("name", DENSE)
def test_05_keywords_nhd(device, name, scale, causal):
    q, k, v = make(device=device, layout="NHD")
    call = dict(q=q, k=k, v=v, tensor_layout="NHD", is_causal=causal, sm_scale=scale)
    function = getattr(sageattention, name)
    out = function(**call, return_lse=False)
    both = function(**call, return_lse=True)
    again, lse, *_ = both
    reference, lse_reference = exact(q, k, v, causal and "top_left", scale, layout="NHD")
    close(out, reference)
    close(again, reference)
    # On AMX another kernel serves where no LSE is wanted (docs/decisions/0022-scores-in-16-bits.md).
    assert torch.equal(out, again) or "amx" in clary.last_kernel()
    assert lse.shape == (2, 4, 200) and lse.dtype == torch.float32
    assert (lse.cpu() - lse_reference).abs().max() < 0.05
    assert lse.permute(0, 2, 1).shape == out.shape[:3]  # what the context parallel path does


def test_06_varlen_keywords(device):
    """Packed q, lengths of K from a mask: int32 on the device, maxima as Python integers."""
    q, k, v = make(device=device, layout="NHD", q_len=77, kv_len=130)
    lengths = torch.tensor([130, 55], dtype=torch.int32)
    packed_k, packed_v = (torch.cat([x[i, :n] for i, n in enumerate(lengths)]) for x in (k, v))
    cu_q = (torch.arange(3, dtype=torch.int32) * 77).to(device)
    cu_k = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)).to(device)
    out = sageattn_varlen(
        q=q.flatten(0, 1),
        k=packed_k,
        v=packed_v,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        max_seqlen_q=77,
        max_seqlen_k=130,
        is_causal=False,
        sm_scale=0.1,
    ).unflatten(0, (2, -1))
    mask = torch.arange(130)[None, None, None] < lengths[:, None, None, None]
    close(out, exact(q, k, v, scale=0.1, mask=mask, layout="NHD")[0])


@pytest.mark.real_package
def test_05_package_sees_the_drop_in():
    from diffusers.models import attention_dispatch

    assert attention_dispatch._CAN_USE_SAGE_ATTN
    assert attention_dispatch.sageattn is sageattn


@pytest.mark.real_package
@pytest.mark.parametrize("backend", BACKENDS)
def test_05_06_package_dispatch(backend):
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    q, k, v = make(layout="NHD")
    for causal in (False, True):
        out = dispatch_attention_fn(q, k, v, is_causal=causal, scale=0.1, backend=AttentionBackendName(backend))
        close(out, exact(q, k, v, causal and "top_left", 0.1, layout="NHD")[0])


@pytest.mark.real_package
def test_06_package_dispatch_varlen_with_mask():
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    q, k, v = make(layout="NHD")
    mask = torch.arange(200)[None] < torch.tensor([[200], [31]])
    out = dispatch_attention_fn(q, k, v, attn_mask=mask, backend=AttentionBackendName.SAGE_VARLEN)
    close(out, exact(q, k, v, mask=mask[:, None, None], layout="NHD")[0])


@pytest.mark.real_package
def test_05_package_context_parallel_operator():
    """The forward operator of its ring: pairs over halves of the keys, lse as [batch, q_len, heads]."""
    from diffusers.models.attention_dispatch import _sage_attention_forward_op

    q, k, v = make(layout="NHD")
    pairs = [
        _sage_attention_forward_op(None, q, k_, v_, return_lse=True) for k_, v_ in zip(k.chunk(2, 1), v.chunk(2, 1))
    ]
    (out_a, lse_a), (out_b, lse_b) = ((out.float(), lse[..., None]) for out, lse in pairs)
    merged = out_a - torch.sigmoid(lse_b - lse_a) * (out_a - out_b)
    close(merged, exact(q, k, v, layout="NHD")[0])


def small_video_model():
    """A Wan transformer of two layers with random weights, and what it is called with."""
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=64,
        in_channels=4,
        out_channels=4,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=64,
    )
    return model.eval(), dict(
        hidden_states=torch.randn(1, 4, 4, 16, 16),
        timestep=torch.tensor([500]),
        encoder_hidden_states=torch.randn(1, 20, 32),
        return_dict=False,
    )


@pytest.mark.real_package
def test_05_package_model():
    """By the model's own backend switch."""
    model, inputs = small_video_model()
    with torch.no_grad():
        (reference,) = model(**inputs)
        model.set_attention_backend("sage")
        (out,) = model(**inputs)
    assert not torch.equal(out, reference)
    close(out, reference)


def parallel_rank(rank, ranks, kind):
    from diffusers import ContextParallelConfig

    torch.accelerator.device_count = lambda: 1  # it asks for a GPU only to number it
    model, inputs = small_video_model()
    model.set_attention_backend("sage")
    model.enable_parallelism(config=ContextParallelConfig(**{kind: ranks}))
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.real_package
@pytest.mark.parametrize("kind", ["ring_degree", "ulysses_degree"])
def test_05_package_context_parallel_over_two_processes(tmp_path, kind):
    """Keys and values come as tensors that are still on their way, and have no memory yet."""
    model, inputs = small_video_model()
    with torch.no_grad():
        (reference,) = model(**inputs)
    for out in run_ranks(parallel_rank, 2, tmp_path, kind):
        assert not torch.equal(out, reference)
        close(out, reference)
