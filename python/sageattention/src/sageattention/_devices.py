# SPDX-License-Identifier: Apache-2.0
"""What hosts ask of GPUs before they choose a function."""

from __future__ import annotations

import torch

ENABLED = True  # every function runs wherever Clary does


def get_cuda_arch_versions() -> list[str]:
    """One "sm90" for each visible GPU; [] without any."""
    capabilities = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
    return [f"sm{major}{minor}" for major, minor in capabilities]


def get_cuda_version() -> tuple[int, int]:
    """(major, minor) of the CUDA that PyTorch was built with; (0, 0) without."""
    if torch.version.cuda is None:
        return 0, 0
    major, minor = torch.version.cuda.split(".")[:2]
    return int(major), int(minor)
