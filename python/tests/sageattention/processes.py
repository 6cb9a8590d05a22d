# SPDX-License-Identifier: Apache-2.0
"""Runs a function as several ranks of a gloo process group on this machine."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_DEADLINE = timedelta(seconds=120)


def _rank(rank, function, ranks, folder, arguments):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=_DEADLINE
    )
    try:
        torch.save(function(rank, ranks, *arguments), f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_ranks(function, ranks, folder, *arguments):
    """[function(rank, ranks, *arguments) for each rank], computed at the same time in processes of their own."""
    mp.spawn(_rank, (function, ranks, folder, arguments), ranks)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(ranks)]
