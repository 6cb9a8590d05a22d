#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where a process's first call spends its time: B 2, H 16, N 1000, D 128 in bf16, with PyTorch and its device awake.

    python3 bench/first_call.py build/cuda/lib/libclary.so --device cuda

Each line ends when the device is done. "modules" is a call on one token, which on a GPU brings the kernels' code there.
"""

import argparse
import time

import torch

from common import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--whole", action="store_true", help="without the call on one token: what a user waits for")
    args = parser.parse_args()
    q, k, v = (torch.randn(2, 16, 1000, 128, device=args.device).to(torch.bfloat16) for _ in range(3))
    with torch.no_grad():
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    wait()
    begin = last = time.perf_counter()

    def report(what: str) -> None:
        nonlocal last
        wait()
        now = time.perf_counter()
        print(f"{what:12} {(now - last) * 1e3:8.2f} ms")
        last = time.perf_counter()

    clary = load(args.library)
    report("import clary")
    __import__("clary.torch_ops")
    report("operators")
    if not args.whole:
        clary.attention(q[:1, :1, :1], k[:1, :1, :1], v[:1, :1, :1])
        report("modules")
    clary.attention(q, k, v)
    report("first call")
    total = time.perf_counter() - begin
    for what in ("second call", "third call"):
        clary.attention(q, k, v)
        report(what)
    print(f"{'first result':12} {total * 1e3:8.2f} ms from before the import, {clary.last_kernel()}")


if __name__ == "__main__":
    main()
