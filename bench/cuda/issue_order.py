#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the exponentials' block of a Hopper kernel takes to issue, as ptxas has ordered it, without a GPU.

    cuobjdump -sass -fun NAME build/cuda/src/cuda/CMakeFiles/clary_cuda_sm90_int8_int8_d64.dir/sm90/attention.cu.o |
        python3 bench/cuda/issue_order.py

The block is the one with 60 exponentials or more between two branches; without masks it comes first. It is issued in order,
by one warp alone and by two that share a scheduler, each pipe taking instructions at sm_90's rate (CUDA's table of
throughputs): MUFU one in 8 cycles, conversions, integer maxima and dot products one in 2, FMA one a cycle. Cycles; less than 8
for each exponential is impossible (two warps: 16). Differences of 5 % between orders were 5 % of the kernel's time on the GPU
(docs/kernels/sm90.md).
"""

from __future__ import annotations

import re
import sys

# Opcode: pipe, cycles between two of them, cycles to the result.
TIMES = {
    "MUFU": ("xu", 8, 22), "I2FP": ("alu", 2, 5), "F2IP": ("alu", 2, 6), "VIMNMX": ("alu", 2, 5), "VIMNMX3": ("alu", 2, 5),
    "FFMA": ("fma", 1, 4), "FMUL": ("fma", 1, 4), "FADD": ("fma", 1, 4), "IMAD": ("fma", 1, 5), "IDP": ("fma", 2, 5),
    "LDS": ("memory", 2, 30), "SHFL": ("memory", 2, 25),
}  # fmt: skip
OTHERS, UNIFORM = ("alu", 2, 5), ("uniform", 2, 8)
FEWEST = 60  # exponentials of the block


def blocks(sass: str) -> list[list[str]]:
    """Runs of instructions between branches that hold enough exponentials."""
    found, block = [], []
    for line in sass.splitlines():
        match = re.match(r"\s+/\*[0-9a-f]{4,5}\*/\s+(.*?);", line)
        if not match:
            continue
        if re.search(r"\b(BRA|BSYNC|BSSY|EXIT|WARPGROUP)\b", match[1]):
            found.append(block)
            block = []
        else:
            block.append(match[1])
    found = [b for b in found if sum("MUFU.EX2" in i for i in b) >= FEWEST]
    return sorted(found, key=lambda b: sum("ISETP" in i for i in b))  # masks compare


def parsed(instruction: str) -> tuple[tuple[str, int, int], list[str], list[str]]:
    """Its times, the registers that it writes, and those that it reads."""
    opcode, _, operands = re.sub(r"^@!?U?P\w+ +", "", instruction).partition(" ")
    registers = [re.findall(r"\bR\d+\b", operand) for operand in operands.split(",")]
    times = UNIFORM if opcode.startswith("U") else TIMES.get(opcode.split(".")[0], OTHERS)
    return times, registers[0], [r for operand in registers[1:] for r in operand]


def cycles(block: list[str], warps: int) -> int:
    work = [parsed(instruction) for instruction in block]
    at, ready, free = [0] * warps, [{} for _ in range(warps)], {}
    now = 0
    while min(at) < len(work):
        for warp in range(warps):
            if at[warp] == len(work):
                continue
            (pipe, interval, latency), writes, reads = work[at[warp]]
            if free.get(pipe, 0) > now or any(ready[warp].get(r, 0) > now for r in reads + writes):
                continue
            free[pipe] = now + interval
            ready[warp].update(dict.fromkeys(writes, now + latency))
            at[warp] += 1
            break
        now += 1
    return now


def main() -> int:
    found = blocks(sys.stdin.read())
    if not found:
        print(f"no block with {FEWEST} exponentials", file=sys.stderr)
        return 1
    for block in found:
        count = sum("MUFU.EX2" in i for i in block)
        print(f"{len(block)} instructions, {count} exponentials: {cycles(block, 1)} cycles alone (at least {8 * count}), "
              f"{cycles(block, 2)} of two warps (at least {16 * count})")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
