# SPDX-License-Identifier: Apache-2.0
"""python -m clary doctor, explain, kernels and recipes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import clary
from clary import doctor


def call(*arguments, **environment):
    done = subprocess.run([sys.executable, "-m", "clary", *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment})  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_report():
    code, out, err = call("doctor", CLARY_NUM_THREADS="1")
    assert code == 0, out + err
    for text in (
        "clary ",
        clary.build_info(),
        "CLARY_NUM_THREADS=1",
        "auto on cpu",
        "head_dim 128: cpu_",
        "self-test: ",
    ):
        assert text in out
    assert "FAILED" not in out and out.count("  ok") >= 4


def test_json_report():
    code, out, _ = call("doctor", "--json")
    report = json.loads(out)
    assert code == 0 and report["clary"] == clary.__version__ and report["problem"] is None
    assert all(r["ok"] and r["error"] is not None for r in report["self_test"])
    tested = {r["kernel"] for r in report["self_test"]}
    assert {k.name for k in clary.kernels() if k.usable and k.backend == "cpu"} <= tested


def test_usage():
    code, _, err = call("frobnicate")
    assert code == 2 and "doctor" in err


def kernel(reason, usable=False):
    return clary.Kernel("cuda_sm90_int8_int8", "cuda", "sm90", "int8_int8", usable, reason)


@pytest.mark.parametrize(
    "found, driver, text",
    [
        ([], None, "this build has no CUDA backend"),
        ([kernel("", True)], (13, 0), "CUDA kernels for sm90 run here"),
        ([kernel("no NVIDIA driver")], None, "no NVIDIA driver on this machine"),
        ([kernel("the NVIDIA driver is for CUDA 12.4")], (12, 4), "needs driver 580 or newer: update the driver"),
        ([kernel("needs sm90, this GPU is sm61")], (13, 1), "needs sm90, this GPU is sm61"),
    ],
)
def test_advice_on_gpus(found, driver, text):
    assert text in doctor.gpu_advice(found, driver)


def test_explain():
    found = clary.explain((1, 32, 4096, 128), (1, 8, 4096, 128), causal="bottom_right")
    assert found["kernel"].startswith("cpu_") and found["recipe"] == "int8_int8:accurate"
    assert found["workspace_bytes"] > 0 and found["expected_rel_l1"]["normal"] < 0.02
    assert all(k["reason"] for k in found["other_kernels"])
    assert clary.explain((1, 1, 64, 512))["kernel"].endswith("fp32_fp32")
    refused = clary.explain((1, 1, 64, 512), recipe="int8_int8")
    assert refused["kernel"] is None and "head_dim 512" in refused["error"]
    assert clary.explain(np.zeros((1, 64, 4, 32), np.float32), layout="nhd")["problem"]["q_heads"] == 4
    masked = clary.explain((1, 2, 10, 64), (1, 2, 20, 64), mask="bool", window=(3, 3), scale=0.5)
    assert masked["problem"]["kv_len"] == 20 and masked["problem"]["scale"] == 0.5
    for wrong, text in [
        ({"device": "tpu"}, "device: 'tpu'"),
        ({"dtype": "int3"}, "dtype: dtype int3"),
        ({"recipe": "x"}, "recipe: "),
    ]:
        with pytest.raises(clary.InvalidArgument, match=text):
            clary.explain((1, 2, 10, 64), **wrong)
    with pytest.raises(clary.InvalidArgument, match="allowed: 4 dimensions"):
        clary.explain((1, 2, 3))


def test_kernels_and_recipes():
    names = [k.name for k in clary.kernels()]
    assert "reference_int8_int8" in names and len(set(names)) == len(names)
    recipes = clary.recipes()
    assert "cpu" in recipes["int8_int8"] and "reference" in recipes["fp4_fp4"]


def test_last_kernel_is_what_ran():
    q = np.zeros((1, 1, 8, 64), np.float32)
    clary.attention(q, q, q, recipe="fp32_fp32", backend="cpu:generic")
    assert clary.last_kernel() == "cpu_generic_fp32_fp32"
