#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs beside the C call: median of clary.attention minus median of clary_attention on the
same struct, for the smallest shape, alternated.

    python3 bench/python_overhead.py build/cpu-release/lib/libclary.so --device cpu
    python3 bench/python_overhead.py build/cuda/lib/libclary.so --device cuda --json overhead.json

On a GPU both are timed on the host, while the stream is kept from running full. Compiled is torch.ops.clary.attention
through PyTorch's dispatcher, as graphs call it.
"""

import argparse
import json
import statistics
import sys
import time

import torch

from common import git_commit, load

CALLS, ROUNDS = 200, 31


def microseconds(run, device: str) -> float:
    """One call's host time, of CALLS in a row."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    return (time.perf_counter() - start) / CALLS * 1e6


def candidates(clary, device: str, recipe: str) -> dict:
    dtype = torch.bfloat16
    q, k, v = (torch.randn(1, 1, 1, 64, device=device, dtype=dtype) for _ in range(3))
    arrays = {"q": q, "k": k, "v": v, "out": torch.empty_like(q)}
    family = clary._problem.gather(arrays)
    plan = clary._problem.plan_for(family, clary._problem.Options(recipe=recipe), arrays)
    bound = plan.bind(arrays)
    function, reference = clary._library.lib.clary_attention, bound.reference
    clary._library.check(function(reference))
    clary.attention(q, k, v, recipe=recipe)
    return {
        "C call": lambda keep=(bound, arrays): function(reference),
        "clary.attention": lambda: clary.attention(q, k, v, recipe=recipe),
        "with lse": lambda: clary.attention(q, k, v, recipe=recipe, return_lse=True),
        "torch.ops": lambda: torch.ops.clary.attention(q, k, v, recipe=recipe),
        "torch SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--recipes", nargs="+", default=["int8_int8:accurate"])
    parser.add_argument("--json")
    args = parser.parse_args()
    clary = load(args.library)
    clary.set_num_threads(1)  # a call this small is not shared out anyway
    torch.set_num_threads(1)
    records = []
    print(
        f"PyTorch {torch.__version__}, {args.device}, [1, 1, 1, 64] bf16; microseconds, "
        f"median of {ROUNDS} x {CALLS} calls"
    )
    with torch.no_grad():
        for recipe in args.recipes:
            times = {name: [] for name in candidates(clary, args.device, recipe)}
            runs = candidates(clary, args.device, recipe)
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    times[name].append(microseconds(run, args.device))
            base = statistics.median(times["C call"])
            for name, rounds in times.items():
                us = statistics.median(rounds)
                quartiles = statistics.quantiles(rounds, n=4)
                print(f"  {recipe:20} {name:16} {us:7.2f}  (quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f})"
                      f"{'' if name in ('C call', 'torch SDPA') else f'  overhead {us - base:6.2f}'}")  # fmt: skip
                records.append({"commit": git_commit(), "device": args.device, "recipe": recipe, "what": name, "us": us,
                                "overhead_us": us - base, "us_iqr": quartiles[2] - quartiles[0]})  # fmt: skip
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
