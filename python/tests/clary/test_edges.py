# SPDX-License-Identifier: Apache-2.0
"""What callers hand in by mistake or by habit: numbers out of range, arrays that are not what they seem, memory that
overlaps, foreign arrays among others. Each was once a wrong result or an unclear error."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import clary
from exact import Foreign, qkv

HUGE = 2**70  # ctypes keeps the low 64 bits: 0


@pytest.fixture
def good(arrays, rng):
    return [arrays(a) for a in qkv(rng, heads=4, kv_heads=2, q_len=20)]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"window": (HUGE, 1)}, "window: .*allowed"),
        ({"causal_offset": HUGE}, "causal_offset: 1180591620717411303424; allowed: -2\\^62..2\\^62"),
        ({"causal_offset": -HUGE}, "causal_offset: -1180591620717411303424"),
        ({"causal_offset": True}, "causal_offset: True; allowed: .*, or an int array"),
        ({"causal_offset": 1.5}, "causal_offset: 1.5; allowed"),
        ({"causal_offset": [1, 2]}, r"causal_offset: \[1, 2\]; allowed"),
        ({"scale": "0.5"}, "scale: '0.5'; allowed: a number or None"),
        ({"scale": True}, "scale: True; allowed: a number"),
        ({"scale": [1]}, r"scale: \[1\]; allowed: a number"),
        ({"scale": 1j}, "scale: 1j; allowed: a number"),
        ({"scale": 10**400}, "scale: .*allowed: a number"),
        ({"recipe": "int8_int8\0fast"}, "recipe: 'int8_int8.*allowed"),
        ({"recipe": "int8_int8\ud800"}, "recipe: 'int8_int8.*allowed"),
        ({"backend": "cpu\0"}, "backend: 'cpu.*allowed"),
    ],
)
def test_options_out_of_range(good, options, text):
    with pytest.raises(clary.InvalidArgument, match=text):
        clary.attention(*good, **options)


def test_counts_out_of_range(good):
    q, k, v = good
    for call, text in [
        (lambda: clary.quantize_kv(k, v, q=q, capacity=HUGE), "capacity: 1180591620717411303424; allowed"),
        (lambda: clary.quantize_kv(k, v, q=q, capacity=1.5), "capacity: 1.5; allowed"),
        (lambda: clary.quantize_kv(k, v, q_heads="4", recipe="int8_int8:fast"), "q_heads: '4'; allowed"),
        (lambda: clary.KVCache("5"), "capacity: '5'; allowed"),
        (lambda: clary.KVCache(HUGE), "capacity: 1180591620717411303424; allowed"),
        (lambda: clary.set_num_threads(2**32 + 2), "threads: 4294967298; allowed"),
        (lambda: clary.set_num_threads("2"), "threads: '2'; allowed"),
        (lambda: clary.explain((1, 1, HUGE, 64)), "q: shape.2.: 1180591620717411303424; allowed"),
        (lambda: clary.explain("abcd"), "q_shape: .*allowed"),
        (lambda: clary.explain((1, 1, 1, 64), device="cuda:x"), "device: 'cuda:x'; allowed"),
        (lambda: clary.explain((1, 1, 1, 64), mask="foo"), "mask: dtype foo"),
        (lambda: clary.attention_varlen(q[0], k[0], v[0], k, v, max_seqlen_q=HUGE), "max_seqlen_q: 11805"),
        (lambda: clary.attention_varlen(q[0], k[0], v[0], k, v, max_seqlen_q="a"), "max_seqlen_q: 'a'; allowed"),
    ]:
        with pytest.raises(clary.InvalidArgument, match=text):
            call()


def test_a_cache_refuses_its_options_at_once():
    for options, text in [({"recipe": "int9"}, "recipe: unknown name 'int9'"), ({"layout": "x"}, "layout: 'x'"),
                          ({"scale": "a"}, "scale: 'a'"), ({"backend": "tpu"}, "backend: 'tpu'")]:  # fmt: skip
        with pytest.raises(clary.InvalidArgument, match=text):
            clary.KVCache(8, **options)


def test_packed_refusals_name_what_differs(good, arrays):
    q, k, v = good
    packed = clary.quantize_kv(k, v, q=q, capacity=30)
    with pytest.raises(clary.InvalidArgument, match="k: heads is 1, but the packed keys have 2"):
        packed.append(k[:, :1], v[:, :1])
    with pytest.raises(clary.InvalidArgument, match="k: head_dim is 32, but the packed keys have 64"):
        packed.append(k[..., :32], v[..., :32])
    with pytest.raises(clary.InvalidArgument, match="v: head_dim is 32, but the packed values have 64"):
        packed.append(k, v[..., :32])
    many = arrays(np.zeros((2, 2, 40, 64), np.float32))
    with pytest.raises(clary.InvalidArgument, match="k: 40 tokens behind 20 pass the capacity; allowed: 10 more"):
        packed.append(many, many)
    assert packed.length == 20
    for wrong in ((k, v, q), [k, v], "abc"):
        with pytest.raises(TypeError, match="qkv: .*allowed: a list"):
            clary.attention_consume(wrong)


def test_length_of_a_ragged_cache(good, arrays):
    q, k, v = good
    read_back = arrays.kind != "cuda"  # a GPU is not waited for
    cache = clary.KVCache(24)
    cache.append(k, v, q=q, kv_lengths=arrays(np.array([3, 9], np.int32)))
    assert cache.length == (9 if read_back else 20)
    cache.append(k, v, kv_lengths=arrays(np.array([13, 2], np.int32)))
    assert cache.length == (16 if read_back else 24) and arrays.numpy(cache.packed.lengths).tolist() == [16, 11]
    if not read_back:
        return
    cache.append(k[:, :, :8], v[:, :, :8])
    assert cache.length == 24 and arrays.numpy(cache.packed.lengths).tolist() == [24, 19]


def test_packed_keys_can_be_copied_and_kept(good, arrays):
    q, k, v = good
    cache = clary.KVCache(40)
    cache.append(k, v, q=q)
    expected = cache.attend(q)
    for twin in (copy.copy(cache.packed), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (twin.attend(q) == expected).all()
    twin = copy.deepcopy(cache)
    twin.append(k[:, :, :5], v[:, :, :5])
    assert (twin.length, cache.length) == (25, 20)
    assert (cache.attend(q) == expected).all()  # the copy has memory of its own
    for part in (cache.packed, twin.packed):
        assert part._family.pointer(part.memory) % 64 == 0
    assert "20 of 40 keys" in repr(cache) and "int8_int8:accurate" in repr(cache.packed)


def test_a_result_may_not_overlap_an_input(arrays, rng):
    heads = arrays(rng.standard_normal((2, 21, 12, 64), dtype=np.float32))
    q, k, v, free = (heads[:, :20, 3 * i : 3 * i + 3] for i in range(4))
    expected = clary.attention(q, k, v, layout="nhd")
    assert (clary.attention(q, k, v, layout="nhd", out=free) == expected).all()  # side by side in one buffer
    for wrong in (heads[:, 1:, :3], heads[:, :20, 1:4], heads[:, :20, 8:11]):
        with pytest.raises(clary.InvalidArgument, match="out: overlaps [qv]; allowed: memory of its own"):
            clary.attention(q, k, v, layout="nhd", out=wrong)
    mask = arrays(np.zeros((20, 20), np.float32))
    with pytest.raises(clary.InvalidArgument, match="out: overlaps mask"):
        clary.attention(*(x[:1, :5, :1, :4] for x in (q, k, v)), layout="nhd", mask=mask[:5, :5],
                        out=mask[None, :5, None, :4])  # fmt: skip


def test_read_only_memory_is_not_written(rng):
    q, k, v = qkv(rng)
    out = np.zeros_like(q)
    out.flags.writeable = False
    with pytest.raises(clary.InvalidArgument, match="out: is read-only"):
        clary.attention(q, k, v, out=out)
    partial, lse = clary.attention(q, k, v, return_lse=True)
    partial.flags.writeable = False
    with pytest.raises(clary.InvalidArgument, match="out_a: is read-only"):
        clary.merge(partial, lse, partial, lse)
    assert (out == 0).all()
    q.flags.writeable = False  # inputs may be
    clary.attention(q, k, v)


def test_masked_arrays_would_lose_their_mask(rng):
    q, k, v = qkv(rng)
    with pytest.raises(TypeError, match="q: numpy.*MaskedArray"):
        clary.attention(np.ma.masked_array(q, q > 0), k, v)


def test_dlpack_objects_among_others(good, arrays):
    q, k, v = good
    expected = clary.attention(q, k, v, causal=True)
    names = {"numpy": np.ndarray}
    for which in ((1, 2), (0, 1, 2)) if arrays.kind != "numpy" else ((1, 2),):
        mixed = [Foreign(a) if i in which else a for i, a in enumerate(good)]
        out = clary.attention(*mixed, causal=True)
        assert (out == expected).all() and isinstance(out, names.get(arrays.kind, type(q)))
    mask = arrays(np.where(np.tri(20, dtype=bool), np.float32(0), np.float32("-inf")))
    assert (clary.attention(q, k, v, mask=Foreign(mask)) == expected).all()
    out = clary.attention(q, k, v, kv_lengths=Foreign(arrays(np.array([20, 7], np.int32))))
    assert (out[0] == clary.attention(q[:1], k[:1], v[:1])[0]).all()
    if arrays.kind == "torch":
        assert clary.explain(Foreign(q))["problem"]["q_len"] == 20


def test_merge_needs_all_four(good):
    out, lse = clary.attention(*good, return_lse=True)
    for wrong in ((None, lse, out, lse), (out, None, out, lse), (out, lse, out, None)):
        with pytest.raises(TypeError, match="builtins.NoneType; allowed"):
            clary.merge(*wrong)


def test_explain_takes_what_arrays_have():
    torch = pytest.importorskip("torch")
    assert clary.explain((1, 1, 9, 64), dtype=torch.float16, device=torch.device("cpu"))["kernel"]


def test_names_of_the_module():
    assert {"sdpa", "patch", "attention"} <= set(dir(clary)) and clary.sdpa.__doc__ and clary.patch.__doc__
    # also where PyTorch is not installed
    code = "import sys, inspect; sys.modules['torch'] = None; from clary import *; print(inspect.signature(sdpa))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "policy" in done.stdout, done.stderr
    done = subprocess.run([sys.executable, "-c", code + "; sdpa()"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr and "torch" in done.stderr
