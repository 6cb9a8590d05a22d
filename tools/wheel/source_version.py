# SPDX-License-Identifier: Apache-2.0
"""The version that a wheel made of this tree gets, for the build backends of both wheels: cmake/ClaryVersion.cmake's,
with CLARY_WHEEL_LABEL ("cpu", "cu13") from the environment; in a source distribution the one that it was made with."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def source_version(label=""):
    made_with = ROOT / "PKG-INFO"
    if made_with.is_file():
        return re.search(r"^Version: (\S+)$", made_with.read_text(encoding="utf-8"), re.MULTILINE).group(1)
    release = re.search(r'RELEASE = "(.+)"', (ROOT / "python/clary/_version.py").read_text(encoding="utf-8")).group(1)
    options = [f"-DSOURCE={ROOT}", f"-DBASE={release}", f"-DLABEL={label}"]
    command = ["cmake", *options, "-P", ROOT / "cmake" / "ClaryVersion.cmake"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def dynamic_metadata(field, settings):
    """What scikit-build-core asks."""
    return source_version(os.environ.get("CLARY_WHEEL_LABEL", ""))
