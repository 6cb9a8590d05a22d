# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors: streams, graphs, devices, memory. The other tests run on a GPU too, by their fixtures."""

import pytest

torch = pytest.importorskip("torch")

import clary  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def quiet():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def qkv(n=200, heads=4, dim=64, dtype=torch.bfloat16, device="cuda", **more):
    return [torch.randn(2, heads, n, dim, device=device, dtype=dtype, **more) for _ in range(3)]


def test_t57_graphs_replay_on_new_values():
    static = qkv()
    clary.attention(*static, return_lse=True)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = clary.attention(*static, return_lse=True)
    for _ in range(3):
        values = qkv()
        for s, t in zip(static, values):
            s.copy_(t)
        out.zero_()
        graph.replay()
        expected, expected_lse = clary.attention(*values, return_lse=True)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def test_a_captured_decode_step_moves_on():
    q, k, v = qkv(64)
    cache, step = clary.KVCache(256), qkv(1)
    cache.append(k, v, q=q)
    plain = clary.KVCache(256)
    plain.append(k, v, q=q)
    cache.packed.append(step[1], step[2])  # the first of its kind, outside the graph
    cache.attend(step[0], causal="bottom_right")
    plain.append(step[1], step[2])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.append(step[1], step[2])
        out = cache.attend(step[0], causal="bottom_right")
    for _ in range(3):
        new = qkv(1)
        for s, t in zip(step, new):
            s.copy_(t)
        graph.replay()
        plain.append(new[1], new[2])
        assert torch.equal(out, plain.attend(new[0], causal="bottom_right"))
    assert cache.packed.lengths.tolist() == [68, 68]


def test_t59_reduce_overhead_is_eager():
    def model(q, k, v):
        return clary.attention(q, k, v, causal=True) * 2

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        tensors = qkv()
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(*tensors), model(*tensors))
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


def test_streams():
    """Work is queued on the current stream: what waits in front of it there is waited for."""
    q, k, v = qkv(2000)
    expected = clary.attention(q, k, v)
    side, late = torch.cuda.Stream(), torch.full_like(q, float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(q)
        out = clary.attention(late, k, v)
    side.synchronize()
    assert torch.equal(out, expected)
    streams, results = [torch.cuda.Stream() for _ in range(2)], []
    for _ in range(10):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append(clary.attention(q, k, v))
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)


def test_nothing_waits():
    """A call returns while the stream is still busy with what came before."""
    tensors = qkv()
    clary.attention(*tensors)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    done = torch.cuda.Event()
    done.record()
    clary.attention(*tensors)
    assert not done.query()


def test_memory_comes_from_torch_and_goes_back():
    tensors = qkv(2048, heads=8, dim=128)
    size = tensors[0].numel() * 2
    clary.attention(*tensors)
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    free = torch.cuda.mem_get_info()[0]
    torch.cuda.reset_peak_memory_stats()
    for _ in range(50):
        out = clary.attention(*tensors)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - base <= size + 4096
    whole = torch.cuda.max_memory_allocated() - base
    expected = clary.explain(tensors[0], device="cuda")["workspace_bytes"]
    assert abs(whole - 2 * size - expected) < 0.1 * size  # two outputs live while the name moves on
    assert torch.cuda.mem_get_info()[0] >= free - 64 * 2**20
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    consumed = clary.attention_consume(tensors)
    assert torch.equal(consumed, out)
    assert torch.cuda.max_memory_allocated() - before < 1.25 * size
    assert torch.cuda.memory_allocated() - before < -1.9 * size


def test_t62_tensors_of_the_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    expected = clary.attention(*qkv())
    torch.manual_seed(0)
    away = [t.to("cuda:1") for t in qkv()]
    assert torch.cuda.current_device() == 0
    out, lse = clary.attention(*away, return_lse=True)
    assert out.device == lse.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    assert torch.equal(out.cpu(), expected.cpu())


def test_mixed_devices():
    q, k, v = qkv()
    for wrong in ([q, k.cpu(), v], [q, k, v.cpu()], [q.cpu(), k, v]):
        with pytest.raises(clary.InvalidArgument, match="on device"):
            clary.attention(*wrong)
    with pytest.raises(clary.InvalidArgument, match="mask: on device 0:0, but q is on 1:0"):
        clary.attention(q, k, v, mask=torch.ones(200, 200, dtype=torch.bool))


def test_cpu_and_gpu_agree():
    q, k, v = qkv()
    for options in ({}, {"causal": True}, {"scale": 0.3, "window": (20, 5)}):
        here, there = clary.attention(q, k, v, **options), clary.attention(q.cpu(), k.cpu(), v.cpu(), **options)
        error = (here.cpu().double() - there.double()).abs().sum() / there.double().abs().sum()
        assert error < 0.012


def test_t21_stale_memory_is_never_read():
    poison = torch.full((64 * 2**20,), float("nan"), device="cuda")
    del poison  # stays in torch's allocator, whose next blocks are NaN
    for n, dim in ((77, 64), (1001, 128), (503, 40)):
        assert torch.isfinite(clary.attention(*qkv(n, dim=dim))).all()
