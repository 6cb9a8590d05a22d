# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tracers: fakes, opcheck, torch.compile, torch.export; and autograd."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch, "compiler") or not hasattr(torch.library, "opcheck"):
    pytest.skip("opcheck and torch.compiler came with PyTorch 2.4", allow_module_level=True)

import clary  # noqa: E402
import clary.torch_ops  # noqa: E402
import clary.torch_packed  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    yield
    assert not torch._dynamo.utils.counters["graph_break"]


def qkv(device, batch=2, heads=4, q_len=40, kv_len=None, dim=64, dtype=torch.bfloat16):
    lengths = (q_len, *[q_len if kv_len is None else kv_len] * 2)
    return [torch.randn(batch, heads, n, dim, device=device).to(dtype) for n in lengths]


def variants(device):
    q, k, v = qkv(device)
    cu = torch.tensor([0, 30, 80], dtype=torch.int32, device=device)
    packed = [t.transpose(1, 2).reshape(80, 4, 64) for t in (q, k, v)]
    yield "dense", (q, k, v), {}
    yield "lse", (q, k, v), {"return_lse": True, "causal": "top_left"}
    yield "nhd", [t.transpose(1, 2) for t in (q, k, v)], {"layout": "nhd", "return_lse": True}
    yield "strided", [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (q, k, v)], {"return_lse": True}
    yield "wide_v", (q, k, torch.cat([v, v], -1)), {"return_lse": True}
    yield "grouped", (q, k[:, :2], v[:, :2]), {"scale": 0.3, "window": [5, 0, 2]}
    yield "mask", (q, k, v, torch.randn(40, 40, device=device)), {}
    yield "padding", (q, k, v), {"kv_lengths": torch.tensor([3, 40], dtype=torch.int32, device=device)}
    yield "varlen", packed, {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 50, "max_seqlen_k": 50,
                             "return_lse": True}  # fmt: skip
    yield "no_keys", qkv(device, kv_len=0), {"return_lse": True}


NAMES = [name for name, *_ in variants("cpu")]


@pytest.mark.parametrize("name", NAMES)
def test_t59_opcheck(device, name):
    arguments, options = next((a, o) for n, a, o in variants(device) if n == name)
    torch.library.opcheck(torch.ops.clary.attention.default, tuple(arguments), options)


def test_opcheck_merge(device):
    out, lse = clary.attention(*qkv(device), return_lse=True)
    torch.library.opcheck(torch.ops.clary.merge.default, (out, lse, out.clone(), lse.clone()))


@pytest.mark.parametrize("name", NAMES)
def test_fakes_look_like_the_real_thing(device, name):
    from torch._subclasses.fake_tensor import FakeTensorMode

    arguments, options = next((a, o) for n, a, o in variants(device) if n == name)
    real = torch.ops.clary.attention(*arguments, **options)
    with FakeTensorMode() as mode:
        turn = lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x  # noqa: E731
        fake = torch.ops.clary.attention(*map(turn, arguments), **{k: turn(x) for k, x in options.items()})
    for a, b in zip(real, fake):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def model(q, k, v, mask):
    out, lse = clary.attention(q * 1.5, k, v, causal="bottom_right", mask=mask, scale=0.2, return_lse=True)
    first = clary.attention(q, k[:, :, :8], v[:, :, :8], layout="hnd", return_lse=True)
    rest = clary.attention(q, k[:, :, 8:], v[:, :, 8:], return_lse=True)
    merged, _ = clary.merge(*first, *rest)
    given = torch.empty_like(q)
    clary.attention(q, k, v, out=given, recipe="int8_fp16")
    return out + 1, lse, merged, given


def test_t59_compiled_is_eager_at_every_length(device):
    # int8 codes of q * 1.5 need the rounding that eager code has.
    compiled = torch.compile(model, fullgraph=True, dynamic=True, options={"emulate_precision_casts": True})
    with torch.no_grad():
        for n in (17, 33, 40, 64):
            q, k, v = qkv(device, q_len=n, kv_len=n + 3)
            mask = torch.randn(1, 1, n, n + 3, device=device)
            for a, b in zip(model(q, k, v, mask), compiled(q, k, v, mask)):
                assert torch.equal(a, b)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_compiled_varlen(device):
    def run(q, k, v, cu):
        return clary.attention_varlen(q, k, v, cu, cu, causal=True, max_seqlen_q=q.shape[0], max_seqlen_k=k.shape[0])

    compiled = torch.compile(run, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for lengths in ([10, 30], [25, 50], [7, 99]):
            cu = torch.tensor([0, *lengths], dtype=torch.int32, device=device)
            q, k, v = (torch.randn(lengths[-1], 4, 64, device=device) for _ in range(3))
            assert torch.equal(run(q, k, v, cu), compiled(q, k, v, cu))


def test_export_and_jit_trace_keep_the_call(device):
    class Net(torch.nn.Module):
        def forward(self, q, k, v):
            return clary.attention(q, k, v, causal=True)

    q, k, v = qkv(device)
    with torch.no_grad():
        program = torch.export.export(Net(), (q, k, v))
        assert "clary.attention" in program.graph_module.code
        assert torch.equal(program.module()(k, v, q), clary.attention(k, v, q, causal=True))
        traced = torch.jit.trace(Net(), (q, k, v))
        assert torch.equal(traced(k, v, q), clary.attention(k, v, q, causal=True))


def test_meta_tensors():
    q = torch.empty(2, 4, 10, 64, device="meta")
    out, lse = clary.attention(q, q, q, return_lse=True)
    assert out.shape == q.shape and lse.shape == (2, 4, 10) and out.is_meta


def test_compiling_is_the_first_thing_that_happens():
    """A process that imports Clary before PyTorch, and traces before any eager call."""
    code = """
        import clary, sys
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        import torch
        q = torch.randn(1, 2, 20, 32)
        f = torch.compile(lambda q: clary.attention(q, q, q, causal=True), fullgraph=True, backend="eager")
        assert torch.equal(f(q), clary.attention(q, q, q, causal=True))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_t63_gradients_are_refused():
    q, k, v = qkv("cpu", dtype=torch.float32)
    for which in range(3):
        tensors = [q, k, v]
        tensors[which] = tensors[which].clone().requires_grad_()
        for call in (clary.attention, torch.ops.clary.attention, lambda *t: clary.attention_consume(list(t)),
                     torch.compile(lambda *t: clary.attention(*t), backend="eager")):  # fmt: skip
            with pytest.raises(clary.NoGradient, match=f"{'qkv'[which]} requires a gradient.*no_grad"):
                call(*tensors)
        with torch.no_grad():
            expected = clary.attention(*tensors)
        with torch.inference_mode():
            assert torch.equal(clary.attention(*tensors), expected)
    mask = torch.zeros(40, 40, requires_grad=True)
    with pytest.raises(clary.NoGradient, match="mask"):
        clary.attention(q, k, v, mask=mask)
    torch._dynamo.utils.counters["graph_break"].clear()  # the refusal under torch.compile


def test_autograd_notices_what_was_written():
    q, k, v = qkv("cpu", dtype=torch.float32)
    weight, out = torch.ones_like(q, requires_grad=True), torch.ones_like(q)
    product = (weight * out).sum()
    with torch.no_grad():
        clary.attention(q, k, v, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with pytest.raises(clary.NoGradient, match="out"):
        clary.attention(q, k, v, out=torch.ones_like(q, requires_grad=True))
    with torch.inference_mode():
        assert clary.attention(q, k, v, out=torch.empty_like(q)).shape == q.shape


def caches(device, capacity=64, layers=2, **options):
    made = []
    for _ in range(layers):
        q, k, v = qkv(device, q_len=20)
        made.append(clary.KVCache(capacity, **options))
        made[-1].append(k, v, q=q)
    return made


def step(cache, q, k, v):
    cache.append(k, v)
    out, lse = cache.attend(q, causal="bottom_right", return_lse=True)
    return out * 2, lse


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_decoding_in_a_graph_is_eager_decoding(device, backend):
    """Prefill before, append and attend in the graph: one graph for all steps and layers."""
    import copy

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=backend)
    with torch.no_grad():
        ours = caches(device)
        twins = copy.deepcopy(ours)
        for n in (1, 1, 1, 1):
            for cache, twin in zip(ours, twins):
                q, k, v = qkv(device, q_len=n)
                for a, b in zip(compiled(cache, q, k, v), step(twin, q, k, v)):
                    assert torch.equal(a, b)
        assert [cache.length for cache in ours] == [24, 24]
        assert all(torch.equal(c.packed.memory, t.packed.memory) for c, t in zip(ours, twins))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_cache_in_a_module(device):
    class Layer(torch.nn.Module):
        def __init__(self, cache):
            super().__init__()
            self.cache = cache

        def forward(self, q, k, v):
            return step(self.cache, q, k, v)[0]

    with torch.no_grad():
        layers = torch.nn.ModuleList(Layer(cache) for cache in caches(device))
        compiled = torch.compile(lambda *t: sum(layer(*t) for layer in layers), fullgraph=True, dynamic=True)
        for n in (1, 3, 2):
            q, k, v = qkv(device, q_len=n)
            assert compiled(q, k, v).shape == q.shape
        assert [layer.cache.length for layer in layers] == [26, 26]


@pytest.mark.parametrize("options", [{}, {"layout": "nhd"}, {"recipe": "int8_fp16"}])
def test_opcheck_of_packed_keys(device, options):
    q, k, v = qkv(device)
    given = [t.transpose(1, 2) if options.get("layout") == "nhd" else t for t in (q, k, v)]
    packed = clary.quantize_kv(given[1], given[2], q=given[0], capacity=100, **options)
    mask = torch.rand(40, 100, device=device) < 0.9
    attend, append = torch.ops.clary.attend.default, torch.ops.clary.append.default
    for return_lse in (False, True):
        torch.library.opcheck(attend, (given[0], packed.memory, mask, None, None, None, None, "none", 0, [30, 5],
                                       packed._text, return_lse))  # fmt: skip
    torch.library.opcheck(append, (packed.memory, given[1], given[2], None, packed._text))


def test_what_graphs_know_of_packed_keys(device):
    q, k, v = qkv(device)
    with pytest.raises(Exception, match="quantize_kv: under torch.compile.*size of packed keys is not known"):
        torch.compile(lambda q, k, v: clary.quantize_kv(k, v, q=q).attend(q), backend="eager")(q, k, v)
    (cache,) = caches(device, layers=1)
    with pytest.raises(Exception, match="ambiguous"):
        torch.compile(lambda q: cache.attend(q, causal=True), backend="eager")(q)
    torch._dynamo.utils.counters["graph_break"].clear()
    with torch.no_grad():
        for mask in (torch.ones(40, 64, dtype=torch.bool, device=device), torch.ones(1, device=device) > 0):
            out = torch.compile(lambda q, mask: cache.attend(q, mask=mask), backend="eager", fullgraph=True)(q, mask)
            assert torch.equal(out, cache.attend(q))
        out = torch.empty_like(q)
        torch.compile(lambda q: cache.attend(q, out=out), backend="eager", fullgraph=True)(q)
        assert torch.equal(out, cache.attend(q))


def test_subclasses_and_transforms():
    q, k, v = qkv("cpu")
    parameter = torch.nn.Parameter(q, requires_grad=False)
    assert torch.equal(clary.attention(parameter, k, v), clary.attention(q, k, v))

    class Tagged(torch.Tensor):
        pass

    assert torch.equal(clary.attention(q.as_subclass(Tagged), k, v).as_subclass(torch.Tensor), clary.attention(q, k, v))
    with pytest.raises(RuntimeError):
        torch.vmap(clary.attention)(q[None], k[None], v[None])


def test_what_a_gpu_call_is_given(monkeypatch):
    """Stream, workspace and device of a call on CUDA tensors, as the library sees them; here the tensors lie on the
    CPU."""
    import ctypes

    from clary import _attention, _problem, _structs
    from clary._arrays import TorchFamily, family_of

    seen, status = [], 0

    class Library:
        def clary_attention(self, reference):
            params = _structs.Params.from_buffer_copy(reference._obj)
            seen.append((params.q.device, params.q.device_index, params.out.device, params.lse.device, params.stream,
                         params.workspace_size, params.workspace, params.q.data, params.context))  # fmt: skip
            assert params.workspace not in freed
            return status

        def clary_workspace_size(self, _, one_shot, size):
            size._obj.value = 12345 + one_shot
            return 0

    describe = TorchFamily.describe
    monkeypatch.setattr(TorchFamily, "describe", staticmethod(
        lambda name, facts: (describe(name, facts)[0], 1, 3, *describe(name, facts)[3:])))  # fmt: skip
    held, freed = [], []

    def workspace(self, *asked):
        held.append(asked)
        return 64 * len(held)

    monkeypatch.setattr(TorchFamily, "stream", lambda self, index: 0x5EED + index)
    monkeypatch.setattr(TorchFamily, "workspace", workspace)
    q, k, v = qkv("cpu")
    monkeypatch.setattr(family_of("q", q), "free", freed.append)
    monkeypatch.setattr(_problem, "lib", Library())
    monkeypatch.setattr(_attention, "lib", Library())
    monkeypatch.setattr(_problem, "plans", {})
    for _ in range(2):  # a new plan, and the kept one
        out, lse = clary.attention(q, k, v, return_lse=True)
    assert seen == [(1, 3, 1, 1, 0x5EED + 3, 12346, at, q.data_ptr(), None) for at in (64, 128)]
    assert held == [(12346, 3, 0x5EED + 3)] * 2 and freed == [64, 128]
    status = 1
    with pytest.raises(clary.InvalidArgument):
        clary.attention(q, k, v, return_lse=True)
    assert freed == [64, 128, 192]
    assert ctypes.sizeof(_structs.Params) % 8 == 0
