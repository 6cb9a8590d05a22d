# SPDX-License-Identifier: Apache-2.0
"""The Python examples of README.md and docs/python.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def examples():
    for root in Path(__file__).resolve().parents:
        if (root / "docs" / "python.md").is_file() and (root / "README.md").is_file():
            for name in ("README.md", "docs/python.md"):
                blocks = re.findall(r"^```python\n(.*?)^```", (root / name).read_text(encoding="utf-8"), re.M | re.S)
                assert blocks, name
                yield from (pytest.param(block, id=f"{name}-{i}") for i, block in enumerate(blocks))
            return
    raise AssertionError("README.md and docs/python.md are not above this file")


@pytest.mark.parametrize("code", list(examples()))
def test_example(code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning:clary", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for claimed in re.findall(r"^print\(.*\) +# (Counter\(.*\))$", code, re.M):
        assert claimed in done.stdout
