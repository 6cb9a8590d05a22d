# SPDX-License-Identifier: Apache-2.0
"""KJNodes: point 8, and its path of two steps (quantize, free q and k, attend)."""

import pytest
import torch
from attention import close, exact, make
from sageattn3 import sageattn3_blackwell

import sageattention

FUNCTIONS = {
    "sageattn_qk_int8_pv_fp16_cuda": ("fp32", "fp16", "fp16+fp32"),
    "sageattn_qk_int8_pv_fp8_cuda": ("fp32", "fp32+fp32", "fp32+fp16"),
    "sageattn_qk_int8_pv_fp8_cuda_sm90": ("fp32+fp32",),
}
CASES = [(f, accum, gran) for f, accums in FUNCTIONS.items() for accum in accums for gran in ("per_warp", "per_thread")]


@pytest.mark.parametrize("name, accum, granularity", CASES)
def test_08_every_accumulator_and_granularity(device, name, accum, granularity):
    q, k, v = make(device=device, layout="NHD")
    out = getattr(sageattention, name)(
        q, k, v, is_causal=False, attn_mask=None, pv_accum_dtype=accum, qk_quant_gran=granularity, tensor_layout="NHD"
    )
    close(out, exact(q, k, v, layout="NHD")[0])


@pytest.mark.parametrize("name", ["sageattn", "sageattn_qk_int8_pv_fp16_triton"])
def test_08_functions_without_accumulator(device, name):
    q, k, v = make(device=device, layout="NHD")
    out = getattr(sageattention, name)(q, k, v, is_causal=False, attn_mask=None, tensor_layout="NHD")
    close(out, exact(q, k, v, layout="NHD")[0])


@pytest.mark.parametrize("per_block_mean", [False, True])
def test_08_sageattn3(device, per_block_mean):
    q, k, v = make(device=device, layout="NHD")
    q_, k_, v_ = (x.transpose(1, 2) for x in (q, k, v))
    out = sageattn3_blackwell(q_, k_, v_, is_causal=False, attn_mask=None, per_block_mean=per_block_mean).transpose(
        1, 2
    )
    close(out, exact(q, k, v, layout="NHD")[0])


def test_08_fp32_accumulators_where_fp16_would_overflow(device):
    """T01: 64 keys of V = 1100 pass fp16's largest number."""
    q, k, v = make(1, 1, q_len=64, device=device)
    k, v = torch.ones_like(k), torch.full_like(v, 1100.0)
    for name, accums in FUNCTIONS.items():
        for accum in accums:
            out = getattr(sageattention, name)(q, k, v, pv_accum_dtype=accum)
            assert (out.float() - 1100).abs().max() <= 8, (name, accum)  # one step of bf16 at 1100


def two_steps(arch, q, k, v, granularity):
    """NHD, as its memory-saving patches call it."""
    from sageattention.core import (
        _qattn_sm80,
        _qattn_sm89,
        _qattn_sm90,
        per_channel_fp8,
        per_thread_int8_triton,
        per_warp_int8_cuda,
    )

    km, out, scale = k.mean(dim=1, keepdim=True), torch.empty_like(q), q.shape[-1] ** -0.5
    blocks = dict(BLKQ=64, WARPQ=16, BLKK=128) if arch == "sm90" else dict(BLKQ=128, WARPQ=32, BLKK=64)
    if granularity == 3:
        packed = per_thread_int8_triton(q, k, km=km, tensor_layout="NHD", **blocks, WARPK=blocks["BLKK"])
    else:
        packed = per_warp_int8_cuda(q, k, km, tensor_layout="NHD", **blocks)
    q_int8, q_scale, k_int8, k_scale = packed
    if arch == "sm80":
        _qattn_sm80.qk_int8_sv_f16_accum_f32_attn(
            q_int8, k_int8, v.to(torch.float16), out, q_scale, k_scale, 0, 0, granularity, scale, 0
        )
    else:
        module = _qattn_sm89 if arch == "sm89" else _qattn_sm90
        v_fp8, v_scale, _ = per_channel_fp8(v, tensor_layout="NHD", smooth_v=False)
        module.qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf(
            q_int8, k_int8, v_fp8, out, q_scale, k_scale, v_scale, 0, 0, granularity, scale, 0
        )
    return out


@pytest.mark.parametrize("granularity", [2, 3])
@pytest.mark.parametrize("arch", ["sm80", *(pytest.param(a, marks=pytest.mark.recent_torch) for a in ("sm89", "sm90"))])
@pytest.mark.parametrize("length", [200, 64, 330])  # 200 and 330 leave 65..127 of a tile of 128: T22
def test_08_t22_quantize_then_attend(device, arch, granularity, length):
    q, k, v = make(device=device, layout="NHD", q_len=length)
    k = k + 3  # an offset that km takes off
    limit = 0.03 if arch == "sm80" else 0.05  # SageAttention's own scales and e4m3: not Clary's recipes
    close(two_steps(arch, q, k, v, granularity), exact(q, k, v, layout="NHD")[0], limit)


def test_08_quantize_then_attend_by_blocks(device):
    from sageattention.core import attn_false, attn_true, per_block_int8_triton

    q, k, v = make(device=device, layout="NHD")
    packed = per_block_int8_triton(q, k, km=k.mean(dim=1, keepdim=True), sm_scale=0.1, tensor_layout="NHD")
    q_int8, q_scale, k_int8, k_scale = packed
    out, _ = attn_false(
        q_int8, k_int8, v, q_scale, k_scale, tensor_layout="NHD", output_dtype=q.dtype, attn_mask=None, return_lse=False
    )
    assert out.dtype == q.dtype and out.is_contiguous()
    close(out, exact(q, k, v, scale=0.1, layout="NHD")[0], 0.03)
    out, lse = attn_true(
        q_int8, k_int8, v, q_scale, k_scale, tensor_layout="NHD", output_dtype=q.dtype, return_lse=True
    )
    reference, _ = exact(q, k - k.float().mean(1, keepdim=True), v, "top_left", 0.1, layout="NHD")
    lse_reference = exact(q, k.float() - k.mean(1, keepdim=True).float(), v, "top_left", 0.1, layout="NHD")[1]
    close(out, reference, 0.03)
    assert (lse.cpu() / 1.44269504 - lse_reference).abs().max() < 0.05  # base 2, of the smoothed scores


def test_08_probes(device):
    from sageattention.core import SM80_ENABLED, SM89_ENABLED, SM90_ENABLED, get_cuda_arch_versions, sm89_compile

    assert SM80_ENABLED and SM89_ENABLED and SM90_ENABLED
    assert len(get_cuda_arch_versions()) == torch.cuda.device_count()
    assert hasattr(sm89_compile, "qk_int8_sv_f8_accum_f16_fuse_v_scale_attn_inst_buf")
