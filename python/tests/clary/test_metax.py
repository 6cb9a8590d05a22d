# SPDX-License-Identifier: Apache-2.0
"""MetaX's PyTorch, whose tensors say "cuda", with a library that has the MACA backend. Such a library can be built for
simulated cards, whose memory is the host's: CPU tensors stand for those of the card here.

    CLARY_LIBRARY=build/maca-ci/lib/libclary.so python -m pytest python/tests/clary/test_metax.py
"""

import itertools

import pytest

torch = pytest.importorskip("torch")

import clary
from clary import _arrays, _problem, doctor

CARD = sorted({k.arch for k in clary.kernels() if k.backend == "maca" and k.usable})
pytestmark = pytest.mark.skipif(not CARD or torch.cuda.is_available(), reason="no simulated card of MetaX")


@pytest.fixture
def card(monkeypatch):
    """The architecture of the first card; every tensor lies on it, and PyTorch is MetaX's."""
    family, held = _arrays.family_of("q", torch.empty(0)), {}

    def workspace(self, count, index, stream):
        assert (index, stream) == (0, 0)
        raw = torch.empty(count + 64, dtype=torch.uint8)
        at = raw.data_ptr() + -raw.data_ptr() % 64
        held[at] = raw
        return at

    monkeypatch.setattr(torch, "__version__", "2.8.0+metax3.3.0.2")
    monkeypatch.setattr(_arrays.TorchFamily, "facts",
                        staticmethod(lambda a: (a.dtype, torch.device("cuda", 0), a.shape, a.stride())))  # fmt: skip
    monkeypatch.setattr(_arrays.TorchFamily, "stream", lambda self, index: 0)
    monkeypatch.setattr(_arrays.TorchFamily, "workspace", workspace)
    monkeypatch.setattr(family, "free", held.pop)
    monkeypatch.setattr(_problem, "plans", {})
    _arrays.gpu_of.cache_clear()
    yield CARD[0]
    assert not held
    _arrays.gpu_of.cache_clear()


def qkv(q_len=40, kv_len=90, dim=64, dtype=torch.float16, layout="hnd"):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 4, q_len, dim), (1, 2, kv_len, dim), (1, 2, kv_len, dim)]
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return made if layout == "hnd" else [t.transpose(1, 2).contiguous() for t in made]


def exact(q, k, v, causal=False):
    k, v = (t.double().repeat_interleave(2, 1) for t in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q.double(), k, v, is_causal=causal)


def error(out, expected):
    return float((out.double() - expected).abs().sum() / expected.abs().sum())


@pytest.mark.parametrize("recipe", ["int8_int8", "int8_fp16", "int8_bf16", "fp16_fp16"])
def test_tensors_go_to_the_card(card, recipe):
    q, k, v = qkv()
    out, lse = clary.attention(q, k, v, recipe=recipe, return_lse=True)
    assert clary.last_kernel() == f"maca_{card}_{recipe}"
    assert error(out, exact(q, k, v)) < 0.03
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT / 8
    assert (lse.double() - scores.logsumexp(-1)).abs().max() < 0.05
    assert clary.explain(q.shape, k.shape, dtype="float16", device="cuda", recipe=recipe)["kernel"] == (
        clary.last_kernel()
    )


def test_options_of_the_port(card):
    sageattention = pytest.importorskip("sageattention")
    for gran, accum, layout, smooth_v, causal in itertools.product(
        ("per_warp", "per_thread", "per_block"), ("fp32", "fp16", "fp16+fp16"), ("HND", "NHD"), (False, True),
        (False, True)):  # fmt: skip
        q, k, v = qkv(70, 70, layout=layout.lower())
        out, lse = sageattention.sageattn_qk_int8_pv_fp16_maca(
            q, k, v, tensor_layout=layout, is_causal=causal, qk_quant_gran=gran, pv_accum_dtype=accum, smooth_k=True,
            smooth_v=smooth_v, return_lse=True)  # fmt: skip
        assert clary.last_kernel() == f"maca_{card}_int8_fp16"
        swap = (lambda t: t) if layout == "HND" else (lambda t: t.transpose(1, 2))
        assert error(swap(out), exact(*map(swap, (q, k, v)), causal)) < 0.03
        assert lse.shape == (1, 4, 70)


def test_packed_keys_and_merging(card):
    q, k, v = qkv(dtype=torch.bfloat16)
    parts = [clary.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 50), (50, 90))]
    out, _ = clary.merge(*parts[0], *parts[1])
    assert error(out, exact(q, k, v)) < 0.04  # bf16 twice
    packed = clary.quantize_kv(k, v, q=q)
    assert error(packed.attend(q), exact(q, k, v)) < 0.03
    assert clary.last_kernel() == f"maca_{card}_int8_int8"


def test_what_the_card_cannot_do_is_refused(card):
    q, k, v = qkv()
    with pytest.raises(clary.Unsupported, match="allowed: accum=fp32"):
        clary.attention(q, k, v, recipe="int8_fp16:fast+accum=fp16")
    with pytest.raises(clary.Error, match="cuda"):
        clary.attention(q, k, v, backend="cuda")


def test_names(card):
    assert clary.gpu_backend() == "maca" and _arrays.gpu_of(torch) == _arrays.MACA
    assert doctor.gpu_advice(clary.kernels(), None).startswith("MACA kernels for ")
    formats = pytest.importorskip("sageattention._formats")
    formats.formats_of.cache_clear()
    assert "int8_fp16" in formats.formats_of("cuda") and "fp32_fp32" not in formats.formats_of("cuda")
    formats.formats_of.cache_clear()


def test_other_builds_of_pytorch_are_not_taken_for_it():
    assert _arrays.gpu_of(torch) == _arrays.CUDA
