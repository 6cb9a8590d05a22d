# SPDX-License-Identifier: Apache-2.0
"""The one exception that this package adds to Clary's."""

from clary.errors import InvalidArgument


class ArgumentError(InvalidArgument, AssertionError):
    """An argument that SageAttention refuses by an assertion: here a ValueError with a text, and still an
    AssertionError for callers that catch that."""
