# SPDX-License-Identifier: Apache-2.0
"""FramePack and musubi-tuner: point 6. Text is padded, so each batch item is two sequences: what counts, and the
rest."""

import torch
from attention import close, exact, make

from sageattention import sageattn, sageattn_varlen


def test_06_bounds_of_two_sequences_for_each_item(device):
    q, k, v = make(2, device=device, layout="NHD")
    used = [200, 131]  # of 200; the first item's second sequence is empty
    cu = torch.zeros(5, dtype=torch.int32)
    for i, n in enumerate(used):
        cu[2 * i + 1], cu[2 * i + 2] = i * 200 + n, (i + 1) * 200
    cu = cu.to(device)
    packed = (x.reshape(-1, 4, 64) for x in (q, k, v))
    out = sageattn_varlen(*packed, cu, cu, 200, 200).view(2, 200, 4, 64)
    for i, n in enumerate(used):
        item = [x[i : i + 1, :n] for x in (q, k, v)]
        close(out[i : i + 1, :n], exact(*item, layout="NHD")[0])
    rest = [x[1:, 131:] for x in (q, k, v)]
    close(out[1:, 131:], exact(*rest, layout="NHD")[0])


def test_06_t27_keys_of_a_sequence_may_be_empty(device):
    q, k, v = (x.flatten(0, 1) for x in make(1, device=device, layout="NHD"))
    cu_q = torch.tensor([0, 100, 200], dtype=torch.int32, device=device)
    cu_k = torch.tensor([0, 0, 200], dtype=torch.int32, device=device)
    out, lse = sageattn_varlen(q, k, v, cu_q, cu_k, 100, 200, return_lse=True)
    assert (out[:100] == 0).all() and (lse[:, :100] == float("-inf")).all()
    close(out[None, 100:], exact(q[None, 100:], k[None], v[None], layout="NHD")[0])


def test_06_t17_each_sequence_has_its_own_mean(device):
    q, k, v = (x.flatten(0, 1) for x in make(2, device=device, layout="NHD"))
    k[:200] += 20
    k[200:] -= 20
    cu = torch.tensor([0, 200, 400], dtype=torch.int32, device=device)
    out = sageattn_varlen(q, k, v, cu, cu, 200, 200)
    apart = [sageattn(*(x[None, s : s + 200] for x in (q, k, v)), tensor_layout="NHD")[0] for s in (0, 200)]
    assert torch.equal(out, torch.cat(apart))


def test_06_dense_nhd(device):
    q, k, v = make(2, device=device, layout="NHD")
    close(sageattn(q, k, v, tensor_layout="NHD"), exact(q, k, v, layout="NHD")[0])
