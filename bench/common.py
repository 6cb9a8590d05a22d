# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks against PyTorch share: the package from this tree with the library to measure, errors,
provenance."""

import os
import subprocess
import sys
from pathlib import Path

import torch


def load(library: str):
    """The Python package of this tree, with the library at that path."""
    os.environ["CLARY_LIBRARY"] = library
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
    import clary

    return clary


def rel_l1(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference.double()).abs().sum() / reference.double().abs().sum()).item()


def git_commit() -> str:
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"
