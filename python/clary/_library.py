# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libclary, and turns its failures into exceptions."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from . import errors
from ._version import RELEASE

_HERE = Path(__file__).resolve().parent
#: Build folders of a source tree, tried in this order when the package is used from one.
_TREE_BUILDS = ("py", "cuda", "cpu-release", "ci")


def _candidates() -> list[Path]:
    """CLARY_LIBRARY alone where it is set; else the library in the wheel; else one that was built in the source
    tree."""
    if named := os.environ.get("CLARY_LIBRARY"):
        return [Path(named)]
    found = sorted((_HERE / "lib").glob("libclary.so*"))
    tree = _HERE.parents[1]
    if not found and (tree / "include" / "clary" / "clary.h").is_file():
        found = [tree / "build" / name / "lib" / "libclary.so" for name in _TREE_BUILDS]
        found = [path for path in found if path.exists()]
    return found


def _load() -> tuple[ctypes.CDLL, str, str]:
    paths = _candidates()
    if not paths:
        raise ImportError(
            "clary: no libclary.so in the package or the source tree; install the wheel, or build it "
            "(cmake --preset cpu-release && cmake --build --preset cpu-release --target clary), or set CLARY_LIBRARY"
        )
    try:
        lib = ctypes.CDLL(str(paths[0]))
    except OSError as error:
        raise ImportError(f"clary: {paths[0]} does not load: {error}") from error
    for name in ("clary_last_error", "clary_last_kernel", "clary_build_info", "clary_version"):
        getattr(lib, name).restype = ctypes.c_char_p
    found = lib.clary_version().decode()
    if found.split("+")[0] != RELEASE:
        raise ImportError(f"clary: {paths[0]} is version {found}, but this package is {RELEASE}")
    return lib, str(paths[0]), found


lib, path, version = _load()


def check(status: int) -> None:
    """Raises what a clary_status says, with the library's text."""
    if status:
        raise errors.BY_STATUS.get(status, errors.InternalError)(lib.clary_last_error().decode())


class _Threads:
    """The clary_context of all calls, once set_num_threads asked for one; contexts are never freed: a call may run."""

    context: int | None = None


threads = _Threads()


def set_num_threads(count: int) -> None:
    """Threads of the CPU backend for every later call of this process; 0 for the default, which is CLARY_NUM_THREADS or
    the cores that this process may use."""
    if isinstance(count, bool) or not hasattr(count, "__index__") or not 0 <= count.__index__() <= 4096:
        raise errors.InvalidArgument(f"threads: {count!r}; allowed: 0 (default) or 1..4096")
    made = ctypes.c_void_p()
    check(lib.clary_context_create(ctypes.c_int32(count), ctypes.byref(made)))
    threads.context = made.value


def get_num_threads() -> int:
    """Threads of the CPU backend."""
    return lib.clary_context_threads(ctypes.c_void_p(threads.context))


def build_info() -> str:
    """Compiler, build type and backends of the loaded library: one line, unique per build."""
    return lib.clary_build_info().decode()


def last_kernel() -> str:
    """The kernel that this thread's last attention ran, e.g. ``"cpu_avx512_int8_int8"``; ``""`` before the first."""
    return lib.clary_last_kernel().decode()
