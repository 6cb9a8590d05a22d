# SPDX-License-Identifier: Apache-2.0
"""The version that hosts test for: SageAttention's interface, then Clary's own version."""

import importlib.metadata

import clary

INTERFACE = "2.2.0"


def version() -> str:
    """What the installed wheel says, which hosts look at too."""
    try:
        return importlib.metadata.version("sageattention")
    except importlib.metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
        return f"{INTERFACE}+clary{clary.__version__.replace('+', '.')}"
