# SPDX-License-Identifier: Apache-2.0
"""Points 15 to 19, 22 and 23: what holds for every caller."""

import pytest
import torch
from attention import LIMIT, close, exact, make, rel_l1

import sageattention
from sageattention import sageattn, sageattn_qk_int8_pv_fp16_cuda

FORMATS = [("sageattn", "int8_int8"), ("sageattn_qk_int8_pv_fp16_cuda", "int8_fp16")]


@pytest.mark.parametrize("name, recipe", FORMATS)
@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (8, 1), (28, 4)])
def test_15_t18_t51_grouped_heads(device, name, recipe, heads, kv_heads):
    q, k, v = make(1, heads, kv_heads, device=device)
    k *= torch.linspace(1, 3, kv_heads, device=device).view(1, -1, 1, 1)  # heads of different loudness: T18
    close(getattr(sageattention, name)(q, k, v, enable_gqa=True), exact(q, k, v)[0], 2 * LIMIT[recipe])


@pytest.mark.parametrize("name, recipe", FORMATS)
@pytest.mark.parametrize("head_dim", [32, 40, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256])
def test_15_t47_t48_head_dims(device, name, recipe, head_dim):
    q, k, v = make(1, 2, head_dim=head_dim, device=device)
    close(getattr(sageattention, name)(q, k, v), exact(q, k, v)[0], LIMIT[recipe])


@pytest.mark.parametrize("name", ["sageattn", "sageattn_qk_int8_pv_fp16_cuda", "sageattn_qk_int8_pv_fp8_cuda"])
@pytest.mark.parametrize("head_dim", [257, 384, 512])
def test_15_t47_exact_path_above_256(device, name, head_dim):
    """VAEs have such heads."""
    q, k, v = make(1, 1, head_dim=head_dim, device=device)
    close(getattr(sageattention, name)(q, k, v), exact(q, k, v)[0], 0.003)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("causal", [False, "top_left", "bottom_right"])
@pytest.mark.parametrize("masked", [None, "bool", "float32"])
def test_15_t47_exact_path_of_devices_without_such_a_kernel(device, monkeypatch, layout, causal, masked):
    from sageattention import _exact, _formats

    monkeypatch.setattr(_formats, "_has", lambda *_: False)
    monkeypatch.setattr(_exact, "_SCORES_AT_A_TIME", 2 * 4 * 90 * 7)  # seven rows at a time
    q, k, v = make(2, 4, 2, q_len=60, kv_len=90, head_dim=300, device=device, layout=layout)
    mask = None
    if masked:
        mask = torch.rand(1, 1, 60, 90) < 0.5
        mask[..., 3, :] = False
    if masked == "float32":
        mask = torch.randn(1, 1, 60, 90).masked_fill(~mask, float("-inf"))
    out, lse = sageattn(q, k, v, layout, causal, 0.1, True, attn_mask=None if mask is None else mask.to(device))
    reference, lse_reference = exact(q, k, v, causal, 0.1, mask, layout)
    close(out, reference, 0.003)
    assert out.is_contiguous() and out.dtype == q.dtype
    assert torch.allclose(lse.cpu().double(), lse_reference, atol=1e-4)


LENGTHS = [1, 7, 63, 64, 65, 127, 129, 1000]


@pytest.mark.parametrize("q_len", LENGTHS)
@pytest.mark.parametrize("kv_len", LENGTHS)
def test_16_lengths(device, q_len, kv_len):
    """T20, T21, T23, T26 are of this kind. Causal: the top left corner is aligned."""
    q, k, v = make(1, 2, q_len=q_len, kv_len=kv_len, device=device)
    for causal in (False, "top_left", "bottom_right"):
        out, lse = sageattn(q, k, v, is_causal=causal if causal == "bottom_right" else bool(causal), return_lse=True)
        reference, lse_reference = exact(q, k, v, causal)
        close(out, reference, 0.03)  # few rows: errors do not average out
        seen = lse_reference > float("-inf")
        assert torch.equal(seen, lse.cpu() > float("-inf"))
        assert (lse.cpu() - lse_reference)[seen].abs().max() < 0.06


def test_16_t43_one_query_and_a_cache(device):
    q, k, v = make(1, 2, q_len=1, kv_len=5, device=device)
    assert (sageattn(q, k, v, is_causal=True) - v[:, :, :1]).abs().max() < 0.05  # the first key only
    assert torch.equal(sageattn(q, k, v, is_causal="bottom_right"), sageattn(q, k, v))  # all five


def test_16_t27_nothing_to_attend_to(device):
    q, k, v = make(device=device)
    out, lse = sageattn(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert (out == 0).all() and (lse == float("-inf")).all()
    out, lse = sageattn(q[:, :, :0], k, v, return_lse=True)
    assert out.shape == (2, 4, 0, 64) and lse.shape == (2, 4, 0)
    assert sageattn(q[:0], k[:0], v[:0]).shape == (0, 4, 200, 64)


def strided(device):
    fused = torch.randn(2, 130, 3, 4, 64, device=device, dtype=torch.bfloat16)
    yield "heads of a fused projection", [fused[:, :, i].transpose(1, 2) for i in range(3)], "HND"
    yield "the same, NHD", [fused[:, :, i] for i in range(3)], "NHD"
    one = torch.randn(1, 4, 130, 64, device=device, dtype=torch.bfloat16)
    yield "expanded batch", [one.expand(2, -1, -1, -1)] * 3, "HND"
    yield "expanded heads", [one[:, :1].expand(-1, 4, -1, -1)] * 3, "HND"
    flat = torch.randn(4 * 130 * 64 + 1, device=device, dtype=torch.bfloat16)
    yield "offset of 2 bytes", [flat[1:].view(1, 4, 130, 64)] * 3, "HND"
    wide = torch.randn(1, 4, 130, 65, device=device, dtype=torch.bfloat16)
    yield "rows of odd length", [wide[..., :64]] * 3, "HND"
    yield "T34: last dimension not contiguous", [one.transpose(2, 3).contiguous().transpose(2, 3)] * 3, "HND"
    yield "every second column", [torch.cat([one, one], -1)[..., ::2]] * 3, "HND"


@pytest.mark.parametrize("index", range(8))
def test_17_t34_strides(device, index):
    what, tensors, layout = list(strided(device))[index]
    for name, _ in FORMATS:
        function = getattr(sageattention, name)
        out = function(*tensors, tensor_layout=layout)
        assert torch.equal(out, function(*(x.contiguous() for x in tensors), tensor_layout=layout)), what
        assert out.is_contiguous(), what
    close(out, exact(*tensors, layout=layout)[0])


def test_18_t16_inputs_are_untouched(device):
    q, k, v = make(device=device)
    mask = torch.rand(2, 4, 200, 200, device=device)
    before = [x.clone() for x in (q, k, v, mask)]
    for name, _ in FORMATS:
        getattr(sageattention, name)(q, k, v, attn_mask=mask, smooth_v=True)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v, mask), before))


@pytest.mark.parametrize("name, recipe", FORMATS)
def test_18_extreme_values_stay_finite(device, name, recipe):
    function = getattr(sageattention, name)
    q, k, v = make(1, 2, device=device, dtype=torch.float16)
    rows = q[:, :, :1].expand_as(q)
    assert function(rows, rows, v).isfinite().all()  # T06: all rows equal
    huge = torch.full_like(q, 65504.0)
    for tensors in ((huge, huge, v), (-huge, huge, v), (q, huge, v), (q, k, huge), (huge, k, v)):
        assert function(*tensors).isfinite().all()
    zero = torch.zeros_like(q)
    for tensors in ((zero, k, v), (q, zero, v)):  # T11
        close(function(*tensors), exact(*tensors)[0], LIMIT[recipe])
    v[..., 5] = 0
    out = function(q, k, v)  # T09: the channel may get its share of the rounding of a rotated V, six times its mean
    assert out[..., 5].abs().max() < 6 * LIMIT[recipe] * out.abs().mean()
    assert (function(q, k, zero) == 0).all()


@pytest.mark.parametrize("name, recipe", FORMATS)
def test_18_t14_an_outlier_channel_that_alternates(device, name, recipe):
    """Its mean is 0, so smoothing finds nothing; rotation spreads it. The bound is derived in tests/cpu (T14)."""
    q, k, v = make(1, 2, q_len=300, kv_len=512, device=device)
    k[..., 9] = 100 * (1 - 2 * (torch.arange(512, device=device) % 2))
    close(getattr(sageattention, name)(q, k, v), exact(q, k, v)[0], 1.2 * 0.68 / 64**0.5)


def test_18_t41_masked_rows(device):
    q, k, v = make(1, 2, device=device)
    mask = torch.rand(1, 1, 200, 200, device=device) < 0.5
    mask[..., 5:9, :] = False
    out, lse = sageattn(q, k, v, attn_mask=mask, return_lse=True)
    assert (out[:, :, 5:9] == 0).all() and (lse[:, :, 5:9] == float("-inf")).all()
    close(out, exact(q, k, v, mask=mask)[0])


def test_18_t02_t03_v_beyond_fp16(device):
    q, k, v = make(1, 2, q_len=1024, device=device)
    v[0, 0, 5, 3] = 1e5
    for name, _ in FORMATS:
        close(getattr(sageattention, name)(q, k, v), exact(q, k, v)[0], 0.05)
    close(
        sageattn_qk_int8_pv_fp16_cuda(q * 0.01, k, v * 300, pv_accum_dtype="fp16"), exact(q * 0.01, k, v * 300)[0], 0.05
    )


def test_18_smooth_v_is_honoured(device):
    """A large mean of V is taken off before V is quantized, and added to the output."""
    q, k, v = make(1, 2, device=device, dtype=torch.float32)
    v = v + 30 * torch.randn(1, 2, 1, 64, device=device)
    reference = exact(q, k, v)[0]
    errors = {on: rel_l1(sageattn(q, k, v, smooth_v=on), reference) for on in (False, True)}
    assert errors[True] < 0.2 * errors[False]


def test_19_t28_t29_offsets_beyond_31_bits(device):
    """Rows so far apart that the last of 140 begins beyond 2^31 elements. Pages that nobody touches take no memory on a
    CPU; on a GPU it is 4.7 GB."""
    rows, stride = 140, 2**24
    assert rows * stride > 2**31
    storage = torch.UntypedStorage((rows * stride + 1024) * 2, device=device)
    far = torch.empty(0, dtype=torch.bfloat16, device=device).set_(storage)
    near = make(1, 2, q_len=rows, device=device, layout="NHD")
    views = [far.as_strided((1, rows, 2, 64), (0, stride, 64, 1), 128 * i) for i in range(3)]
    for view, x in zip(views, near):
        view.copy_(x)
    for tensors in (views, [*near[:2], views[2]]):  # all three as of a fused projection, and V alone
        assert torch.equal(sageattn(*tensors, tensor_layout="NHD"), sageattn(*near, tensor_layout="NHD"))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_22_inference_modes(device, mode):
    q, k, v = make(device=device)
    plain = sageattn(q, k, v)
    with mode():
        assert torch.equal(sageattn(q, k, v), plain)
        assert torch.equal(sageattn(q.clone().requires_grad_(), k, v), plain)


@pytest.mark.parametrize("which", range(3))
def test_22_t63_gradients_are_refused(device, which):
    tensors = make(device=device)
    tensors[which].requires_grad_()
    for name, _ in FORMATS:
        with pytest.raises(RuntimeError, match=f"{'qkv'[which]} requires a gradient"):
            getattr(sageattention, name)(*tensors)
    tensors[which] = tensors[which].detach()
    assert not sageattn(*tensors).requires_grad


def test_22_autocast_changes_nothing(device):
    q, k, v = make(device=device, dtype=torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = sageattn(q, k, v)
    assert torch.equal(out, sageattn(q, k, v))


def test_23_determinism(device):
    q, k, v = make(q_len=500, device=device)
    for name, _ in FORMATS:
        first = getattr(sageattention, name)(q, k, v)
        assert all(torch.equal(first, getattr(sageattention, name)(q, k, v)) for _ in range(19))
        assert torch.equal(first[:1], getattr(sageattention, name)(q[:1], k[:1], v[:1]))  # whatever the neighbours are


def test_18_views_that_negate(device):
    """The imaginary part of a conjugate holds the opposite of what lies in memory."""
    parts = [torch.randn(1, 2, 100, 64, dtype=torch.complex64, device=device).conj().imag for _ in range(3)]
    assert all(x.is_neg() for x in parts)
    assert torch.equal(sageattn(*parts), sageattn(*(x.resolve_neg() for x in parts)))
