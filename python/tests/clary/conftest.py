# SPDX-License-Identifier: Apache-2.0
"""Tests run for each library of arrays that is installed, and for CUDA tensors where a GPU is."""

import importlib.util
import random

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None


def has_gpu():
    if not HAS_TORCH:
        return False
    import torch

    return torch.cuda.is_available()


KINDS = ["numpy", *(["torch"] if HAS_TORCH else []), *(["cuda"] if has_gpu() else [])]


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")


def pytest_collection_modifyitems(items):
    if has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU"))


class Arrays:
    """Makes arrays of one kind from numpy ones and turns results back."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, array, dtype=None):
        import numpy as np

        array = np.asarray(array)
        if self.kind == "numpy":
            return array if dtype is None else array.astype(dtype)
        import torch

        made = torch.from_numpy(np.ascontiguousarray(array))
        made = made if dtype is None else made.to(getattr(torch, dtype))
        return made.cuda() if self.kind == "cuda" else made

    def numpy(self, array):
        return array if self.kind == "numpy" else array.float().cpu().numpy()


@pytest.fixture(params=KINDS)
def arrays(request):
    return Arrays(request.param)


@pytest.fixture
def rng(request):
    import numpy as np

    return np.random.default_rng(random.Random(request.node.name).getrandbits(32))

@pytest.fixture
def unchanged_sdpa():
    """Fixed random numbers, no gradients, and PyTorch's own attention function in its place afterwards."""
    import torch

    torch.manual_seed(0)
    before = torch.nn.functional.scaled_dot_product_attention
    with torch.no_grad():
        yield
    assert torch.nn.functional.scaled_dot_product_attention is before
