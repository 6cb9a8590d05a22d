# SPDX-License-Identifier: Apache-2.0
"""Exceptions. Each carries the library's one-line text, and is also the built-in exception that fits, so that callers
who know nothing of Clary can catch it."""


class Error(Exception):
    """Base of everything that Clary raises."""


class InvalidArgument(Error, ValueError):
    """The input is wrong; the text names argument, value and allowed set."""


class Unsupported(Error, NotImplementedError):
    """The input is right, but no kernel of the chosen backend takes it."""


class NoDevice(Error, RuntimeError):
    """The backend is not built in, or its device is absent."""


class OutOfMemory(Error, MemoryError):
    """No memory for a workspace."""


class DriverError(Error, RuntimeError):
    """The GPU's driver or runtime refused."""


class InternalError(Error, RuntimeError):
    """A bug of ours: please report the text."""


class NoGradient(Error, RuntimeError):
    """An input requires a gradient while gradients are recorded, and quantized attention has none."""


#: By clary_status. WORKSPACE_TOO_SMALL (5) cannot happen to a caller of this package.
BY_STATUS = {
    1: InvalidArgument, 2: Unsupported, 3: NoDevice, 4: OutOfMemory, 5: InternalError, 6: DriverError, 7: InternalError,
}  # fmt: skip
