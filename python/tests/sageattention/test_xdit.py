# SPDX-License-Identifier: Apache-2.0
"""xDiT (xFuser): point 10. It hands `sageattn` to PyTorch's ring template, HND, for pairs of output and lse."""

import pytest
import torch
from attention import close, exact, make
from processes import run_ranks

import clary
from sageattention import sageattn


def operator(q, k, v, is_causal=False, **_):
    return sageattn(q, k, v, is_causal=is_causal, return_lse=True)


def ring_rank(rank, ranks, causal):
    from torch.distributed import group
    from torch.distributed.tensor.experimental import _attention

    options = getattr(_attention, "_cp_options", None)
    if options is None:
        from torch.distributed.tensor.experimental._context_parallel._attention import _cp_options as options
    options.enable_load_balance = False
    torch.manual_seed(0)
    parts = [x.chunk(ranks, 2)[rank] for x in make()]
    arguments = dict(zip(("query", "key", "value"), parts))
    op = lambda query, key, value, is_causal=False, **_: operator(query, key, value, is_causal)  # noqa: E731
    return _template()(group.WORLD, 2, op, **arguments, is_causal=causal)[:2]


def _template():
    try:
        from torch.distributed.tensor.experimental._context_parallel._attention import _templated_ring_attention
    except ImportError:
        from torch.distributed.tensor.experimental._attention import _templated_ring_attention
    return _templated_ring_attention


@pytest.mark.recent_torch
@pytest.mark.parametrize("causal", [False, True])
def test_10_pytorchs_ring_over_two_processes(tmp_path, causal):
    results = run_ranks(ring_rank, 2, tmp_path, causal)
    out, lse = (torch.cat(parts, 2) for parts in zip(*results))
    reference, lse_reference = exact(*make(), causal and "top_left")
    close(out, reference)
    assert (lse - lse_reference).abs().max() < 0.05


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_10_t54_rings_of_shards_with_different_means(device, ranks):
    """One process, one shard of keys after the other. The error does not grow with the number of shards."""
    q, k, v = make(device=device, q_len=256, kv_len=512)
    shards = list(zip(k.chunk(ranks, 2), v.chunk(ranks, 2)))
    for i, (k_, _) in enumerate(shards):
        k_ += 4 * (i - ranks / 2)  # in place: k too
    reference, lse_reference = exact(q, k, v)
    out, lse = operator(q, *shards[0])
    out = out.float()
    for k_, v_ in shards[1:]:
        more, more_lse = operator(q, k_, v_)
        clary.merge(out, lse, more, more_lse)
    close(out, reference)
    assert (lse.cpu() - lse_reference).abs().max() < 0.1


def test_10_t55_lse_with_grouped_heads_and_a_large_mean(device):
    """The correction for smoothing is fp32 and knows the heads' groups: lse near 100."""
    q, k, v = make(heads=8, kv_heads=2, device=device)
    q, k = q.abs() + 1, k * 0.5 + 8
    _, lse = operator(q, k, v)
    reference = exact(q, k, v)[1]
    assert reference.mean() > 90
    assert (lse.cpu() - reference).abs().max() < 0.05
