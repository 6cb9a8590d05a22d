# SPDX-License-Identifier: Apache-2.0
"""``python -m clary doctor``: what this machine is, what of Clary runs on it, and whether it computes what it should.

Every figure of the self-test is the relative L1 distance to exact attention in float64, which the library's own
reference backend computes.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from . import _library
from ._explain import Kernel, explain, gpu_backend, kernels

#: The error that each preset may have on normal data of the self-test's size: twice what docs/accuracy.md records for
#: it.
_CEILING = {
    "int8_int8": 0.03,
    "int8_fp16": 0.024,
    "int8_bf16": 0.03,
    "int8_fp8": 0.08,
    "int4_int8": 0.3,
    "int4_fp16": 0.3,
    "int4_fp8": 0.3,
    "fp4_fp4": 0.4,
    "fp16_fp16": 2e-3,
    "bf16_bf16": 1.2e-2,
    "fp32_fp32": 1e-4,
}
_NEWEST_DRIVER_API = "libcuda.so.1"


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_cuda() -> tuple[int, int] | None:
    """The CUDA version that the NVIDIA driver of this machine supports; None without a driver."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL(_NEWEST_DRIVER_API).cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def gpu_advice(found: list[Kernel], driver: tuple[int, int] | None) -> str:
    """Why no GPU is used and what to do, in a sentence; or which kernels run."""
    maca = [k for k in found if k.backend == "maca"]
    cuda = [k for k in found if k.backend == "cuda"]
    if maca and not cuda:
        archs = sorted({k.arch for k in maca if k.usable})
        return f"MACA kernels for {', '.join(archs)} run here" if archs else f"no MACA kernel runs here: {maca[0].reason}"
    if not cuda:
        return (
            "this build has no CUDA backend; install the wheel with CUDA, or build with CLARY_CUDA_ARCHS "
            "(docs/python.md)"
        )
    if usable := sorted({k.arch for k in cuda if k.usable}):
        return f"CUDA kernels for {', '.join(usable)} run here"
    if driver is None:
        return "no NVIDIA driver on this machine (libcuda.so.1 is absent or finds no GPU)"
    if driver < (13, 0):
        return (
            f"the NVIDIA driver supports CUDA {driver[0]}.{driver[1]}, and this build's code was made by nvcc 13, "
            "which needs driver 580 or newer: update the driver"
        )
    reasons = [k.reason for k in cuda if "this build" not in k.reason] or [cuda[0].reason]
    return f"no CUDA kernel runs here: {reasons[0]}"


def environment() -> dict[str, Any]:
    digest = hashlib.sha256(Path(_library.path).read_bytes()).hexdigest()[:12]
    found = kernels()
    driver = driver_cuda()
    torch = sys.modules.get("torch")
    gpus = []
    if torch is not None and torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            gpus.append(f"{p.name}, sm{p.major}{p.minor}, {p.total_memory / 2**30:.0f} GiB")
    return {
        "clary": _library.version,
        "build": _library.build_info(),
        "library": f"{_library.path} (sha256 {digest})",
        "python": platform.python_version(),
        "os": f"{platform.platform()}, {platform.machine()}",
        "torch": _version_of("torch"),
        "numpy": _version_of("numpy"),
        "transformers": _version_of("transformers"),
        "diffusers": _version_of("diffusers"),
        "sageattention": _version_of("sageattention"),
        "cpu_threads": _library.get_num_threads(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("CLARY_")},
        "driver": f"CUDA {driver[0]}.{driver[1]}" if driver else None,
        "gpus": gpus,
        "gpu_note": gpu_advice(found, driver),
        "kernels": {k.name: k.reason or "usable" for k in found if k.backend != "reference"},
    }


def chosen_kernels(device: str) -> dict[str, str]:
    """The kernel that recipe "auto" takes, by head dim."""
    return {
        f"head_dim {dim}": explain((1, 8, 1024, dim), device=device)["kernel"] or "none" for dim in (64, 128, 256, 512)
    }


def self_test() -> list[dict[str, Any]]:
    """Each usable kernel once, on N(0, 1) data [1, 4, 256, 64] with 2 kv heads, causal; where another would run instead,
    at head dim 32, which special kernels leave to the general ones. Needs numpy or PyTorch."""
    torch = sys.modules.get("torch")
    results = []
    for kernel in kernels():
        if not kernel.usable or kernel.backend == "reference":
            continue
        device = "cpu" if kernel.backend == "cpu" else "cuda"
        if device == "cuda" and kernel.backend != gpu_backend():
            continue
        if device == "cuda" and (torch is None or not torch.cuda.is_available()):
            continue
        results.append({"kernel": kernel.name, **_test_one(kernel, device, torch)})
    return results


def _test_one(kernel: Kernel, device: str, torch: Any) -> dict[str, Any]:
    from . import Error, attention, last_kernel

    backend = f"{kernel.backend}:{kernel.arch}" if kernel.arch else kernel.backend
    dtype = "float32" if device == "cpu" else "float16" if kernel.recipe == "fp16_fp16" else "bfloat16"
    for head_dim in (64, 32):
        found = explain((1, 4, 256, head_dim), (1, 2, 256, head_dim), causal=True, dtype=dtype, device=device,
                        recipe=kernel.recipe, backend=backend)  # fmt: skip
        if found["kernel"] == kernel.name:
            break
    q, k, v = _normal(torch, head_dim)
    exact = attention(q, k, v, causal=True, recipe="fp32_fp32", backend="reference")
    if device == "cuda":
        q, k, v = (t.to(getattr(torch, dtype)) for t in (q, k, v))
        exact = attention(q.float(), k.float(), v.float(), causal=True, recipe="fp32_fp32", backend="reference")
        q, k, v = (t.cuda() for t in (q, k, v))
    try:
        out = attention(q, k, v, causal=True, recipe=kernel.recipe, backend=backend)
    except Error as error:
        return {"error": None, "ok": False, "note": str(error)}
    ran = last_kernel()
    if torch is not None:
        out = out.double().cpu()
        exact = exact.double()
    error = float(abs(out - exact).sum() / abs(exact).sum())
    ok = error <= _CEILING[kernel.recipe] and ran == kernel.name
    note = f"head dim {head_dim}" if head_dim != 64 else ""
    return {"error": error, "ok": ok, "note": note if ran == kernel.name else f"{ran} ran instead"}


def _normal(torch: Any, head_dim: int) -> tuple:
    shapes = (1, 4, 256, head_dim), (1, 2, 256, head_dim), (1, 2, 256, head_dim)
    if torch is not None:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)
    import numpy

    generator = numpy.random.default_rng(0)
    return tuple(generator.standard_normal(shape, dtype=numpy.float32) for shape in shapes)


def _load_arrays() -> str | None:
    """Imports PyTorch, or else numpy; a broken PyTorch is part of the report."""
    problem = None
    for name in ("torch", "numpy"):
        try:
            importlib.import_module(name)
            return problem
        except ImportError as error:
            if _version_of(name) is not None:
                problem = f"{name} is installed but does not import: {error}"
    return problem or "neither torch nor numpy is installed: no self-test"


def run(as_json: bool = False) -> int:
    """Prints the report; 0 where everything that can run here computes what it should, else 1."""
    problem = _load_arrays()
    report = environment()
    gpu = any(k.backend == gpu_backend() and k.usable for k in kernels())
    report["auto"] = {device: chosen_kernels(device) for device in (["cpu", "cuda"] if gpu else ["cpu"])}
    can_test = "torch" in sys.modules or "numpy" in sys.modules
    report["self_test"] = self_test() if can_test else []
    report["problem"] = problem
    failed = [r for r in report["self_test"] if not r["ok"]]
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        _print(report)
    return 1 if failed or not can_test else 0


def _print(report: dict[str, Any]) -> None:
    for name in (
        "clary",
        "build",
        "library",
        "python",
        "os",
        "torch",
        "numpy",
        "transformers",
        "diffusers",
        "sageattention",
        "cpu_threads",
        "driver",
    ):
        print(f"{name:14} {report[name] if report[name] is not None else 'not found'}")
    for name, value in report["environment"].items():
        print(f"{'environment':14} {name}={value}")
    print(f"{'gpus':14} {'; '.join(report['gpus']) or 'none that torch sees'}; {report['gpu_note']}")
    for device, chosen in report["auto"].items():
        print(f"{'auto on ' + device:14} " + ", ".join(f"{dim}: {kernel}" for dim, kernel in chosen.items()))
    if report["problem"]:
        print(f"{'problem':14} {report['problem']}")
    if report["self_test"]:
        print("\nself-test: relative L1 distance to float64, N(0, 1) [1, 4/2, 256, 64], causal")
    for result in report["self_test"]:
        figure = "-" if result["error"] is None else f"{result['error']:.5f}"
        print(f"  {result['kernel']:26} {figure:>8}  {'ok' if result['ok'] else 'FAILED'}  {result['note']}".rstrip())
