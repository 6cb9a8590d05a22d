# SPDX-License-Identifier: Apache-2.0
"""The version of the wheel, for its build backend: SageAttention's interface, then what of Clary it was made from."""

import re
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_TOOLS = _HERE.parents[1] / "tools" / "wheel"


def _version():
    if (_HERE / "PKG-INFO").is_file():  # a source distribution
        return re.search(r"^Version: (\S+)$", (_HERE / "PKG-INFO").read_text(encoding="utf-8"), re.MULTILINE).group(1)
    sys.path.insert(0, str(_TOOLS))
    from source_version import source_version

    return "2.2.0+clary" + source_version().replace("+", ".")


version = _version()
