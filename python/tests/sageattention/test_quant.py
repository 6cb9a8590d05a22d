# SPDX-License-Identifier: Apache-2.0
"""sageattention.quant: shapes, scale groups and layouts of upstream's packed tensors, against loops over their
definition."""

import pytest
import torch
from attention import make

from sageattention.quant import per_block_int8, per_channel_fp8, per_thread_int8, per_warp_int8, sub_mean

GEOMETRIES = [dict(BLKQ=128, WARPQ=32, BLKK=64), dict(BLKQ=128, WARPQ=16, BLKK=64), dict(BLKQ=64, WARPQ=16, BLKK=128)]


def hnd(x, layout):
    return x if layout == "HND" else x.transpose(1, 2)


def check(x, codes, scale, groups, layout):
    """Each group (a list of row numbers) of x has the scale amax / 127, and its codes are x / scale to nearest."""
    assert codes.shape == x.shape and codes.dtype == torch.int8 and codes.is_contiguous()
    assert scale.shape == (x.shape[0], hnd(x, layout).shape[1], len(groups)) and scale.dtype == torch.float32
    x, codes = hnd(x, layout).float(), hnd(codes, layout).float()
    for index, rows in enumerate(groups):
        rows = [r for r in rows if r < x.shape[2]]
        expected = x[:, :, rows].abs().amax((2, 3)) / 127 if rows else torch.zeros_like(scale[..., index])
        assert torch.allclose(scale[..., index], expected.clamp(min=1e-7 / 127), rtol=1e-6), index
        assert (
            (codes[:, :, rows] - x[:, :, rows] / scale[..., index, None, None]).abs().max() <= 0.501 if rows else True
        )


def runs(length, size):
    return [list(range(begin, begin + size)) for begin in range(0, length, size)]


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("length", [1, 64, 130, 257])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_per_warp(device, layout, length, geometry):
    q, k, _ = make(2, 4, 2, q_len=length, device=device, layout=layout)
    q_codes, q_scale, k_codes, k_scale = per_warp_int8(q, k, tensor_layout=layout, **geometry)
    padded = -(-length // geometry["BLKQ"]) * geometry["BLKQ"]
    check(q, q_codes, q_scale, runs(padded, geometry["WARPQ"]), layout)
    check(k, k_codes, k_scale, runs(length, geometry["BLKK"]), layout)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("length", [1, 64, 130, 257])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_per_thread(device, layout, length, geometry):
    q, k, _ = make(2, 4, 2, q_len=length, device=device, layout=layout)
    block_q, warp_q, block_k = geometry.values()
    q_codes, q_scale, k_codes, k_scale = per_thread_int8(q, k, tensor_layout=layout, **geometry, WARPK=block_k)
    padded = -(-length // block_q) * block_q
    q_groups = [[r for r in warp if r % 8 == g] for warp in runs(padded, warp_q) for g in range(8)]
    padded = -(-length // block_k) * block_k
    k_groups = [[r for r in warp if r % 8 // 2 == g] for warp in runs(padded, block_k) for g in range(4)]
    check(q, q_codes, q_scale, q_groups, layout)
    check(k, k_codes, k_scale, k_groups, layout)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_per_block_folds_the_scale_into_q(device, layout):
    q, k, _ = make(2, 4, 2, q_len=257, device=device, layout=layout)
    q_codes, q_scale, k_codes, k_scale = per_block_int8(q, k, sm_scale=0.1, tensor_layout=layout)
    check(q.float() * 0.1 * 1.4426950408889634, q_codes, q_scale, runs(257, 128), layout)
    check(k, k_codes, k_scale, runs(257, 64), layout)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("keep", [True, False])
def test_km_is_taken_off(device, layout, keep):
    """A mean with or without the axis of tokens."""
    q, k, _ = make(device=device, layout=layout)
    km = (k + 5).mean(2 if layout == "HND" else 1, keepdim=keep)
    _, _, codes, scale = per_warp_int8(q, k + 5, km, tensor_layout=layout)
    full = km if keep else km.unsqueeze(2 if layout == "HND" else 1)
    check((k + 5).float() - full.float(), codes, scale, runs(200, 64), layout)


@pytest.mark.recent_torch
def test_t09_t11_zeros(device):
    """No scale is 0, and nothing is NaN."""
    zero = torch.zeros(1, 1, 100, 64, device=device, dtype=torch.bfloat16)
    for codes, scale in (per_warp_int8(zero, zero)[:2], per_thread_int8(zero, zero)[2:], per_channel_fp8(zero)[:2]):
        assert (codes.float() == 0).all() and (scale > 0).all()


@pytest.mark.recent_torch
@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("scale_max", [448.0, 2.25])
@pytest.mark.parametrize("length", [16, 64, 130])
def test_per_channel_fp8(device, layout, smooth, scale_max, length):
    _, _, v = make(2, 2, q_len=length, device=device, layout=layout)
    codes, scale, mean = per_channel_fp8(v, layout, scale_max, smooth)
    padded = -(-length // 64) * 64
    assert codes.dtype == torch.float8_e4m3fn and codes.is_contiguous()
    assert codes.shape == ((2, 2, 64, padded) if layout == "HND" else (2, 64, 2, padded))
    x = hnd(v, layout).float().transpose(2, 3)
    assert (mean is not None) == smooth
    if smooth:
        assert mean.shape == (2, 2, 64) and torch.allclose(mean, x.mean(-1), atol=1e-5)
        x = x - mean[..., None]
    assert torch.allclose(scale, x.abs().amax(-1) / scale_max, rtol=1e-6)
    stored = hnd(codes, layout).float()
    token = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
    for position in range(padded):
        source = position // 16 * 16 + token[position % 16]
        if source >= length:
            assert (stored[..., position] == 0).all()
            continue
        exact = x[..., source] / scale
        assert ((stored[..., position] - exact).abs() <= exact.abs() / 16 + 2**-10).all()  # 3 bits; subnormals


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_sub_mean(device, layout):
    _, _, v = make(device=device, layout=layout)
    smoothed, mean = sub_mean(v + 3, layout)
    assert smoothed.shape == v.shape and smoothed.dtype == torch.float16 and smoothed.is_contiguous()
    assert mean.shape == (2, 4, 64) and mean.dtype == v.dtype
    rebuilt = hnd(smoothed, layout).float() + mean.float()[:, :, None]
    assert (rebuilt - hnd(v + 3, layout).float()).abs().max() < 2**-9 * 8


@pytest.mark.parametrize("function", [per_block_int8, per_warp_int8, per_thread_int8])
def test_unknown_layout(function):
    q, k, _ = make()
    with pytest.raises(ValueError, match="tensor_layout"):
        function(q, k, tensor_layout="hnd")
