# SPDX-License-Identifier: Apache-2.0
"""The release that this is, or comes before: that of CMakeLists.txt and clary.h. What was built in full, the library
says: clary.__version__."""

RELEASE = "0.1.0"
