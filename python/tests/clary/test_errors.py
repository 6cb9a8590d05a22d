# SPDX-License-Identifier: Apache-2.0
"""Every wrong input has its documented error: the class, and a text that names argument, value and allowed set."""

import numpy as np
import pytest

import clary
from exact import qkv


@pytest.fixture
def good(arrays, rng):
    return [arrays(a) for a in qkv(rng, heads=4, kv_heads=2, q_len=10)]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"layout": "bhnd"}, "layout: 'bhnd'; allowed: 'hnd'"),
        ({"layout": None}, "layout: None"),
        ({"causal": "left"}, "causal: 'left'; allowed: False, True, 'top_left', 'bottom_right'"),
        ({"causal": "top_left", "causal_offset": 3}, "causal: 'top_left' with causal_offset"),
        ({"window": 5}, "window: 5; allowed: (left, right)"),
        ({"window": (1,)}, "window: (1,)"),
        ({"window": (1.5, 2)}, "window: (1.5, 2)"),
        ({"window": (-2, 0)}, "window_left: -2; allowed: -1 (unlimited)"),
        ({"scale": float("nan")}, "scale: nan; allowed"),
        ({"scale": float("inf")}, "scale: inf; allowed"),
        ({"recipe": "int8_int9"}, "recipe: unknown name 'int8_int9'; allowed: auto, int8_int8"),
        ({"recipe": "int8_int8:slow"}, "allowed: accurate, fast, sage2"),
        ({"recipe": 8}, "recipe: 8; allowed: a string"),
        ({"backend": "tpu"}, "backend: 'tpu' is unknown; allowed: auto"),
    ],
)
def test_options(good, options, text):
    with pytest.raises(clary.InvalidArgument) as raised:
        clary.attention(*good, **options)
    assert text in str(raised.value) and isinstance(raised.value, ValueError)


def test_unknown_keyword(good):
    for function in (clary.attention, clary.attention_consume, clary.quantize_kv):
        with pytest.raises(TypeError, match="is_causal"):
            function(
                *(good if function is clary.attention else [good] if function is clary.attention_consume else good[1:]),
                is_causal=True,
            )


@pytest.mark.parametrize("name, dtype", [("float64", "fp64"), ("int32", "int32"), ("int8", "int8"), ("bool", "bool")])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_types(good, arrays, name, dtype, which):
    good[which] = arrays(arrays.numpy(good[which]), name)
    with pytest.raises(clary.InvalidArgument, match=f"{'qkv'[which]}: dtype {dtype} .* allowed: fp32, fp16, bf16"):
        clary.attention(*good)


def test_complex(good, arrays):
    good[1] = arrays(arrays.numpy(good[1]).astype(np.complex64))
    with pytest.raises(clary.InvalidArgument, match="k: dtype complex64 is not supported"):
        clary.attention(*good)


def test_shapes(good):
    q, k, v = good
    for wrong, text in [
        ((q[0], k, v), "q: 3 dimensions; allowed: 4"),
        ((q[None], k[None], v[None]), "q: 5 dimensions; allowed: 4"),
        ((q, k[:, :, :, :32], v), "k: head_dim is 32, but q has 64"),
        ((q, k, v[:, :, :5]), "v: tokens is 5, but k has 10"),
        ((q, k, v[:, :1]), "v: heads is 1, but k has 2"),
        ((q[:, :3], k, v), "q: heads 3 are not a multiple of the 2 heads of k"),
        ((q[:1], k, v), "k: batch is 2, but q has 1"),
        ((q[..., :0], k[..., :0], v), "q: head_dim is 0; allowed: 1..65536"),
    ]:
        with pytest.raises(clary.InvalidArgument) as raised:
            clary.attention(*wrong)
        assert text in str(raised.value)


def test_masks_and_vectors(good, arrays):
    for options, text in [
        ({"mask": arrays(np.zeros((3, 10), np.float32))}, "mask: shape [3, 10] does not broadcast to [2, 4, 10, 10]"),
        ({"mask": arrays(np.zeros((10, 10), np.float64))}, "mask: dtype fp64"),
        ({"mask": arrays(np.zeros((1, 1, 1, 10, 10), bool))}, "mask: 5 dimensions"),
        ({"kv_lengths": arrays(np.zeros(3, np.int32))}, "kv_lengths: length is 3, but the batch is 2"),
        ({"kv_lengths": arrays(np.zeros(2, np.float32))}, "kv_lengths: dtype fp32"),
        ({"alibi_slopes": arrays(np.zeros(2, np.float32))}, "alibi_slopes: length is 2, but q has heads 4"),
        ({"sinks": arrays(np.zeros(4, np.float16))}, "sinks: dtype fp16"),
        (
            {"c_k": arrays(np.zeros((2, 2, 64), np.float32)), "recipe": "int8_fp16:fast+no_smooth_k"},
            "c_k: given, but recipe",
        ),
        ({"out": arrays(np.zeros((2, 4, 10, 63), np.float32))}, "out: head_dim is 63, but v has 64"),
        ({"out": arrays(np.zeros((2, 4, 10, 64), np.int32))}, "out: dtype int32"),
        ({"out": good[0]}, "out: overlaps q; allowed: memory of its own"),
    ]:
        with pytest.raises(clary.InvalidArgument) as raised:
            clary.attention(*good, **options)
        assert text in str(raised.value)


def test_contents_on_the_cpu(rng):
    q, k, v = qkv(rng, q_len=10)
    with pytest.raises(clary.InvalidArgument, match=r"kv_lengths\[1\]: 11; allowed: 0..10"):
        clary.attention(q, k, v, kv_lengths=np.array([3, 11]))
    packed = [np.ascontiguousarray(a[0].swapaxes(0, 1)) for a in (q, k, v)]
    for cu, text in [
        ([0, 5, 9], "allowed: the 10 tokens"),
        ([1, 5, 10], "allowed: 0"),
        ([0, 7, 5, 10], "not decreasing"),
    ]:
        with pytest.raises(clary.InvalidArgument, match=text):
            clary.attention_varlen(*packed, np.array(cu, np.int32), np.array(cu, np.int32))
    with pytest.raises(clary.InvalidArgument, match="longer than the given maximum 4"):
        clary.attention_varlen(*packed, np.array([0, 10]), np.array([0, 10]), max_seqlen_q=4)
    with pytest.raises(clary.InvalidArgument, match="cu_seqlens_q, cu_seqlens_k: None"):
        clary.attention_varlen(*packed, None, None)


def test_what_is_no_array(good):
    with pytest.raises(TypeError, match="k: builtins.list; allowed: torch.Tensor, numpy.ndarray, DLPack"):
        clary.attention(good[0], [1.0], good[2])
    with pytest.raises(TypeError, match="q: builtins.NoneType; allowed"):
        clary.attention(None, good[1], good[2])


def test_kinds_do_not_mix(rng):
    torch = pytest.importorskip("torch")
    q, k, v = qkv(rng)
    with pytest.raises(TypeError, match="k: a numpy.ndarray, but q is a torch.Tensor"):
        clary.attention(torch.from_numpy(q), k, v)
    with pytest.raises(TypeError, match="mask: a torch.Tensor, but q is a numpy.ndarray"):
        clary.attention(q, k, v, mask=torch.ones(130, 130))


def test_devices_without_kernels(rng):
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, qkv(rng))
    with pytest.raises(clary.NoDevice, match="backend: 'maca' is not part of this build"):
        clary.attention(q, k, v, backend="maca")
    with pytest.raises(clary.Unsupported, match="int4_int8.*reference"):
        clary.attention(q, k, v, recipe="int4_int8", backend="cpu")
    assert issubclass(clary.Unsupported, NotImplementedError) and issubclass(clary.NoDevice, RuntimeError)


def test_odd_numpy_arrays(rng):
    q, k, v = qkv(rng)
    with pytest.raises(clary.InvalidArgument, match="swapped bytes"):
        clary.attention(q.astype(q.dtype.newbyteorder()), k, v)
    record = np.zeros(q.shape, dtype=[("a", "f4"), ("b", "u1")])
    with pytest.raises(clary.InvalidArgument, match="multiples of its 4-byte element"):
        clary.attention(record["a"], k, v)
    with pytest.raises(clary.InvalidArgument, match="dimensions"):
        clary.attention(np.ones((), np.float32), k, v)


def test_merge_refuses(good):
    q, k, v = good
    out, lse = clary.attention(q, k, v, return_lse=True)
    for wrong, text in [
        ((out[0], lse, out, lse), "lse_a: 3 dimensions; allowed: 2"),
        ((out, lse, out[:, :2], lse), "heads is 2"),
    ]:
        with pytest.raises(clary.InvalidArgument, match=text):
            clary.merge(*wrong)


def test_errors_leave_results_as_they_were(good, arrays):
    out = arrays(np.full((2, 4, 10, 64), 7, np.float32))
    with pytest.raises(clary.InvalidArgument):
        clary.attention(*good, out=out, scale=float("nan"))
    assert (out == 7).all()
