# SPDX-License-Identifier: Apache-2.0
"""Point 21: the drop-in inside PyTorch's compiler. The operator itself is tested with clary."""

import pytest
import torch
from attention import make

import sageattention
from sageattention import sageattn, sageattn_varlen
from sageattn3 import sageattn3_blackwell

pytestmark = pytest.mark.recent_torch
FUNCTIONS = [getattr(sageattention, name) for name in sageattention.__all__ if name.startswith("sageattn_qk")]
FUNCTIONS += [sageattn, sageattn3_blackwell]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, _):
        self.graphs += 1
        return graph


def same(a, b):
    assert torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype and a.device == b.device


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_21_t59_one_graph_with_the_same_bits(device, function):
    def block(q, k, v, mask):
        out, lse = function(q * 1, k, v, is_causal=True, sm_scale=0.2, attn_mask=mask, return_lse=True)
        return out + 0, lse + 0

    q, k, v = make(device=device)
    mask = torch.rand(1, 1, 1, 200, device=device) < 0.5
    for made, expected in zip(
        torch.compile(block, backend="aot_eager", fullgraph=True)(q, k, v, mask), block(q, k, v, mask)
    ):
        same(made, expected)


def test_21_t59_dynamic_lengths(device):
    backend = Counting()
    call = lambda q, k, v: sageattention.sageattn_qk_int8_pv_fp8_cuda(q, k, v, is_causal=True, smooth_v=True)  # noqa: E731
    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    for length in (100, 130, 177, 64):
        tensors = make(q_len=length, kv_len=length + 3, device=device)
        same(compiled(*tensors), call(*tensors))
    assert backend.graphs == 1


def test_21_varlen_of_dynamic_lengths(device):
    backend = Counting()

    def call(q, k, v, cu, longest):
        return sageattn_varlen(q, k, v, cu, cu, longest, longest, is_causal=True, tensor_layout="NHD")

    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    for length in (100, 130, 177):
        q, k, v = (x[0] for x in make(1, q_len=2 * length, device=device, layout="NHD"))
        cu = torch.tensor([0, length, 2 * length], dtype=torch.int32, device=device)
        same(compiled(q, k, v, cu, length), call(q, k, v, cu, length))
    assert backend.graphs == 1


def test_21_inductor(device):
    q, k, v = make(device=device)
    compiled = torch.compile(lambda q, k, v: sageattn(q, k, v) * 2, fullgraph=True)
    same(compiled(q, k, v), sageattn(q, k, v) * 2)


@pytest.mark.gpu
def test_21_t59_reduce_overhead():
    q, k, v = make(device="cuda")
    compiled = torch.compile(lambda q, k, v: sageattn(q, k, v) * 2, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        q = torch.randn_like(q)
        same(compiled(q, k, v).clone(), sageattn(q, k, v) * 2)


def test_21_fake_tensors(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = make(device=device, layout="NHD")
    out, lse = sageattn(q, k, v, tensor_layout="NHD", return_lse=True)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        fake_out, fake_lse = sageattn(*fakes, tensor_layout="NHD", return_lse=True)
    for fake, real in ((fake_out, out), (fake_lse, lse)):
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (
            real.shape,
            real.stride(),
            real.dtype,
            real.device,
        )


def test_21_errors_are_found_while_tracing(device):
    for wrong in (dict(no_such=1), dict(tensor_layout="X"), dict(dropout_p=0.5)):
        with pytest.raises(Exception, match="no_such|tensor_layout|dropout_p|exception"):
            torch.compile(lambda q, k, v, w=wrong: sageattn(q, k, v, **w), backend="eager", fullgraph=True)(
                *make(device=device)
            )


def test_21_torch_compiler_disable(device):
    """How KJNodes wraps it unless told otherwise."""
    q, k, v = make(device=device)
    assert torch.equal(torch.compiler.disable()(sageattn)(q, k, v), sageattn(q, k, v))


@pytest.mark.parametrize("which", range(3))
def test_21_tensors_that_are_still_on_their_way(device, which):
    """What a collective operation gives: a tensor without memory until it is waited for, and views of it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    tensors = make(device=device)
    plain = sageattn(*tensors)
    on_its_way = AsyncCollectiveTensor(torch.cat([tensors[which]] * 2)).chunk(2)[1]
    assert type(on_its_way) is not torch.Tensor
    tensors[which] = on_its_way
    assert torch.equal(sageattn(*tensors), plain)
