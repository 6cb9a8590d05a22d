# SPDX-License-Identifier: Apache-2.0
"""What importing does and does not, and how the library is found; names carry the ids of reported failures (P..)."""

import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import clary

PACKAGE = Path(clary.__file__).parent


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_p7_p9_import_brings_nothing_and_changes_nothing():
    done = python("import sys, clary; print(sorted({'torch', 'numpy', 'triton'} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stderr
    pytest.importorskip("torch")
    done = python("import torch; F = torch.nn.functional; f = F.scaled_dot_product_attention; import clary; "
                  "clary.attention(*[torch.zeros(1, 1, 4, 16)] * 3); "
                  "print(F.scaled_dot_product_attention is f)")  # fmt: skip
    assert done.stdout.strip() == "True", done.stderr


def test_p5_the_loader_says_what_is_wrong(tmp_path):
    broken = tmp_path / "libclary.so"
    broken.write_bytes(b"no library")
    done = python("import clary", CLARY_LIBRARY=str(broken))
    assert f"ImportError: clary: {broken} does not load" in done.stderr and "file too short" in done.stderr
    done = python("import clary", CLARY_LIBRARY=str(tmp_path / "absent.so"))
    assert "No such file" in done.stderr
    alone = tmp_path / "clary"
    shutil.copytree(PACKAGE, alone, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    done = python("import clary", PYTHONPATH=str(tmp_path), CLARY_LIBRARY="")
    assert "ImportError: clary: no libclary.so in the package or the source tree; install the wheel" in done.stderr


def test_a_library_of_another_version_is_refused(tmp_path):
    alone = tmp_path / "clary"
    shutil.copytree(PACKAGE, alone, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    (alone / "_version.py").write_text('RELEASE = "9.9.9"\n')
    done = python("import clary", PYTHONPATH=str(tmp_path), CLARY_LIBRARY=clary._library.path)
    assert f"is version {clary.__version__}, but this package is 9.9.9" in done.stderr


def test_p8_version_and_build():
    local = r"(\+(cpu\.|cu\d+\.)?(g[0-9a-f]{7,}|unknown)(\.d[0-9a-f]{8})?|\+(cpu|cu\d+))?"
    assert re.fullmatch(r"\d+\.\d+\.\d+" + local, clary.__version__) and clary.__version__ in clary.build_info()
    try:
        installed = importlib.metadata.version("clary")
    except importlib.metadata.PackageNotFoundError:
        return  # a source tree
    assert installed == clary.__version__


def test_p8_different_sources_have_different_versions(tmp_path):
    script = PACKAGE.parents[1] / "cmake" / "ClaryVersion.cmake"
    if not script.is_file() or shutil.which("git") is None or shutil.which("cmake") is None:
        pytest.skip("needs the source tree, git and CMake")

    def git(*words):
        who = ["-c", "user.name=x", "-c", "user.email=x@y"]
        subprocess.run(["git", "-C", tree, *who, *words], check=True, capture_output=True)

    def version(**more):
        options = [f"-D{name}={value}" for name, value in {"SOURCE": tree, "BASE": "0.1.0", **more}.items()]
        done = subprocess.run(["cmake", *options, "-P", script], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    tree = tmp_path / "tree"
    tree.mkdir()
    assert version() == "0.1.0+unknown"
    git("init", "-q")
    source = tree / "source"
    seen = []
    for text in ("one", "two"):
        source.write_text(text)
        git("add", "source")
        git("commit", "-q", "-m", text)
        seen.append(version())
        assert re.fullmatch(r"0\.1\.0\+g[0-9a-f]{7}", seen[-1])
    for text in ("three", "four"):
        source.write_text(text)
        seen.append(version())
        assert re.fullmatch(re.escape(seen[1]) + r"\.d[0-9a-f]{8}", seen[-1])
    assert len(set(seen)) == 4
    assert version(LABEL="cpu") == seen[-1].replace("+", "+cpu.")
    git("checkout", "-q", "source")
    git("tag", "v0.1.0")
    assert (version(), version(LABEL="cpu"), version(GIVEN="7")) == ("0.1.0", "0.1.0+cpu", "7")
    (tree / "inside").mkdir()
    assert version(SOURCE=tree / "inside") == "0.1.0+unknown"  # the repository is somebody else's
    header = tmp_path / "header.h"
    version(HEADER=header)
    assert header.read_text() == '#define CLARY_VERSION_TEXT "0.1.0"\n'


def test_structs_are_those_of_the_header(tmp_path):
    """Sizes as the C compiler of this machine sees them."""
    from clary import _structs

    header = PACKAGE.parents[1] / "include"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not (header / "clary" / "clary.h").is_file() or compiler is None:
        pytest.skip("needs the source tree and a C compiler")
    names = {"Tensor": "clary_tensor", "Params": "clary_attention_params", "Section": "clary_section",
             "PackedLayout": "clary_packed_layout", "Packed": "clary_packed", "MergeParams": "clary_merge_params",
             "KernelInfo": "clary_kernel_info"}  # fmt: skip
    lines = []
    for ours, theirs in names.items():
        lines.append(f'printf("{ours} %zu\\n", sizeof({theirs}));')
        for field, _ in getattr(_structs, ours)._fields_:
            lines.append(f'printf("{ours}.{field} %zu\\n", offsetof({theirs}, {field}));')
    code = "#include <clary/clary.h>\n#include <stdio.h>\nint main(void) {" + "".join(lines) + "}"
    binary = tmp_path / "sizes"
    subprocess.run([compiler, "-xc", "-", f"-I{header}", "-o", str(binary)], input=code, text=True, check=True)
    for line in subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout.splitlines():
        name, value = line.split()
        ours, _, field = name.partition(".")
        struct = getattr(_structs, ours)
        assert (getattr(struct, field).offset if field else ctypes.sizeof(struct)) == int(value), name


def test_dtype_names_are_those_of_the_header():
    from clary import _arrays

    header = PACKAGE.parents[1] / "include" / "clary" / "clary.h"
    if not header.is_file():
        pytest.skip("needs the source tree")
    codes = {int(code) for code in re.findall(r"CLARY_(?:FP|BF|U?INT|BOOL)\w* = (\d+)", header.read_text())}
    assert codes == set(_arrays.DTYPES.values())


def test_forked_children_work():
    done = python(
        "import numpy as np, clary, os\n"
        "q = np.random.default_rng(0).standard_normal((1, 4, 200, 64), dtype=np.float32)\n"
        "expected = clary.attention(q, q, q)\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if (clary.attention(q, q, q) == expected).all() else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert done.stdout.strip() == "0", done.stderr


def test_threads_of_python():
    """The interpreter's lock is released while a call runs, and calls from several threads are right."""
    import threading

    import numpy as np

    rng, wrong = np.random.default_rng(0), []
    inputs = [rng.standard_normal((1, 4, 300, 64), dtype=np.float32) for _ in range(4)]  # that look alike
    expected = [clary.attention(q, q, q) for q in inputs]

    def work(q, expected):
        for _ in range(10):
            if not (clary.attention(q, q, q) == expected).all():
                wrong.append(1)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_typed():
    assert (PACKAGE / "py.typed").is_file()
    for name in clary.__all__:
        if name in ("sdpa", "patch"):
            continue
        found = getattr(clary, name)
        assert not callable(found) or found.__doc__, name
