# SPDX-License-Identifier: Apache-2.0
"""The one place where arrays become C views. A *family* answers the same few questions for each library of arrays:

``plain(name, a, written)`` -> a, or an array of the same values, that lies in memory as it seems to; if it will be
                written, not read-only
``facts(a)``    everything about an array but where its data lies: a hashable value, cheap to make
``pointer(a)``  where its data lies
``describe(name, facts)`` -> (clary_dtype, clary_device, device index, shape, strides in elements)
``written(a)``  an array of the caller's was changed behind its back
``empty(shape, dtype, like, same)``, ``bytes(count, like)``: results, packed buffers and workspaces on the device of
                another array; `same`: the result looks as that does
``stream(index)``, ``workspace(count, index, stream)``, ``free(pointer)``: of a GPU, the current stream and memory that
                whatever is queued on the stream by then has to itself

PyTorch and numpy are never imported here: whoever hands in their arrays has imported them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from .errors import InvalidArgument

CPU, CUDA, MACA = 0, 1, 2
ALIGNMENT = 64  # of workspaces and packed buffers

DTYPES = {
    "float32": 1, "float16": 2, "bfloat16": 3, "float64": 4, "int8": 5, "uint8": 6, "int16": 7, "int32": 8, "int64": 9,
    "bool": 10, "float8_e4m3fn": 11, "float8_e5m2": 12,
}  # fmt: skip
#: Bytes of an element, by code.
WIDTHS = {1: 4, 2: 2, 3: 2, 4: 8, 5: 1, 6: 1, 7: 2, 8: 4, 9: 8, 10: 1, 11: 1, 12: 1}


def dtype_code(name: str, dtype: str) -> int:
    try:
        return DTYPES[dtype]
    except KeyError:
        raise InvalidArgument(f"{name}: dtype {dtype} is not supported; allowed: float32, float16, bfloat16") from None


class NumpyFamily:
    """numpy.ndarray; bfloat16 comes from ml_dtypes."""

    name = "numpy.ndarray"

    @staticmethod
    def plain(name: str, a: Any, written: bool) -> Any:
        if written and not a.flags.writeable:
            raise InvalidArgument(f"{name}: is read-only; allowed: memory that may be written")
        return a

    @staticmethod
    def facts(a: Any) -> tuple:
        return a.dtype, a.shape, a.strides

    @staticmethod
    def pointer(a: Any) -> int:
        return a.__array_interface__["data"][0]

    @staticmethod
    def describe(name: str, facts: tuple) -> tuple[int, int, int, tuple, tuple]:
        dtype, shape, strides = facts
        if not dtype.isnative:
            raise InvalidArgument(f"{name}: dtype {dtype} has swapped bytes; allowed: this machine's byte order")
        if any(s % dtype.itemsize for s in strides):
            raise InvalidArgument(
                f"{name}: strides {strides} bytes; allowed: multiples of its {dtype.itemsize}-byte element"
            )
        return dtype_code(name, dtype.name), CPU, 0, shape, tuple(s // dtype.itemsize for s in strides)

    @staticmethod
    def empty(shape: Sequence[int], dtype: Any, like: Any, same: bool = False) -> Any:
        return sys.modules["numpy"].empty(shape, dtype)

    @staticmethod
    def float32(like: Any) -> Any:
        return sys.modules["numpy"].dtype("float32")

    @staticmethod
    def bytes(count: int, like: Any) -> Any:
        raw = sys.modules["numpy"].empty(count + ALIGNMENT, "uint8")
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        return raw[start : start + count]

    @staticmethod
    def reinterpret(raw: Any, dtype: int, shape: tuple) -> Any:
        name = next((n for n, code in DTYPES.items() if code == dtype), "uint8")
        return raw.view("uint16" if name == "bfloat16" else "uint8" if name.startswith("float8") else name).reshape(
            shape
        )

    @staticmethod
    def written(a: Any) -> None:
        pass


@functools.cache
def gpu_of(torch: Any) -> int:
    """The clary_device of "cuda" tensors: MetaX's PyTorch calls its GPUs so too."""
    metax = "metax" in torch.__version__ or (
        torch.cuda.is_available() and torch.cuda.get_device_name().startswith("MetaX")
    )
    return MACA if metax else CUDA


class TorchFamily:
    """torch.Tensor of any version from 2.0 on."""

    name = "torch.Tensor"

    def __init__(self, torch: Any):
        self.torch = torch
        self.strided = torch.strided
        self.pointer = torch.Tensor.data_ptr
        self.no_bytes: dict[Any, Any] = {}  # by device
        # Several times faster than the public ways to the same.
        self.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.current_device = getattr(torch._C, "_cuda_getDevice", None)
        self.allocate = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
        self.free = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", torch.cuda.caching_allocator_delete)

    def plain(self, name: str, a: Any, written: bool) -> Any:
        if a.layout is not self.strided or a.is_nested:
            what = f"layout {a.layout}" if a.layout is not self.strided else "a nested tensor"
            raise InvalidArgument(f"{name}: {what}; allowed: a dense tensor")
        if a.is_neg():  # the imaginary part of a conjugated tensor holds the opposite of its memory
            if written:
                raise InvalidArgument(f"{name}: a view that negates; allowed: a tensor as it lies in memory")
            return a.resolve_neg()
        return a

    @staticmethod
    def facts(a: Any) -> tuple:
        return a.dtype, a.device, a.shape, a.stride()

    @staticmethod
    def describe(name: str, facts: tuple) -> tuple[int, int, int, tuple, tuple]:
        dtype, device, shape, strides = facts
        if device.type not in ("cpu", "cuda"):
            raise InvalidArgument(f"{name}: device {device}; allowed: cpu, cuda")
        on_gpu = device.type == "cuda"
        code = dtype_code(name, str(dtype).replace("torch.", ""))
        return code, gpu_of(sys.modules["torch"]) if on_gpu else CPU, device.index if on_gpu else 0, tuple(shape), strides

    def empty(self, shape: Sequence[int], dtype: Any, like: Any, same: bool = False) -> Any:
        if type(like) is self.torch.Tensor:  # not a subclass, whose results would be of it too
            if same:
                return self.torch.empty_like(like)
            return like.new_empty(shape) if dtype is like.dtype else like.new_empty(shape, dtype=dtype)
        return self.torch.empty(shape, dtype=dtype, device=like.device)  # takes two times as long

    def float32(self, like: Any) -> Any:
        return self.torch.float32

    def bytes(self, count: int, like: Any) -> Any:
        # Of a tensor of bytes: half the time of saying the type. Both of PyTorch's allocators align to 64 bytes or more.
        device = like.device
        none = self.no_bytes.get(device)
        if none is None:
            none = self.no_bytes[device] = self.torch.empty(0, dtype=self.torch.uint8, device=device)
        return none.new_empty(count)

    def reinterpret(self, raw: Any, dtype: int, shape: tuple) -> Any:
        name = next((n for n, code in DTYPES.items() if code == dtype), "uint8")
        return raw.view(getattr(self.torch, name, self.torch.uint8)).reshape(shape)

    def written(self, a: Any) -> None:
        """Lets autograd notice where it had kept the values."""
        increment = getattr(self.torch.autograd.graph, "increment_version", None)  # since PyTorch 2.1
        if increment is not None and not a.is_inference():
            increment(a)

    def stream(self, index: int) -> int:
        if self.raw_stream is not None:
            return self.raw_stream(index)
        return self.torch.cuda.current_stream(index).cuda_stream

    def workspace(self, count: int, index: int, stream: int) -> int:
        if self.allocate is not None and self.current_device is not None and self.current_device() == index:
            return self.allocate(count, stream)
        return self.torch.cuda.caching_allocator_alloc(count, index, stream)


_numpy = NumpyFamily()
_torch: TorchFamily | None = None


def is_torch(a: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(a, torch.Tensor)


def is_numpy(a: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(a, numpy.ndarray)


def family_of(name: str, a: Any) -> Any:
    global _torch
    if is_torch(a):
        if _torch is None:
            _torch = TorchFamily(sys.modules["torch"])
        return _torch
    if is_numpy(a) and not type(a).__module__.startswith("numpy.ma"):  # whose mask would be lost
        return _numpy
    raise TypeError(f"{name}: {type(a).__module__}.{type(a).__name__}; allowed: torch.Tensor, numpy.ndarray, DLPack")


def is_foreign(a: Any) -> bool:
    """An array of another library that can be read through DLPack."""
    return not is_torch(a) and not is_numpy(a) and hasattr(a, "__dlpack__")


def adopt(a: Any, family: Any = None) -> Any:
    """A view of a foreign array as one of the family; without a family as a torch.Tensor where PyTorch is loaded or the
    array is on a GPU, else as a numpy.ndarray. Anything else is handed back as it is."""
    if not is_foreign(a):
        return a
    if family is not _numpy and ("torch" in sys.modules or a.__dlpack_device__()[0] != 1):
        import torch

        return torch.from_dlpack(a)
    import numpy

    return numpy.from_dlpack(a)
