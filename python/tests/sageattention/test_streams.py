# SPDX-License-Identifier: Apache-2.0
"""Point 20, on a GPU: streams, devices and graphs."""

import pytest
import torch
from attention import make

from sageattention import sageattn, sageattn_qk_int8_pv_fp16_cuda, sageattn_varlen

pytestmark = pytest.mark.gpu


def test_20_a_stream_of_ones_own():
    """Work that is queued before on the same stream is waited for, and that of others is not needed."""
    q, k, v = make(2, 8, q_len=4096, head_dim=128, device="cuda")
    plain = sageattn(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = [x.clone() for x in (q, k, v)]
        out = sageattn(*late)
    stream.synchronize()
    assert torch.equal(out, plain)


def test_20_two_streams_at_once():
    inputs = [make(2, 8, q_len=2048, head_dim=128, device="cuda") for _ in range(2)]
    plain = [sageattn(*tensors) for tensors in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(5):
        outs = []
        for stream, tensors in zip(streams, inputs):
            with torch.cuda.stream(stream):
                outs.append(sageattn(*tensors))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(outs, plain))


@pytest.mark.parametrize("function", [sageattn, sageattn_qk_int8_pv_fp16_cuda])
def test_20_t57_graph_replayed_on_new_values(function):
    q, k, v = make(1, 4, q_len=1000, device="cuda")
    function(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = function(q, k, v, return_lse=True)
    for _ in range(3):
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
        out.zero_()
        lse.zero_()
        graph.replay()
        expected, expected_lse = function(q, k, v, return_lse=True)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def test_20_graph_of_packed_sequences():
    q, k, v = (x[0] for x in make(1, q_len=300, device="cuda", layout="NHD"))
    cu = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    sageattn_varlen(q, k, v, cu, cu, 200, 200)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sageattn_varlen(q, k, v, cu, cu, 200, 200)
    q.copy_(torch.randn_like(q))
    graph.replay()
    assert torch.equal(out, sageattn_varlen(q, k, v, cu, cu, 200, 200))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second GPU")
def test_20_t62_tensors_of_another_device_than_the_current():
    q, k, v = make(device="cuda:1")
    assert torch.cuda.current_device() == 0
    out = sageattn(q, k, v)
    assert out.device == q.device and torch.cuda.current_device() == 0
    assert torch.equal(out.to("cuda:0"), sageattn(*(x.to("cuda:0") for x in (q, k, v))))


def test_t36_more_heads_than_a_grid_has_blocks():
    q, k, v = make(70000, 1, q_len=8, device="cuda")
    out = sageattn(q, k, v)
    for index in (0, 65535, 65536, 69999):
        assert torch.equal(out[index : index + 1], sageattn(*(x[index : index + 1] for x in (q, k, v))))
