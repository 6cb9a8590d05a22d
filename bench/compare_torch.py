#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clary's CPU attention beside PyTorch's CPU scaled_dot_product_attention: same process, same threads, alternated.

    python3 bench/compare_torch.py build/cpu-release/lib/libclary.so --threads 1 2 --head-dim 64 128 --seq 1024 4096

Times whole calls (quantization included) on N(0,1) data, after each result was compared with float64 attention.
Prints medians and the ratio to PyTorch; --json writes records as docs/cli.md describes them.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time

import torch

from common import git_commit, load, rel_l1


def cpu_name() -> str:
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--recipes", nargs="+", default=["int8_int8:accurate", "int8_int8:fast", "fp32_fp32"])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json")
    args = parser.parse_args()

    clary = load(args.library)
    records = []
    print(f"{cpu_name()}, PyTorch {torch.__version__}, {os.cpu_count()} cores; whole calls, fp32 in and out, medians")
    print(f"{'threads':>7} {'D':>4} {'S':>6} {'recipe':22} {'kernel':24} {'ms':>9} {'torch ms':>9} {'ratio':>6} {'rel L1':>8}")
    for threads in args.threads:
        torch.set_num_threads(threads)
        clary.set_num_threads(threads)
        for dim in args.head_dim:
            for seq in args.seq:
                generator = torch.Generator().manual_seed(seq + dim)
                q, k, v = (torch.randn(1, args.heads, seq, dim, generator=generator) for _ in range(3))
                out = torch.empty_like(q)

                def baseline():
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=args.causal)

                head = [t[:, :1].double() for t in (q, k, v)]
                reference = torch.nn.functional.scaled_dot_product_attention(*head, is_causal=args.causal)
                errors, kernels = {}, {}
                for recipe in args.recipes:
                    clary.attention(q, k, v, causal=args.causal, recipe=recipe, out=out)
                    kernels[recipe] = clary.last_kernel()
                    errors[recipe] = rel_l1(out[:, :1], reference)
                times = {name: [] for name in ["torch", *args.recipes]}
                for _ in range(args.repeat):
                    for name in times:
                        start = time.perf_counter()
                        if name == "torch":
                            baseline()
                        else:
                            clary.attention(q, k, v, causal=args.causal, recipe=name, out=out)
                        times[name].append((time.perf_counter() - start) * 1e3)
                base = statistics.median(times["torch"])
                for recipe in args.recipes:
                    ms = statistics.median(times[recipe])
                    quartiles = statistics.quantiles(times[recipe], n=4)
                    print(f"{threads:7} {dim:4} {seq:6} {recipe:22} {kernels[recipe]:24} {ms:9.2f} {base:9.2f} "
                          f"{base / ms:6.2f} {errors[recipe]:8.5f}", flush=True)  # fmt: skip
                    flops = 4.0 * args.heads * seq * seq * dim / (2 if args.causal else 1)
                    records.append({
                        "date": datetime.date.today().isoformat(), "commit": git_commit(), "machine": cpu_name(),
                        "clock_mhz": None, "protocol": f"alternated, median of {args.repeat}, {threads} threads",
                        "backend": "cpu", "kernel": kernels[recipe], "recipe": recipe, "tile": 128, "data": "normal",
                        "what": "call", "batch": 1, "q_heads": args.heads, "kv_heads": args.heads, "q_len": seq,
                        "kv_len": seq, "head_dim": dim, "causal": args.causal, "ms": ms,
                        "ms_iqr": quartiles[2] - quartiles[0], "tops": flops / ms * 1e-9, "baseline": "torch_fp32",
                        "baseline_ms": base, "ratio": base / ms, "rel_l1": errors[recipe],
                    })  # fmt: skip
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
