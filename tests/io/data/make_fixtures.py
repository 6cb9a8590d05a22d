#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the files beside this script with the formats' own writers (numpy, safetensors), for tests/io.

Every array counts 0, 1, 2, ... (bool: 0, 1, 0, ...; at most 6 elements, so that fp8 holds them), hence a test knows its
content from dtype and shape. Needs numpy, safetensors and torch. Usage: make_fixtures.py
"""

import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
SHAPE = (2, 3)
NUMPY_DTYPES = ["float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]
TORCH_DTYPES = [*NUMPY_DTYPES, "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def count(shape, dtype="float32"):
    values = np.arange(int(np.prod(shape))).reshape(shape)
    return (values % 2 if dtype == "bool" else values).astype(dtype)


def torch_count(dtype):
    values = torch.arange(6)
    return (values % 2 if dtype == "bool" else values).reshape(SHAPE).to(getattr(torch, dtype))


def make_safetensors(folder):
    tensors = {name: torch_count(name) for name in TORCH_DTYPES}
    tensors["scalar"] = torch.zeros(())
    tensors["empty"] = torch.zeros((2, 0, 3), dtype=torch.float16)
    tensors['layer.0 "q" é'] = torch.arange(4, dtype=torch.float32)
    save_file(tensors, folder / "all_dtypes.safetensors", metadata={"layout": 'hnd\n"é"'})
    save_file({"x": torch.arange(4, dtype=torch.float32)}, folder / "one.safetensors")
    save_file({}, folder / "none.safetensors")


def make_npy(folder):
    for name in NUMPY_DTYPES:
        np.save(folder / f"{name}.npy", count(SHAPE, name))
    np.save(folder / "scalar.npy", count(()))
    np.save(folder / "vector.npy", count((5,)))
    np.save(folder / "empty.npy", count((2, 0, 3)))
    np.save(folder / "dims6.npy", count((1, 2, 1, 3, 1, 1), "float16"))
    np.save(folder / "fortran.npy", np.asfortranarray(np.arange(24, dtype="int16").reshape(2, 3, 4)))
    np.save(folder / "big_endian.npy", count(SHAPE, ">f4"))
    np.save(folder / "structured.npy", np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]))
    np.save(folder / "complex.npy", np.zeros(2, dtype="complex64"))
    for major in (2, 3):
        with open(folder / f"version{major}.npy", "wb") as file:
            np.lib.format.write_array(file, count(SHAPE), version=(major, 0))


def make_npz(folder):
    arrays = {"q": count(SHAPE), "mask": count((2, 2), "bool"), "größe": count((), "int64"), "empty": count((0,), "int8")}
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "deflate.npz", **arrays, zeros=np.zeros((64, 64), "float32"))
    np.savez(folder / "none.npz")
    # zip64 records in a small file: Python writes them above this limit.
    limit, zipfile.ZIP64_LIMIT = zipfile.ZIP64_LIMIT, 100
    np.savez(folder / "zip64.npz", **arrays)
    zipfile.ZIP64_LIMIT = limit
    # Sizes after the data (flag bit 3), as a writer to a pipe makes them, and a comment at the end.
    with open(folder / "streamed.npz", "wb") as file:
        file.seekable = lambda: False
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.comment = b"made by a test"
            with archive.open("q.npy", "w") as entry:
                np.lib.format.write_array(entry, count(SHAPE))
    with zipfile.ZipFile(folder / "bzip2.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(HERE / "npy" / "vector.npy", "q.npy")


def main():
    for make in (make_safetensors, make_npy, make_npz):
        folder = HERE / make.__name__.removeprefix("make_")
        folder.mkdir(exist_ok=True)
        make(folder)


if __name__ == "__main__":
    main()
