# SPDX-License-Identifier: Apache-2.0
"""Points 1 to 4: names and metadata."""

import importlib.metadata
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clary
import sageattention

SIGNATURES = {  # upstream's parameters after q, k, v, with their defaults
    "sageattn": "tensor_layout='HND', is_causal=False, sm_scale=None, return_lse=False",
    "sageattn_qk_int8_pv_fp16_triton": "tensor_layout='HND', quantization_backend='triton', is_causal=False, "
    "attn_mask=None, sm_scale=None, smooth_k=True, return_lse=False",
    "sageattn_qk_int8_pv_fp16_cuda": "tensor_layout='HND', is_causal=False, qk_quant_gran='per_thread', "
    "sm_scale=None, pv_accum_dtype='fp32', smooth_k=True, smooth_v=False, return_lse=False",
    "sageattn_qk_int8_pv_fp8_cuda": "tensor_layout='HND', is_causal=False, qk_quant_gran='per_thread', "
    "sm_scale=None, pv_accum_dtype='fp32+fp16', smooth_k=True, smooth_v=False, return_lse=False",
    "sageattn_qk_int8_pv_fp8_cuda_sm90": "tensor_layout='HND', is_causal=False, qk_quant_gran='per_thread', "
    "sm_scale=None, pv_accum_dtype='fp32+fp32', smooth_k=True, return_lse=False",
    "sageattn_qk_int8_pv_fp16_maca": "tensor_layout='HND', is_causal=False, qk_quant_type='int8', "
    "qk_quant_gran='per_thread', pv_accum_dtype='fp32', sm_scale=None, smooth_k=True, smooth_v=False, return_lse=False",
    "sageattn_varlen": "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=False, sm_scale=None, "
    "smooth_k=True",
}


def python(code, **environment):
    """Runs code in a new interpreter, without programs to call."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "CLARY_LIBRARY") if name in os.environ}
    environment = {**kept, "PATH": "/nowhere", **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def test_01_all_names_in_one_statement():
    from sageattention.core import sageattn_qk_int8_pv_fp16_maca  # noqa: F401
    from sageattn3 import sageattn3_blackwell  # noqa: F401

    from sageattention import (  # noqa: F401
        sageattn,
        sageattn_qk_int8_pv_fp8_cuda,
        sageattn_qk_int8_pv_fp8_cuda_sm90,
        sageattn_qk_int8_pv_fp16_cuda,
        sageattn_qk_int8_pv_fp16_triton,
        sageattn_varlen,
    )


def test_01_p7_import_needs_no_gpu_no_triton_no_compiler_no_torch():
    """PyTorch and Triton are not even there for the asking."""
    code = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
import sageattention, sageattn3
print(sageattention.__version__)
"""
    done = python(code, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == sageattention.__version__


def test_02_metadata():
    version = importlib.metadata.version("sageattention")
    assert version == sageattention.__version__
    numbers = tuple(int(n) for n in version.split("+")[0].split("."))
    assert numbers >= (2, 1, 1)
    assert version.startswith("2.2")
    # Of Clary it names what the drop-in was made from, which need not be the very build that serves it.
    assert re.match(r"2\.2\.0\+clary" + re.escape(clary.__version__.split("+")[0]) + r"(\.|$)", version)
    assert importlib.util.find_spec("sageattention") is not None
    assert "clary" in " ".join(importlib.metadata.requires("sageattention"))


def test_03_attn_mask_is_in_the_signature():
    """Hosts look for it there, and then pass masks; test_comfyui.py shows that they work."""
    assert "attn_mask" in inspect.signature(sageattention.sageattn).parameters


@pytest.mark.parametrize("name", SIGNATURES)
def test_03_upstreams_parameters_come_first(name):
    parameters = inspect.signature(getattr(sageattention, name)).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    text = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in positional)
    assert text == "q, k, v, " + SIGNATURES[name]


def test_04_p5_a_library_that_does_not_load_is_an_import_error(tmp_path):
    broken = tmp_path / "libclary.so"
    broken.write_bytes(b"not a library")
    done = python("import sageattention", CLARY_LIBRARY=str(broken))
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "libclary.so" in done.stderr


def test_the_documents_example_runs():
    text = (Path(__file__).parents[3] / "docs" / "sageattention.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    exec(example, {})


def test_p9_importing_changes_nothing():
    import torch.nn.functional as F

    before = F.scaled_dot_product_attention
    importlib.reload(sageattention)
    assert F.scaled_dot_product_attention is before


@pytest.mark.parametrize("name", ["per_block_int8_varlen_triton", "no_such_name"])
def test_absent_names_are_import_errors(name):
    with pytest.raises(ImportError):
        exec(f"from sageattention.core import {name}")
