# SPDX-License-Identifier: Apache-2.0
"""The package's version: that of CMakeLists.txt and clary.h."""

__version__ = "0.1.0"
