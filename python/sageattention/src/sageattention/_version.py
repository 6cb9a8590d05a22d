# SPDX-License-Identifier: Apache-2.0
"""The version that hosts test for: SageAttention's interface, then Clary's own version."""

__version__ = "2.2.0+clary0.1.0"
