# SPDX-License-Identifier: Apache-2.0
"""What stays an error: upstream's types where upstream raises, one line that names argument, value and allowed set."""

import logging

import pytest
import torch
from attention import close, exact, make

import sageattention
import sageattn3
from sageattention import _formats, sageattn, sageattn_qk_int8_pv_fp8_cuda, sageattn_varlen

DENSE = [name for name in sageattention.__all__ if name.startswith("sageattn") and name != "sageattn_varlen"]


@pytest.mark.parametrize("name", DENSE)
def test_unknown_keyword(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'qk_quant'; allowed"):
        getattr(sageattention, name)(*make(), qk_quant=1)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("layout", ["hnd", "BHLD", None, 1, torch.ones(1)])
def test_wrong_layout(name, layout):
    with pytest.raises(ValueError, match="tensor_layout: .*allowed: 'HND', 'NHD'"):
        getattr(sageattention, name)(*make(), tensor_layout=layout)


@pytest.mark.parametrize("error", [AssertionError, ValueError])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.int32, torch.bool, torch.complex64])
def test_element_types(dtype, error):
    """Upstream asserts; fp32, which it refuses too, works."""
    for which in range(3):
        tensors = make()
        tensors[which] = tensors[which].to(dtype)
        with pytest.raises(error, match="qkv"[which] + ": dtype .*allowed: float16, bfloat16, float32"):
            sageattn(*tensors)


@pytest.mark.parametrize("error", [AssertionError, ValueError])
def test_mixed_devices(error):
    q, k, v = make()
    for tensors, name in (((q, k.to("meta"), v), "k"), ((q, k, v.to("meta")), "v"), ((q.to("meta"), k, v), "k")):
        with pytest.raises(error, match=f"{name} is on .*allowed: one device"):
            sageattn(*tensors)


@pytest.mark.parametrize("name", DENSE)
def test_masks_that_are_none(name):
    """The text has the argument's own name."""
    q, k, v = make()
    for mask, error, text in [
        ([1], TypeError, "attn_mask: list; allowed: torch.Tensor or None"),
        (torch.ones(200, dtype=torch.int64), ValueError, "attn_mask: dtype torch.int64; allowed: bool, float16"),
        (torch.ones(200, dtype=torch.float64), ValueError, "attn_mask: dtype torch.float64"),
        (torch.ones(200, device="meta"), AssertionError, "attn_mask is on meta, but q on cpu"),
    ]:
        with pytest.raises(error, match=f"{name}: {text}"):
            getattr(sageattention, name)(q, k, v, attn_mask=mask)


EVERY = [*DENSE, "sageattn_varlen", "sageattn3_blackwell"]


def call(name, q, k, v, **options):
    """Of [batch, heads, tokens, dim] tensors, of which a packed batch is made for sageattn_varlen."""
    if name != "sageattn_varlen":
        return getattr(sageattn3 if name == "sageattn3_blackwell" else sageattention, name)(q, k, v, **options)
    batch, heads, q_len, dim = q.shape
    kv_len = k.shape[2]
    cu = [torch.arange(batch + 1, dtype=torch.int32, device=q.device) * n for n in (q_len, kv_len)]
    packed = [x.transpose(1, 2).reshape(-1, x.shape[1], dim) for x in (q, k, v)]
    out = sageattention.sageattn_varlen(*packed, *cu, q_len, kv_len, **options)
    return out.view(batch, q_len, heads, dim).transpose(1, 2)


@pytest.mark.parametrize("name", EVERY)
def test_what_every_function_does_with_odd_tensors(device, name):
    q, k, v = make(device=device)
    expected = call(name, q, k, v)
    close(expected, exact(q, k, v)[0])
    single = call(name, *(x.float() for x in (q, k, v)))  # fp32
    assert single.dtype == torch.float32
    close(single, expected)
    turned = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]  # last dimension not contiguous
    assert not turned[0].is_contiguous() and torch.equal(call(name, *turned), expected)
    if name != "sageattn_varlen":
        nhd = call(name, *(x.transpose(1, 2) for x in (q, k, v)), tensor_layout="NHD")
        assert torch.equal(nhd.transpose(1, 2), expected)
    assert call(name, q[:, :, :0], k, v).shape == q[:, :, :0].shape  # no queries, no keys, no batch
    assert (call(name, q, k[:, :, :0], v[:, :, :0]) == 0).all()
    assert call(name, q[:0], k[:0], v[:0]).shape == q[:0].shape
    for wrong in (torch.float64, torch.int32, torch.int8, torch.bool):
        for which in range(3):
            tensors = [x.to(wrong) if i == which else x for i, x in enumerate((q, k, v))]
            with pytest.raises(sageattention.ArgumentError, match=f"{name}: {'qkv'[which]}: dtype {wrong}"):
                call(name, *tensors)
    for which in (1, 2):
        tensors = [x.to("meta") if i == which else x for i, x in enumerate((q, k, v))]
        with pytest.raises(sageattention.ArgumentError, match=f"{name}: {'qkv'[which]} is on meta"):
            call(name, *tensors)
    with pytest.raises(TypeError, match="no_such_word"):
        call(name, q, k, v, no_such_word=1)
    with pytest.raises(ValueError, match=f"{name}: tensor_layout: 'BHND'"):
        call(name, q, k, v, tensor_layout="BHND")


@pytest.mark.gpu
def test_mixed_devices_of_a_gpu():
    q, k, v = make()
    for tensors in ((q.cuda(), k, v), (q, k.cuda(), v), (q, k, v.cuda())):
        with pytest.raises(AssertionError, match="allowed: one device"):
            sageattn(*tensors)


@pytest.mark.parametrize("tensor", [None, [1.0], "q", 1])
def test_no_tensor(tensor):
    q, k, v = make()
    for tensors in ((tensor, k, v), (q, tensor, v), (q, k, tensor)):
        with pytest.raises(TypeError, match="allowed: torch.Tensor"):
            sageattn(*tensors)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda q, k, v: (q[:, :3], k[:, :2], v[:, :2]), "multiple of the 2 heads"),
        (lambda q, k, v: (q, k, v[:, :, :100]), "v: tokens"),
        (lambda q, k, v: (q, k[:1], v[:1]), "k: batch"),
        (lambda q, k, v: (q, k[..., :32], v), "k: head_dim"),
        (lambda q, k, v: (q[0], k[0], v[0]), "q: 3 dimensions"),
        (lambda q, k, v: (q[..., :0], k[..., :0], v[..., :0]), "head_dim is 0"),
    ],
)
def test_shapes(change, text):
    with pytest.raises(ValueError, match=text):
        sageattn(*change(*make()))


def test_values_of_options():
    q, k, v = make()
    cases = [
        ("sageattn_qk_int8_pv_fp16_cuda", dict(qk_quant_gran="per_block"), AssertionError),
        ("sageattn_qk_int8_pv_fp16_cuda", dict(pv_accum_dtype="fp32+fp32"), ValueError),
        ("sageattn_qk_int8_pv_fp16_triton", dict(quantization_backend="numpy"), ValueError),
        ("sageattn_qk_int8_pv_fp8_cuda", dict(pv_accum_dtype="fp16"), ValueError),  # upstream: garbage
        ("sageattn_qk_int8_pv_fp8_cuda", dict(qk_quant_gran=["per_warp"]), AssertionError),
        ("sageattn_qk_int8_pv_fp8_cuda_sm90", dict(pv_accum_dtype="fp32"), NotImplementedError),
        ("sageattn_qk_int8_pv_fp8_cuda_sm90", dict(pv_accum_dtype="fp32+fp16"), ValueError),  # upstream: garbage
        ("sageattn_qk_int8_pv_fp16_maca", dict(qk_quant_type="int4"), ValueError),
        ("sageattn_qk_int8_pv_fp16_maca", dict(qk_quant_gran="per_tensor"), AssertionError),
        ("sageattn_qk_int8_pv_fp16_maca", dict(pv_accum_dtype="fp32+fp16"), ValueError),
        ("sageattn", dict(is_causal="yes"), ValueError),
        ("sageattn", dict(is_causal=torch.ones(2)), ValueError),
        ("sageattn", dict(sm_scale=float("nan")), ValueError),
        ("sageattn", dict(sm_scale="0.1"), TypeError),
        ("sageattn", dict(sm_scale=True), TypeError),
        ("sageattn", dict(recipe="int9_int9"), ValueError),
        ("sageattn", dict(attn_mask=torch.ones(200, 200, dtype=torch.int64)), ValueError),
        ("sageattn", dict(attn_mask=torch.ones(3, 1, 1, 200) > 0), ValueError),
    ]
    for name, options, error in cases:
        with pytest.raises(error, match="allowed|does not broadcast"):
            getattr(sageattention, name)(q, k, v, **options)


def test_names_for_one_thing_must_agree():
    q, k, v = make()
    for options in (
        dict(sm_scale=0.1, scale=0.2),
        dict(scale=0.1, softmax_scale=0.2),
        dict(is_causal=True, causal=False),
    ):
        with pytest.raises(ValueError, match="allowed: one of the two"):
            sageattn(q, k, v, **options)
    same = sageattn(q, k, v, is_causal=True, sm_scale=0.1)
    assert torch.equal(same, sageattn(q, k, v, causal=True, is_causal=True, sm_scale=0.1, scale=0.1, softmax_scale=0.1))
    assert torch.equal(same, sageattn(q, k, v, causal=True, scale=0.1))


def test_is_causal_in_other_forms():
    q, k, v = make()
    for yes in (1, torch.tensor(True)):
        assert torch.equal(sageattn(q, k, v, is_causal=yes), sageattn(q, k, v, is_causal=True))
    for no in (0, None, torch.tensor(False)):
        assert torch.equal(sageattn(q, k, v, is_causal=no), sageattn(q, k, v))


@pytest.mark.parametrize("scale", [0.0, -0.2, 1e-3])
def test_unusual_scales(device, scale):
    q, k, v = make(device=device)
    close(sageattn(q, k, v, sm_scale=scale), exact(q, k, v, scale=scale)[0])


def test_t49_t50_types_may_differ(device):
    """The output has q's type."""
    tensors = make(device=device, dtype=torch.float32)
    reference = exact(*tensors)[0]
    for kinds in ("fff", "ffb", "bbf", "hhh", "fhb", "bhf"):
        types = [dict(f=torch.float32, h=torch.float16, b=torch.bfloat16)[kind] for kind in kinds]
        out = sageattn(*(x.to(t) for x, t in zip(tensors, types)))
        assert out.dtype == types[0]
        close(out, reference)


def test_packed_sequences():
    q, k, v = (x[0] for x in make(1, layout="NHD"))
    cu = torch.tensor([0, 100, 200], dtype=torch.int32)
    cases = [
        ((q[None], k, v, cu, cu, 100, 100), {}, ValueError, "q: 4 dimensions"),
        ((q, k, v, cu.float(), cu, 100, 100), {}, ValueError, "cu_seqlens_q: dtype"),
        ((q, k, v, cu, cu + 1, 100, 100), {}, ValueError, "cu_seqlens_k"),
        ((q, k, v, cu, cu, 10, 100), {}, ValueError, "longer than the given maximum"),
        ((q, k, v, cu, cu, 100, 100), dict(tensor_layout="HND"), ValueError, "tensor_layout"),
        ((q, k, v, cu, cu, 100, 100), dict(attn_mask=torch.ones(1)), ValueError, "attn_mask"),
        ((q, k, v, cu, cu, 100, 100), dict(no_such=1), TypeError, "no_such"),
        ((q.double(), k, v, cu, cu, 100, 100), {}, AssertionError, "float64"),
    ]
    for arguments, options, error, text in cases:
        with pytest.raises(error, match=text):
            sageattn_varlen(*arguments, **options)
    plain = sageattn_varlen(q, k, v, cu, cu, 100, 100)
    assert torch.equal(plain, sageattn_varlen(q, k, v, cu, cu, 100, 100, attn_mask=None, dropout_p=0.0))
    spread = torch.tensor([0, 9, 100, 9, 200, 9], dtype=torch.int32)[::2]  # upstream asserts contiguity
    assert torch.equal(plain, sageattn_varlen(q, k, v, spread, cu.long(), 100, 100))


def test_a_format_without_a_kernel_says_so_once(caplog):
    """No int8_fp8 kernel for the CPU: the more accurate default runs, by one line of the log."""
    _formats._say_first_time.cache_clear()
    tensors = make()
    with caplog.at_level(logging.WARNING, "sageattention"):
        outs = [sageattn_qk_int8_pv_fp8_cuda(*tensors) for _ in range(3)]
    assert [r.message for r in caplog.records] == [
        "sageattn_qk_int8_pv_fp8_cuda: int8_int8:accurate, which is more accurate, runs instead of int8_fp8 "
        "(cpu tensors have no kernel for it)"
    ]
    assert torch.equal(outs[0], sageattn(*tensors, recipe="int8_int8:accurate"))


def test_a_recipe_of_ones_own(device):
    """The keyword wins over the function's format, and is never replaced."""
    import clary

    tensors = make(device=device)
    out = sageattn_qk_int8_pv_fp8_cuda(*tensors, recipe="int8_fp16:fast")
    assert "int8_fp16" in clary.last_kernel()
    assert torch.equal(out, sageattn(*tensors, recipe="int8_fp16:fast"))
    with pytest.raises(NotImplementedError, match="int8_fp8"):
        sageattn(*make(), recipe="int8_fp8")
