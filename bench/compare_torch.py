#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clary's CPU attention beside PyTorch's CPU scaled_dot_product_attention: same process, same threads, alternated.

    python3 bench/compare_torch.py build/cpu-release/lib/libclary.so --threads 1 2 --head-dim 64 128 --seq 1024 4096
    python3 bench/compare_torch.py LIBRARY --isa avx2 --probe build/NAME/lib/libclary_probe.so --decode 8 32768

"kernel" is clary_attend on packed operands, "call" is clary_attention, quantization included; N(0,1) data, fp32 in
and out, bf16 for PyTorch's bf16; each result is first compared with float64 attention of one head. With --isa avx2
PyTorch is held to AVX2 too. With one thread, times are processor time of that thread, which other work on the machine
does not lengthen; with more, time on the clock. --probe adds what the machine gives at most, taken between the calls;
--decode B KEYS one query for each of 32 heads, over a cache of 8 heads of K and V. Prints medians; --json writes
records as docs/cli.md describes them.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import sys
import time

HELD_TO_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
BASELINE = "torch_fp32"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--seq", type=int, nargs="*", default=[1024, 2048, 4096])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--recipes", nargs="+",
                        default=["int8_int8:accurate", "int8_int8:fast", "int8_bf16:accurate", "fp32_fp32"])
    parser.add_argument("--causal", type=int, nargs="+", default=[], metavar="SEQ", help="lengths under a causal mask")
    parser.add_argument("--isa", help="a tier of Clary's, e.g. avx2; the best one where not given")
    parser.add_argument("--decode", type=int, nargs=2, action="append", default=[], metavar=("B", "KEYS"))
    parser.add_argument("--probe", help="the library of bench/cpu/probe.cc")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json")
    return parser.parse_args()


ARGS = arguments()
if ARGS.isa == "avx2":
    os.environ.update(HELD_TO_AVX2)  # read when PyTorch is loaded

import torch  # noqa: E402
from common import git_commit, load, rel_l1  # noqa: E402

sdpa = torch.nn.functional.scaled_dot_product_attention


def cpu_name() -> str:
    lines = [line.split(":", 1) for line in open("/proc/cpuinfo", encoding="utf-8") if ":" in line]
    about = {name.strip(): value.strip() for name, value in lines}
    if "model name" not in about:
        return platform.machine()
    return f"{about['model name']} (family {about['cpu family']}, model {about['model']}), {os.cpu_count()} cores"


class Problem:
    """Q, K, V and their packed forms, for calls of the C functions."""

    def __init__(self, clary, q, k, v, recipe: str, causal: bool):
        self.library = clary._library
        self.out = torch.full_like(q, float("nan"))
        arrays = {"q": q, "k": k, "v": v, "out": self.out}
        problem, packed = clary._problem, clary._packed
        family = problem.gather(arrays)
        backend = f"cpu:{ARGS.isa}" if ARGS.isa else "cpu"
        options = problem.Options(causal="bottom_right" if causal else "none", recipe=recipe, backend=backend)
        plan = problem.plan_for(family, options, arrays)
        bound = plan.bind(arrays)
        self.params = bound.params
        memory = [family.bytes(layout.bytes, q) for layout in packed._layouts(plan, 0)]
        self.packed = [packed._buffer(family, m, (0, 0), 0) for m in memory]
        self.bytes = memory[1].numel()  # of packed K and V
        self.keep = (q, k, v, plan, bound, memory)

    def run(self, name: str, *structs) -> None:
        status = getattr(self.library.lib, name)(*[s if s is None else ctypes.byref(s) for s in structs])
        self.library.check(status)

    def quantize(self):
        self.run("clary_quantize", self.params, *self.packed, None)

    def kernel(self):
        self.run("clary_attend", self.params, *self.packed)

    def call(self):
        self.run("clary_attention", self.params)


class Probe:
    """What the machine gives at most, between the calls that are measured."""

    PEAKS = ("vnni", "amx")

    def __init__(self, path: str, threads: int):
        self.library = ctypes.CDLL(path)
        self.library.clary_probe_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
        for name in self.PEAKS:
            getattr(self.library, f"clary_probe_{name}").restype = ctypes.c_double
        self.threads = threads

    def read(self, buffer, streams: int) -> None:
        self.library.clary_probe_read(buffer.data_ptr(), buffer.numel(), streams, self.threads)

    def peaks(self, operations: dict) -> dict:
        """Functions that leave the operations they did in `operations`; those of instructions that the machine has."""
        def run(name):
            operations[name] = getattr(self.library, f"clary_probe_{name}")(self.threads)

        for name in self.PEAKS:
            run(name)
        return {("probe", name): lambda name=name: run(name) for name in self.PEAKS if operations[name]}


def measure(candidates: dict, threads: int) -> dict:
    """Each candidate's milliseconds, round by round in turn."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times = {name: [] for name in candidates}
    for _ in range(ARGS.repeat):
        for name, run in candidates.items():
            start = clock()
            run()
            times[name].append((clock() - start) * 1e3)
    return times


def record_of(threads: int, **more) -> dict:
    clock = "1 thread (processor time)" if threads == 1 else f"{threads} threads (time on the clock)"
    torch_is = f"PyTorch {torch.__version__}{' held to AVX2' if ARGS.isa == 'avx2' else ''}"
    return {"date": datetime.date.today().isoformat(), "commit": git_commit(), "machine": cpu_name(), "clock_mhz": None,
            "protocol": f"{ARGS.isa or 'best'} tier, {clock}, {torch_is}, alternated, median of {ARGS.repeat}",
            "backend": "cpu", "tile": 128, "data": "normal", **more}  # fmt: skip


def spread(values: list) -> float:
    quartiles = statistics.quantiles(values, n=4)
    return quartiles[2] - quartiles[0]


def attention(clary, threads: int, dim: int, seq: int, causal: bool, probe):
    generator = torch.Generator().manual_seed(seq + dim)
    q, k, v = (torch.randn(1, ARGS.heads, seq, dim, generator=generator) for _ in range(3))
    half = [t.bfloat16() for t in (q, k, v)]
    head = [t[:, :1].double() for t in (q, k, v)]
    reference = sdpa(*head, is_causal=causal)
    candidates = {(BASELINE, "kernel"): lambda: sdpa(q, k, v, is_causal=causal),
                  ("torch_bf16", "kernel"): lambda: sdpa(*half, is_causal=causal)}  # fmt: skip
    errors = {BASELINE: rel_l1(sdpa(q, k, v, is_causal=causal)[:, :1], reference),
              "torch_bf16": rel_l1(sdpa(*half, is_causal=causal)[:, :1], reference)}  # fmt: skip
    kernels = {BASELINE: BASELINE, "torch_bf16": "torch_bf16"}
    for recipe in ARGS.recipes:
        problem = Problem(clary, q, k, v, recipe, causal)
        problem.call()
        kernels[recipe] = clary.last_kernel()
        errors[recipe] = rel_l1(problem.out[:, :1], reference)
        problem.quantize()
        candidates[recipe, "kernel"], candidates[recipe, "call"] = problem.kernel, problem.call
    operations = {}
    if probe:
        candidates.update(probe.peaks(operations))
    times = measure(candidates, threads)
    peaks = {name: operations[name] / statistics.median(times.pop(("probe", name))) * 1e-9
             for name in operations if operations[name]}  # fmt: skip
    base = statistics.median(times[BASELINE, "kernel"])
    flops = 4.0 * ARGS.heads * seq * seq * dim / (2 if causal else 1)
    for (recipe, what), values in times.items():
        ms = statistics.median(values)
        tops = flops / ms * 1e-9
        print(f"{threads:7} {dim:4} {seq:6} {'causal' if causal else 'full':6} {recipe:20} {what:7} "
              f"{kernels[recipe]:24} {ms:9.2f} {tops * 1e3:8.0f} {base / ms:6.2f} {errors[recipe]:8.5f}"
              + "".join(f" {tops / peak:5.2f}" for peak in peaks.values()), flush=True)  # fmt: skip
        yield record_of(threads, kernel=kernels[recipe], recipe=recipe, what=what, batch=1, q_heads=ARGS.heads,
                        kv_heads=ARGS.heads, q_len=seq, kv_len=seq, head_dim=dim, causal=causal, ms=ms,
                        ms_iqr=spread(values), tops=tops, baseline=BASELINE, baseline_ms=base,
                        ratio=base / ms, rel_l1=errors[recipe],
                        **{f"{name}_tops": peak for name, peak in peaks.items()})  # fmt: skip


def decode(clary, threads: int, batch: int, keys: int, probe):
    generator = torch.Generator().manual_seed(keys)
    # One sequence's K and V for all: in bf16, as their packed forms are what is read.
    k, v = (torch.randn(1, 8, keys, 128, generator=generator).bfloat16().expand(batch, -1, -1, -1) for _ in range(2))
    q = torch.randn(batch, 32, 1, 128, generator=generator)
    for recipe in ARGS.recipes[:2]:
        problem = Problem(clary, q, k, v, recipe, False)
        problem.quantize()
        problem.kernel()
        buffer = torch.ones(problem.bytes, dtype=torch.int8)
        times = measure({"kernel": problem.kernel, 1: lambda: probe.read(buffer, 1), 4: lambda: probe.read(buffer, 4)},
                        threads)  # fmt: skip
        ms, read_ms = (min(statistics.median(times[name]) for name in names) for names in (["kernel"], [1, 4]))
        rate, peak = problem.bytes / ms * 1e3, problem.bytes / read_ms * 1e3
        print(f"{threads:7} {128:4} {keys:6} {'full':6} {recipe:20} decode  {clary.last_kernel():24} {ms:9.2f} "
              f"{rate * 1e-9:8.1f} GB/s, {rate / peak:.2f} of reading as many bytes ({peak * 1e-9:.1f})",
              flush=True)  # fmt: skip
        yield record_of(threads, kernel=clary.last_kernel(), recipe=recipe, what="decode", batch=batch, q_heads=32,
                        kv_heads=8, q_len=1, kv_len=keys, head_dim=128, causal=False, ms=ms,
                        ms_iqr=spread(times["kernel"]), gb_per_s=rate * 1e-9, baseline="read", baseline_ms=read_ms,
                        ratio=rate / peak)  # fmt: skip


def main() -> int:
    if ARGS.decode and not ARGS.probe:
        sys.exit("--decode: needs --probe, what it is compared with")
    clary = load(ARGS.library)
    records = []
    print(f"{cpu_name()}, PyTorch {torch.__version__}; medians")
    print(f"{'threads':>7} {'D':>4} {'S':>6} {'mask':6} {'recipe':20} {'what':7} {'kernel':24} {'ms':>9} {'GOP/s':>8} "
          f"{'ratio':>6} {'rel L1':>8}" + (" of VNNI's and AMX's peak" if ARGS.probe else ""))  # fmt: skip
    for threads in ARGS.threads:
        torch.set_num_threads(threads)
        clary.set_num_threads(threads)
        probe = Probe(ARGS.probe, threads) if ARGS.probe else None
        for dim in ARGS.head_dim:
            for seq, causal in [(seq, False) for seq in ARGS.seq] + [(seq, True) for seq in ARGS.causal]:
                records += attention(clary, threads, dim, seq, causal, probe)
        for batch, keys in ARGS.decode:
            records += decode(clary, threads, batch, keys, probe)
        if ARGS.json:
            with open(ARGS.json, "w", encoding="utf-8") as file:
                json.dump(records, file, indent=1)
                file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
