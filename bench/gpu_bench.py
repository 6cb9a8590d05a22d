#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clary's CUDA kernels beside PyTorch's cuDNN bf16 attention on one GPU: same process, alternated.

    python3 bench/gpu_bench.py build/cuda/lib/libclary.so -o bench/results/h200_attention.json
    python3 bench/gpu_bench.py build/cuda/lib/libclary.so --floors

Shapes of B*S = 32768 tokens and H*D = 2048, bf16 N(0, 1). T is PyTorch's SDPA with the cuDNN backend. Every candidate
runs 12 times back to back between two events, round by round, in another order each time: one that draws much power leaves
lower clocks to the next. Medians of 7 rounds. Each result is first compared
with exact fp32 attention on one head. "kernel" is clary_attend on packed buffers, "call" is clary_attention. Then
clary_quantize alone: its time against 13 bytes for each (token, channel), which has an element of Q, of K and of V. Then decode
steps, clary_attend of one query to packed K and V: the bytes of K and V that they must read, codes, scales and digits, over
their time, beside the rate at which PyTorch adds up as many bytes. --floors: attention alone, the shapes and recipes that have
a floor, in three minutes, and the floors beside it. Needs PyTorch and nothing else.
"""

import argparse
import contextlib
import ctypes
import datetime
import json
import math
import os
import random
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import git_commit, load, rel_l1

TOKENS, WIDTH = 32768, 2048  # B * S, H * D
DECODE = [(64, 8192), (64, 32768), (1, 131072)]  # batch, keys; 32 heads, 8 of K and V, head dim 128
CALLS, ROUNDS, WARM_UP = 12, 7, 3
ACCURATE, FAST, FP8 = "int8_int8:accurate", "int8_int8:fast", "int8_fp8:fast"
# What Hopper's kernels shall reach at least, in T: (head dim, S, what): {recipe: (full, causal)}.
FLOORS = {
    (64, 1024, "call"): {ACCURATE: (0.62, 0.50), FAST: (0.68, 0.56)},
    (64, 4096, "kernel"): {ACCURATE: (1.12, 1.16), FAST: (1.25, 1.25)},
    (64, 16384, "kernel"): {ACCURATE: (1.20, 1.24), FAST: (1.36, 1.36)},
    (64, 16384, "call"): {ACCURATE: (1.12, 1.12), FAST: (1.26, 1.24)},
    (96, 16384, "kernel"): {ACCURATE: (1.20, 1.20)},
    (128, 1024, "call"): {ACCURATE: (0.70, 0.58), FAST: (0.78, 0.66)},
    (128, 4096, "kernel"): {ACCURATE: (1.20, 1.30), FAST: (1.32, 1.42), FP8: (1.30, 1.38)},
    (128, 16384, "kernel"): {ACCURATE: (1.32, 1.32), FAST: (1.45, 1.48), FP8: (1.42, 1.46),
                             "int8_fp16:accurate": (1.12, 1.12)},
    (128, 16384, "call"): {ACCURATE: (1.22, 1.20), FAST: (1.33, 1.35)},
    (192, 16384, "kernel"): {ACCURATE: (1.20, 1.20)},
    (256, 4096, "kernel"): {FP8: (1.50, 1.80)},
    (256, 16384, "kernel"): {ACCURATE: (1.15, 1.20), FP8: (1.60, 1.70)},
}  # fmt: skip
PROTOCOL = f"{CALLS} calls back to back between events, alternated in shuffled order, median of {ROUNDS}"


class Problem:
    """Q, K and V in every form that a candidate reads."""

    def __init__(self, clary, q, k, v, recipe: str, causal: bool):
        _problem, _packed, self.library = clary._problem, clary._packed, clary._library
        self.out = torch.full_like(q, float("nan"))
        arrays = {"q": q, "k": k, "v": v, "out": self.out}
        family = _problem.gather(arrays)
        options = _problem.Options(causal="top_left" if causal else "none", recipe=recipe, backend="cuda")
        plan = _problem.plan_for(family, options, arrays)
        bound = plan.bind(arrays)
        self.params = bound.params
        memory = [family.bytes(layout.bytes, q) for layout in _packed._layouts(plan, 0)]
        self.packed = [_packed._buffer(family, m, (1, q.get_device()), 0) for m in memory]
        self.sections = [self.sizes_of(layout) for layout in _packed._layouts(plan, 0)]
        self.keep = (q, k, v, plan, bound, memory)

    @staticmethod
    def sizes_of(layout) -> dict:
        """Bytes of each section."""
        sections = list(layout.sections[: layout.section_count])
        ends = [s.offset for s in sections[1:]] + [layout.bytes]
        return {s.name.decode(): end - s.offset for s, end in zip(sections, ends)}

    def call(self, name: str, *structs) -> None:
        status = getattr(self.library.lib, name)(*[s if s is None else ctypes.byref(s) for s in structs])
        self.library.check(status)

    def quantize(self):
        self.call("clary_quantize", self.params, *self.packed, None)

    def attend(self):
        self.call("clary_attend", self.params, *self.packed)

    def attention(self):
        self.call("clary_attention", self.params)


def measure(candidates: dict) -> dict:
    """Milliseconds of one call, by candidate: the rounds' list."""
    for run in candidates.values():
        for _ in range(WARM_UP):
            run()
    times = {name: [] for name in candidates}
    shuffle = random.Random(1).shuffle
    for _ in range(ROUNDS):
        order = list(candidates)
        shuffle(order)
        for name in order:
            run = candidates[name]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(CALLS):
                run()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / CALLS)
    return times


def clock_mhz():
    with contextlib.suppress(Exception):
        return torch.cuda.clock_rate()
    return None


def exact_head(q, k, v, causal):
    """fp32 attention of the first head, in pieces of rows."""
    q, k, v = (t[:1, :1].float() for t in (q, k, v))
    keys = torch.arange(k.shape[2], device=k.device)
    pieces = []
    for first in range(0, q.shape[2], 2048):
        scores = q[:, :, first : first + 2048] @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if causal:
            rows = torch.arange(first, first + scores.shape[2], device=k.device)
            scores.masked_fill_(keys[None, :] > rows[:, None], float("-inf"))
        pieces.append(scores.softmax(-1) @ v)
    return torch.cat(pieces, 2)


def record(base: dict, q: torch.Tensor, rounds: list, **fields) -> dict:
    """What every record says of a measurement on Q, K and V of q's shape; rounds in milliseconds."""
    batch, heads, seq, dim = q.shape
    quartiles = statistics.quantiles(rounds, n=4)
    return {**base, "data": "normal", "batch": batch, "q_heads": heads, "kv_heads": heads, "q_len": seq,
            "kv_len": seq, "head_dim": dim, "ms": statistics.median(rounds),
            "ms_iqr": quartiles[2] - quartiles[0], **fields}  # fmt: skip


def attention_records(clary, dim: int, seq: int, causal: bool, recipes: list, base: dict) -> list:
    batch, heads = TOKENS // seq, WIDTH // dim
    generator = torch.Generator("cuda").manual_seed(seq + dim)
    q, k, v = (torch.randn(batch, heads, seq, dim, generator=generator, device="cuda", dtype=torch.bfloat16)
               for _ in range(3))  # fmt: skip
    reference = exact_head(q, k, v, causal)

    def cudnn():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    candidates, errors, kernels = {("cudnn_bf16", "kernel"): cudnn}, {}, {}
    errors[("cudnn_bf16", "kernel")] = rel_l1(cudnn()[:1, :1], reference)
    for recipe in recipes:
        try:
            problem = Problem(clary, q, k, v, recipe, causal)
            problem.attention()
        except clary.Error as error:
            print(f"  {recipe}: {error}")
            continue
        kernels[recipe] = clary.last_kernel()
        errors[(recipe, "call")] = rel_l1(problem.out[:1, :1], reference)
        problem.out.fill_(float("nan"))
        problem.quantize()
        problem.attend()
        errors[(recipe, "kernel")] = rel_l1(problem.out[:1, :1], reference)
        candidates[(recipe, "kernel")], candidates[(recipe, "call")] = problem.attend, problem.attention
    times = measure(candidates)
    flops = 4.0 * batch * heads * seq * seq * dim / (2 if causal else 1)
    t_ms = statistics.median(times[("cudnn_bf16", "kernel")])
    records = []
    for (name, what), rounds in times.items():
        last = record(base, q, rounds, kernel=kernels.get(name, name), recipe=name, what=what, causal=causal)
        ms = last["ms"]
        last.update(tops=flops / ms * 1e-9, baseline="cudnn_bf16", baseline_ms=t_ms, ratio=t_ms / ms,
                    rel_l1=errors[(name, what)])  # fmt: skip
        records.append(last)
        print(f"{dim:4} {seq:6} {'causal' if causal else 'full':6} {name:24} {what:7} {ms:9.4f} {last['tops']:7.1f} "
              f"{last['ratio']:6.3f} {last['rel_l1']:8.5f}", flush=True)  # fmt: skip
    return records


def floor_shapes() -> list:
    """Head dim, S and recipes of everything that has a floor."""
    shapes = sorted({(dim, seq) for dim, seq, _ in FLOORS})
    return [(dim, seq, sorted({r for key, floors in FLOORS.items() if key[:2] == (dim, seq) for r in floors}))
            for dim, seq in shapes]  # fmt: skip


def print_floors(records: list) -> None:
    reached = {(r["head_dim"], r["q_len"], r["what"], r["recipe"], r["causal"]): r["ratio"] for r in records}
    print(f"\n{'D':>4} {'S':>6} {'what':7} {'recipe':24} {'full':>16} {'causal':>16}   x T, of the floor")
    for (dim, seq, what), floors in FLOORS.items():
        for recipe, pair in floors.items():
            ratios = [reached.get((dim, seq, what, recipe, causal), math.nan) for causal in (False, True)]
            texts = [f"{ratio:5.2f} {floor:5.2f} {'' if ratio >= floor else 'below':5}"
                     for ratio, floor in zip(ratios, pair)]  # fmt: skip
            print(f"{dim:4} {seq:6} {what:7} {recipe:24} {texts[0]:>16} {texts[1]:>16}", flush=True)


def quantize_records(clary, recipes: list, base: dict) -> list:
    batch, heads, seq, dim = 4, 32, 4096, 128
    q, k, v = (torch.randn(batch, heads, seq, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    byte_count = 13.0 * q.numel()  # 6 read (some twice), codes, digits and scales written
    copy_from = torch.empty(int(2e9), dtype=torch.uint8, device="cuda")
    copy_to = torch.empty_like(copy_from)
    candidates = {"copy": lambda: copy_to.copy_(copy_from)}
    for recipe in recipes:
        try:
            problem = Problem(clary, q, k, v, recipe, False)
            problem.quantize()
        except clary.Error as error:
            print(f"  {recipe}: {error}")
            continue
        candidates[recipe] = problem.quantize
    times = measure(candidates)
    copy_rate = 2.0 * copy_from.numel() / statistics.median(times["copy"]) * 1e-6
    print(f"\nquantize B{batch} H{heads} S{seq} D{dim}: GB/s at 13 bytes a (token, channel) (device copy here: "
          f"{copy_rate:.0f})")  # fmt: skip
    records = []
    for recipe, rounds in times.items():
        if recipe == "copy":
            continue
        last = record(base, q, rounds, kernel="quantize", recipe=recipe, what="quantize", causal=False)
        ms = last["ms"]
        rate = byte_count / ms * 1e-6
        print(f"  {recipe:24} {ms:8.4f} ms {rate:7.0f} GB/s, {copy_rate / rate:5.2f} x the copy's time", flush=True)
        last.update(tops=None, gb_per_s=rate, baseline="device_copy", baseline_ms=byte_count / copy_rate * 1e-6,
                    ratio=rate / copy_rate, rel_l1=None)  # fmt: skip
        records.append(last)
    return records


def decode_records(clary, batch: int, keys: int, recipes: list, base: dict, q_len: int = 1) -> list:
    heads, kv_heads, dim = 32, 8, 128
    generator = torch.Generator("cuda").manual_seed(batch + keys)
    q, k, v = (torch.randn(batch, h, n, dim, generator=generator, device="cuda", dtype=torch.bfloat16)
               for h, n in ((heads, q_len), (kv_heads, keys), (kv_heads, keys)))  # fmt: skip
    reference = exact_head(q, k, v, False)
    problems, errors = {}, {}
    for recipe in recipes:
        try:
            problem = Problem(clary, q, k, v, recipe, False)
            problem.quantize()
            problem.attend()
        except clary.Error as error:
            print(f"  {recipe}: {error}")
            continue
        problems[recipe], errors[recipe] = problem, rel_l1(problem.out[:1, :1], reference)
    read = {recipe: sum(size for name, size in problem.sections[1].items()
                        if name in ("k_codes", "k_scale", "tile_base", "v_codes", "v_scale", "v_weight"))
            for recipe, problem in problems.items()}  # fmt: skip
    candidates = {recipe: problem.attend for recipe, problem in problems.items()}
    buffers = {recipe: torch.ones(size // 4, device="cuda") for recipe, size in read.items()}
    candidates |= {("sum", recipe): buffer.sum for recipe, buffer in buffers.items()}
    times = measure(candidates)
    print(f"\ndecode B{batch} H{heads}/{kv_heads} {q_len} query, {keys} keys, D{dim}: GB/s of K and V read, beside a sum's "
          "of as many bytes")  # fmt: skip
    records = []
    for recipe, bytes_read in read.items():
        last = record(base, q, times[recipe], kernel="attend", recipe=recipe, what="decode", causal=False,
                      kv_heads=kv_heads, kv_len=keys)  # fmt: skip
        rate, sum_ms = bytes_read / last["ms"] * 1e-6, statistics.median(times[("sum", recipe)])
        last.update(tops=None, gb_per_s=rate, baseline="sum", baseline_ms=sum_ms, ratio=sum_ms / last["ms"],
                    rel_l1=errors[recipe])  # fmt: skip
        records.append(last)
        print(f"  {recipe:24} {last['ms']:8.4f} ms {rate:7.0f} GB/s, {last['ratio']:5.3f} of the sum's "
              f"{bytes_read / sum_ms * 1e-6:5.0f}, rel L1 {errors[recipe]:8.5f}", flush=True)  # fmt: skip
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("-o", "--output", help="JSON file of records")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--causal", choices=["both", "full", "causal"], default="both")
    parser.add_argument("--recipes", nargs="+",
                        default=["int8_int8:accurate", "int8_int8:fast", "int8_fp16:accurate", "bf16_bf16"])  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=["attention", "quantize", "decode"],
                        default=["attention", "quantize", "decode"])  # fmt: skip
    parser.add_argument("--floors", action="store_true", help="attention alone, where it has a floor")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_bench: PyTorch finds no GPU")
        return 2
    clary = load(args.library)
    name = torch.cuda.get_device_name()
    base = {"date": datetime.date.today().isoformat(), "commit": git_commit(), "machine": name,
            "clock_mhz": clock_mhz(), "protocol": PROTOCOL, "backend": "cuda"}  # fmt: skip
    print(f"{name}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; "
          f"{clary.build_info()}\n{PROTOCOL}; T: cudnn_bf16")  # fmt: skip
    records = []
    only = ["attention"] if args.floors else args.only
    shapes = floor_shapes() if args.floors else [(d, s, args.recipes) for d in args.head_dim for s in args.seq]
    masks = [m for m in (False, True) if args.causal == "both" or m == (args.causal == "causal")]
    with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        if "attention" in only:
            print(f"{'D':>4} {'S':>6} {'mask':6} {'recipe':24} {'what':7} {'ms':>9} {'TOPS':>7} {'x T':>6} {'rel L1':>8}")
            for dim, seq, recipes in shapes:
                for causal in masks:
                    records += attention_records(clary, dim, seq, causal, recipes, base)
        if args.floors:
            print_floors(records)
        if "quantize" in only:
            records += quantize_records(clary, args.recipes, base)
        if "decode" in only:
            for batch, keys in DECODE:
                records += decode_records(clary, batch, keys, args.recipes, base)
    if args.output:
        os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
