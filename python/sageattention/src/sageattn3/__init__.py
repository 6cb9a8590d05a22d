# SPDX-License-Identifier: Apache-2.0
"""SageAttention3's public name on Clary."""

from sageattention._blackwell import sageattn3_blackwell

__all__ = ["sageattn3_blackwell"]
