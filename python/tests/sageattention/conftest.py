# SPDX-License-Identifier: Apache-2.0
"""Every test runs on CPU tensors, and again on CUDA tensors where a GPU is. Tests of a real package carry the mark
`real_package`: a machine that lacks the packages leaves them out by `-m "not real_package"`, and nothing skips by
itself."""

import pytest
import torch

TORCH = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_configure(config):
    config.addinivalue_line("markers", "real_package: runs a host's own code, which must be installed")
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
    config.addinivalue_line("markers", "recent_torch: needs what PyTorch 2.0 does not have")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no GPU"))
        if item.get_closest_marker("recent_torch") and TORCH < (2, 6):
            item.add_marker(pytest.mark.skip(reason=f"PyTorch {torch.__version__}"))


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
