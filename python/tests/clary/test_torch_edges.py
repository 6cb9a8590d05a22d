# SPDX-License-Identifier: Apache-2.0
"""Tensors that are more than numbers: transforms, forward mode, autocast, sparse and nested layouts, meta devices,
PyTorch's own modules. Each was once a wrong result or an unclear error."""

import contextlib

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import clary  # noqa: E402

pytestmark = pytest.mark.usefixtures("unchanged_sdpa")
TORCH = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])


def qkv(heads=4, n=20, dim=64):
    return [torch.randn(2, heads, n, dim) for _ in range(3)]


def test_forward_mode_would_lose_the_tangent():
    import torch.autograd.forward_ad as forward

    tensors = qkv()
    with torch.enable_grad(), forward.dual_level():
        for which in range(3):
            dual = [forward.make_dual(t, torch.ones_like(t)) if i == which else t for i, t in enumerate(tensors)]
            with pytest.raises(clary.NoGradient, match=f"{'qkv'[which]} has a tangent"):
                clary.attention(*dual)
            with clary.sdpa() as report, contextlib.suppress(NotImplementedError):  # PyTorch's own may refuse it too
                out = F.scaled_dot_product_attention(*dual)
                assert forward.unpack_dual(out).tangent is not None
            assert list(report.calls) == ["exact: a gradient is required"]
        clary.attention(*tensors)  # a level alone, without a tangent, is fine


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch.func")
def test_transforms_are_refused_in_words():
    q, k, v = qkv()
    text = r"under a transform of torch.func \(vmap, ...\); allowed"
    for call in (
        lambda: torch.func.vmap(lambda x: clary.attention(x, k, v))(torch.stack([q, q])),
        lambda: torch.func.vmap(lambda x: clary.attention(q, x, v))(torch.stack([k, k])),
        lambda: torch.func.jvp(lambda x: clary.attention(x, k, v), (q,), (q,)),
        lambda: torch.func.vmap(lambda x: clary.quantize_kv(x, v, q=q).length)(torch.stack([k, k])),
        lambda: torch.func.vmap(lambda x: clary.merge(x, q[..., 0], q, q[..., 0])[0])(torch.stack([q, q])),
    ):
        with pytest.raises(clary.Unsupported, match=text):
            call()
    with clary.sdpa() as report:
        out = torch.func.vmap(lambda x: F.scaled_dot_product_attention(x, k, v))(torch.stack([q, q]))
    assert torch.allclose(out[1], F.scaled_dot_product_attention(q, k, v), atol=1e-5)
    assert list(report.calls) == ["exact: a transform of torch.func is at work"]


@pytest.mark.filterwarnings("ignore")
def test_layouts_that_are_no_arrays():
    q, k, v = qkv()
    odd = {"torch.sparse_coo": q.to_sparse(), "nested": torch.nested.nested_tensor([q[0], q[1]])}
    if torch.backends.mkldnn.is_available():
        odd["torch._mkldnn"] = q.to_mkldnn()
    if TORCH >= (2, 4):
        odd["torch.jagged"] = torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged)
    for name, tensor in odd.items():
        for call in (lambda t: clary.attention(t, k, v), lambda t: clary.attention(q, t, v),
                     lambda t: clary.quantize_kv(k, v, q=t)):  # fmt: skip
            with pytest.raises(clary.InvalidArgument, match=f"[qk]: .*{name}.*allowed: a dense tensor"):
                call(tensor)


def test_meta_tensors_are_checked_like_others():
    q, k, v = (t.to("meta") for t in qkv())
    real = qkv()
    for tensors in ((real[0], k, v), (q, real[1], v), (q, k, real[2])):
        with pytest.raises(clary.InvalidArgument, match="[kv] is on .*, but q on .*; allowed: one device"):
            clary.attention(*tensors)
    for tensors, options, text in [
        ((q, k[..., :32], v), {}, "k: head_dim is 32, but q has 64"),
        ((q.int(), k, v), {}, "q: dtype int32"),
        ((q, k, v), {"recipe": "int9"}, "recipe: unknown name"),
        ((q, k, v), {"mask": torch.zeros(3, 20, device="meta")}, "mask: shape .* does not broadcast"),
        ((q[0], k[0], v[0]), {}, "q: 3 dimensions"),
    ]:
        with pytest.raises(clary.InvalidArgument, match=text):
            clary.attention(*tensors, **options)
    out, lse = clary.attention(q, k, v, return_lse=True)
    assert out.is_meta and out.shape == q.shape and lse.shape == q.shape[:3]


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch.compiler")
def test_graphs_refuse_what_eager_code_refuses():
    q, k, v = qkv()
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: clary.attention(q, k, v), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="k: head_dim is 32, but q has 64"):
        compiled(q, k[..., :32], v)
    torch._dynamo.reset()


def test_autocast_decides_the_type_of_the_result():
    tensors = qkv()
    exact = F.scaled_dot_product_attention(*tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = F.scaled_dot_product_attention(*tensors).dtype
        with clary.sdpa() as report:
            out = F.scaled_dot_product_attention(*tensors)
            double = F.scaled_dot_product_attention(*(t.double() for t in tensors))
    assert out.dtype == expected and double.dtype == torch.float64
    assert ((out.float() - exact).abs().sum() / exact.abs().sum()) < 0.03
    assert dict(report.calls) == {"auto": 1, "exact: dtype is torch.float64": 1}


@pytest.mark.skipif(not hasattr(torch.backends, "mha"), reason="torch.backends.mha")
def test_modules_of_pytorch_do_not_take_their_short_cut():
    """In eval mode PyTorch's own encoder has fused attention, which no replacement reaches."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    x = torch.randn(2, 50, 64)
    padding = torch.zeros(2, 50, dtype=torch.bool)
    padding[0, 30:] = True
    before = torch.backends.mha.get_fastpath_enabled()
    expected = layer(x), layer(x, src_key_padding_mask=padding)[:, :30]
    with clary.sdpa("int8_int8") as report:
        out = layer(x), layer(x, src_key_padding_mask=padding)[:, :30]
    assert report.calls == {"int8_int8": 2} and torch.backends.mha.get_fastpath_enabled() == before
    for a, b in zip(out, expected):
        assert 0 < (a - b).abs().max() < 0.05


def test_scopes_refuse_their_options_at_once():
    for options, text in [({"backend": "tpu"}, "backend: 'tpu'"), ({"min_q_len": "a"}, "min_q_len: 'a'; allowed"),
                          ({"model": 5}, "model: a int; allowed: a torch.nn.Module")]:  # fmt: skip
        with pytest.raises(clary.InvalidArgument, match=text):
            clary.sdpa(**options)


def test_views_of_every_kind():
    q, k, v = qkv(heads=2)
    big = torch.randn(2, 2, 40, 128)
    for view in (q, q[:, :1].expand(2, 2, 20, 64), big[:, :, ::2, ::2], big.transpose(0, 1)[:, :, :20, 64:],
                 torch.randn(20, 2, 2, 64).permute(1, 2, 0, 3), q[:1, :1, :1, :1].expand(2, 2, 20, 64),
                 torch.randn(2 * 2 * 20 * 64 + 1)[1:].view(2, 2, 20, 64)):  # fmt: skip
        assert torch.equal(clary.attention(view, view, view), clary.attention(*[view.contiguous()] * 3))


def test_masks_broadcast_in_every_dimension():
    import itertools

    q, k, v = qkv()
    for bits in itertools.product((0, 1), repeat=4):
        shape = tuple(n if bit else 1 for n, bit in zip((2, 4, 20, 20), bits))
        for mask in (torch.rand(shape) < 0.7, torch.randn(shape)):
            expected = clary.attention(q, k, v, mask=mask.expand(2, 4, 20, 20).contiguous())
            while True:
                assert torch.equal(clary.attention(q, k, v, mask=mask), expected)
                if mask.dim() == 1 or mask.shape[0] != 1:
                    break
                mask = mask[0]
