# SPDX-License-Identifier: Apache-2.0
"""yunchang (long-context-attention): point 9, its kernel selection, and its attention layer over two processes."""

from functools import partial

import pytest
import torch
from attention import close, exact, make, rel_l1
from processes import run_ranks

import sageattention

FLASH = dict(dropout_p=0.0, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, return_softmax=False)
PARTIALS = {
    "sageattn": {},
    "sageattn_qk_int8_pv_fp16_cuda": dict(pv_accum_dtype="fp32"),
    "sageattn_qk_int8_pv_fp16_triton": {},
    "sageattn_qk_int8_pv_fp8_cuda": dict(pv_accum_dtype="fp32+fp32"),
    "sageattn_qk_int8_pv_fp8_cuda_sm90": dict(pv_accum_dtype="fp32+fp32"),
}
TYPES = ["SAGE_AUTO", "SAGE_FP16", "SAGE_FP16_TRITON", "SAGE_FP8", "SAGE_FP8_SM90"]


@pytest.mark.parametrize("name", PARTIALS)
def test_09_flash_keywords(device, name):
    q, k, v = make(device=device, layout="NHD")
    function = partial(getattr(sageattention, name), tensor_layout="NHD", return_lse=True, **PARTIALS[name])
    out, lse = function(q, k, v, softmax_scale=0.2, causal=True, **FLASH)
    reference, lse_reference = exact(q, k, v, "top_left", 0.2, layout="NHD")
    close(out, reference)
    assert (lse.cpu() - lse_reference).abs().max() < 0.05
    assert rel_l1(function(q, k, v, softmax_scale=0.2, causal=False, **FLASH)[0], reference) > 0.3


@pytest.mark.parametrize(
    "keyword, value",
    [
        ("dropout_p", 0.1),
        ("window_size", (128, 0)),
        ("window_size", 5),
        ("softcap", 30.0),
        ("alibi_slopes", torch.ones(4)),
        ("return_softmax", True),
    ],
)
def test_09_what_is_not_trivial_is_refused(device, keyword, value):
    q, k, v = make(device=device, layout="NHD")
    with pytest.raises(ValueError, match=f"{keyword}: .*allowed: "):
        sageattention.sageattn(q, k, v, tensor_layout="NHD", **{**FLASH, keyword: value})


@pytest.mark.real_package
@pytest.mark.parametrize("kind", TYPES)
def test_09_package_kernel(kind):
    from yunchang.kernels import AttnType, select_flash_attn_impl

    q, k, v = make(layout="NHD")
    function = select_flash_attn_impl(AttnType[kind], stage="fwd-only")
    out, lse = function(q, k, v, softmax_scale=0.2, causal=True, **FLASH)
    reference, lse_reference = exact(q, k, v, "top_left", 0.2, layout="NHD")
    close(out, reference)
    assert (lse - lse_reference).abs().max() < 0.05


def usp_rank(rank, ranks, ring, causal):
    """One rank of LongContextAttention: its part of the sequence in, its part of the output out."""
    from yunchang import LongContextAttention, set_seq_parallel_pg
    from yunchang.kernels import AttnType

    set_seq_parallel_pg(ranks // ring, ring, rank, ranks)
    torch.manual_seed(0)
    parts = [x.chunk(ranks, 1)[rank].contiguous() for x in make(1, layout="NHD")]
    with torch.no_grad():
        return LongContextAttention(ring_impl_type="basic", attn_type=AttnType.SAGE_AUTO)(*parts, causal=causal)


@pytest.mark.real_package
@pytest.mark.parametrize("ring, causal", [(2, True), (2, False), (1, True)])
def test_09_package_two_processes(tmp_path, ring, causal):
    """Ring (keys travel, results merge by lse) and Ulysses (heads are exchanged)."""
    out = torch.cat(run_ranks(usp_rank, 2, tmp_path, ring, causal), 1)
    close(out, exact(*make(1, layout="NHD"), causal and "top_left", layout="NHD")[0])
