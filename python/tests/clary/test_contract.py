# SPDX-License-Identifier: Apache-2.0
"""What attention computes, for every kind of array; names of tests carry the ids of reported failures (T..)."""

import mmap

import numpy as np
import pytest

import clary
from exact import LIMIT, Foreign, exact, qkv, rel_l1, visible


def check(arrays, out, reference, recipe="auto", slack=1.0):
    out = arrays.numpy(out)
    assert np.isfinite(out).all()
    assert rel_l1(out, reference) < LIMIT[recipe] * slack


@pytest.mark.parametrize("recipe", ["auto", "int8_int8", "int8_fp16", "int8_bf16", "int8_int8:fast", "fp32_fp32"])
@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_layouts_and_recipes(arrays, rng, recipe, layout):
    q, k, v = qkv(rng, kv_heads=2)
    given = [a if layout == "hnd" else a.swapaxes(1, 2) for a in (q, k, v)]
    if arrays.kind == "cuda" and recipe == "fp32_fp32":  # it has no kernel on GPUs
        with pytest.raises(clary.Unsupported, match="fp32_fp32"):
            clary.attention(*map(arrays, given), layout=layout, recipe=recipe)
        return
    out, lse = clary.attention(*map(arrays, given), layout=layout, recipe=recipe, return_lse=True)
    reference, reference_lse = exact(q, k, v)
    assert tuple(out.shape) == given[0].shape
    assert out.flags["C_CONTIGUOUS"] if arrays.kind == "numpy" else out.is_contiguous()
    check(arrays, out if layout == "hnd" else arrays.numpy(out).swapaxes(1, 2) if arrays.kind == "numpy"
          else out.transpose(1, 2), reference, recipe.split(":")[0])  # fmt: skip
    assert tuple(lse.shape) == (2, 4, 130)  # T52: in both layouts
    assert np.abs(arrays.numpy(lse) - reference_lse).max() < 0.05


@pytest.mark.parametrize(
    "lengths", [(1, 1), (1, 64), (1, 5000), (7, 65), (63, 127), (77, 77), (129, 1000), (1001, 503)]
)
def test_t21_t23_t26_lengths(arrays, rng, lengths):
    q, k, v = qkv(rng, batch=1, heads=2, q_len=lengths[0], kv_len=lengths[1])
    check(arrays, clary.attention(*map(arrays, (q, k, v))), exact(q, k, v)[0], slack=1.5)


@pytest.mark.parametrize("shape", [(9, 20, 12, 128), (1, 20, 9, 128)])
def test_t20_short_windows_fp16(arrays, rng, shape):
    q, k, v = (rng.standard_normal(shape, dtype=np.float32).astype(np.float16) for _ in range(3))
    check(arrays, clary.attention(*map(arrays, (q, k, v))), exact(q, k, v)[0], slack=1.5)


def test_t27_no_keys_and_no_queries(arrays, rng):
    q, k, v = qkv(rng, q_len=5, kv_len=0)
    out, lse = clary.attention(*map(arrays, (q, k, v)), return_lse=True)
    assert (arrays.numpy(out) == 0).all() and (arrays.numpy(lse) == -np.inf).all()
    for shapes in ({"q_len": 0, "kv_len": 5}, {"batch": 0}):
        q, k, v = qkv(rng, **shapes)
        assert tuple(clary.attention(*map(arrays, (q, k, v))).shape) == q.shape


@pytest.mark.parametrize("dim", [8, 16, 32, 40, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256])
def test_t47_t48_head_dims(arrays, rng, dim):
    q, k, v = qkv(rng, batch=1, heads=2, dim=dim)
    check(arrays, clary.attention(*map(arrays, (q, k, v))), exact(q, k, v)[0], slack=1.5)


@pytest.mark.parametrize("dim", [257, 384, 512])
def test_t47_large_head_dims_take_the_exact_path(rng, dim):
    q, k, v = qkv(rng, batch=1, heads=1, q_len=20, dim=dim)
    assert rel_l1(clary.attention(q, k, v), exact(q, k, v)[0]) < 1e-5
    assert clary.last_kernel().endswith("fp32_fp32")
    with pytest.raises(clary.Unsupported, match="head_dim"):
        clary.attention(q, k, v, recipe="int8_int8")


def test_head_dim_of_v_of_its_own(arrays, rng):
    q, k, v = qkv(rng, dim=64, dim_v=128)
    check(arrays, clary.attention(*map(arrays, (q, k, v))), exact(q, k, v)[0])


@pytest.mark.parametrize("heads", [(28, 4), (8, 1), (6, 6)])
def test_t51_grouped_heads(arrays, rng, heads):
    q, k, v = qkv(rng, batch=1, heads=heads[0], kv_heads=heads[1], q_len=70)
    check(arrays, clary.attention(*map(arrays, (q, k, v))), exact(q, k, v)[0], slack=1.2)


def test_t18_t55_heads_of_very_different_size(arrays, rng):
    q, k, v = qkv(rng, heads=16, kv_heads=2, q_len=100)
    k[:, 1] *= 30
    v[:, 1] *= 100
    out, lse = clary.attention(*map(arrays, (q, k, v)), return_lse=True, scale=0.02)
    reference, reference_lse = exact(q, k, v, scale=0.02)
    for half in (slice(0, 8), slice(8, 16)):
        assert rel_l1(arrays.numpy(out)[:, half], reference[:, half]) < 0.04
    # Scores of the loud heads reach 20, of which INT8 keeps a hundredth.
    assert np.abs(arrays.numpy(lse) - reference_lse).max() < 0.25
    assert np.abs(arrays.numpy(lse) - reference_lse).mean() < 0.03


@pytest.mark.parametrize("types", [("float32",) * 3, ("float32", "float32", "float16"), ("float16",) * 3])
def test_t49_t50_types(arrays, rng, types):
    tensors = [arrays(a, t) for a, t in zip(qkv(rng), types)]
    out = clary.attention(*tensors)
    assert out.dtype == tensors[0].dtype
    check(arrays, out, exact(*map(arrays.numpy, tensors))[0])


def test_bfloat16(arrays, rng):
    if arrays.kind == "numpy":
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="numpy has no bfloat16 of its own")
        tensors = [a.astype(ml_dtypes.bfloat16) for a in qkv(rng)]
        out = clary.attention(*tensors)
        assert out.dtype == ml_dtypes.bfloat16
        assert rel_l1(out.astype(np.float32), exact(*[t.astype(np.float32) for t in tensors])[0]) < LIMIT["auto"]
        return
    tensors = [arrays(a, "bfloat16") for a in qkv(rng)]
    out = clary.attention(*tensors)
    assert out.dtype == tensors[0].dtype
    check(arrays, out, exact(*map(arrays.numpy, tensors))[0])


def test_t38_scale_is_honoured(arrays, rng):
    q, k, v = qkv(rng)
    for scale in (0.5, 0.0, -0.1):
        check(arrays, clary.attention(*map(arrays, (q, k, v)), scale=scale), exact(q, k, v, scale=scale)[0], slack=2)


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
@pytest.mark.parametrize("lengths", [(1, 5), (100, 100), (40, 200), (200, 40)])
def test_t43_causal_corners(arrays, rng, causal, lengths):
    q, k, v = qkv(rng, q_len=lengths[0], kv_len=lengths[1])
    reference, reference_lse = exact(q, k, v, mask=visible(*lengths, causal))
    out, lse = clary.attention(*map(arrays, (q, k, v)), causal=causal, return_lse=True)
    check(arrays, out, reference, slack=1.5)
    empty = ~np.isfinite(reference_lse)
    assert (arrays.numpy(lse)[empty] == -np.inf).all() and (arrays.numpy(out)[empty] == 0).all()


def test_causal_true_means_one_thing_only(arrays, rng):
    q, k, v = qkv(rng)
    same = clary.attention(*map(arrays, (q, k, v)), causal=True)
    assert (same == clary.attention(*map(arrays, (q, k, v)), causal="top_left")).all()
    with pytest.raises(ValueError, match="ambiguous.*bottom_right"):
        clary.attention(arrays(q), arrays(k[:, :, :9]), arrays(v[:, :, :9]), causal=True)
    with pytest.raises(ValueError, match="ambiguous"):
        clary.attention(*map(arrays, (q, k, v)), causal=True, kv_lengths=arrays(np.array([3, 4], np.int32)))


def test_causal_offsets(arrays, rng):
    q, k, v = qkv(rng, q_len=30, kv_len=90)
    check(arrays, clary.attention(*map(arrays, (q, k, v)), causal_offset=20),
          exact(q, k, v, mask=visible(30, 90, None, 20))[0], slack=1.5)  # fmt: skip
    each = np.stack([visible(30, 90, None, offset) for offset in (5, 60)])[:, None]
    out = clary.attention(*map(arrays, (q, k, v)), causal_offset=arrays(np.array([5, 60], np.int64)))
    check(arrays, out, exact(q, k, v, mask=each)[0], slack=1.5)


def test_window_and_kept_keys(arrays, rng):
    q, k, v = qkv(rng)
    rows, keys = np.arange(130)[:, None], np.arange(130)[None]
    near = (keys >= rows - 16) & (keys <= rows + 3)
    check(arrays, clary.attention(*map(arrays, (q, k, v)), window=(16, 3)), exact(q, k, v, mask=near)[0], slack=1.5)
    near = ((keys >= rows - 16) | (keys < 4)) & (keys <= rows)
    out = clary.attention(*map(arrays, (q, k, v)), window=(16, -1, 4), causal=True)
    check(arrays, out, exact(q, k, v, mask=near)[0], slack=1.5)


@pytest.mark.parametrize("shape", [(2, 1, 1, 37), (1, 1, 130, 37), (2, 4, 130, 37), (130, 37), (37,)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "float16"])
def test_t37_t42_masks(arrays, rng, shape, dtype):
    q, k, v = qkv(rng, kv_len=37)
    mask = rng.random(shape) < 0.7 if dtype == "bool" else rng.standard_normal(shape).astype(dtype)
    mask[..., 0] = True if dtype == "bool" else 0.5
    reference = exact(q, k, v, mask=mask)[0]
    check(arrays, clary.attention(*map(arrays, (q, k, v)), mask=arrays(mask)), reference, slack=1.5)
    whole = np.broadcast_to(mask, (2, 4, 130, 37))  # strides of 0
    if arrays.kind != "numpy":
        whole = arrays(mask).expand(2, 4, 130, 37)
    check(arrays, clary.attention(*map(arrays, (q, k, v)), mask=whole), reference, slack=1.5)


def test_t40_bias_is_in_natural_units(arrays):
    q, k = np.zeros((1, 1, 1, 64), np.float32), np.zeros((1, 1, 2, 64), np.float32)
    v = np.zeros((1, 1, 2, 64), np.float32)
    v[0, 0] = [[-1], [1]]
    out = clary.attention(*map(arrays, (q, k, v)), mask=arrays(np.array([0, 2], np.float32)))
    weight = (arrays.numpy(out) + 1) / 2  # 0.800 where log2(e) is forgotten
    assert abs(weight - 1 / (1 + np.exp(-2.0))).max() < 0.002


def test_t41_a_row_without_keys(arrays, rng):
    q, k, v = qkv(rng)
    mask = np.ones((130, 130), bool)
    mask[17] = False
    out, lse = clary.attention(*map(arrays, (q, k, v)), mask=arrays(mask), return_lse=True)
    assert (arrays.numpy(out)[:, :, 17] == 0).all() and (arrays.numpy(lse)[:, :, 17] == -np.inf).all()
    check(arrays, out, exact(q, k, v, mask=mask)[0])


def test_padding_alibi_and_sinks(arrays, rng):
    q, k, v = qkv(rng)
    keys = np.arange(130)
    real = (keys < np.array([30, 130])[:, None])[:, None, None]
    out = clary.attention(*map(arrays, (q, k, v)), kv_lengths=arrays(np.array([30, 130], np.int32)))
    check(arrays, out, exact(q, k, v, mask=real)[0], slack=1.5)
    slopes = np.array([0.5, 0.25, 0.1, 0.0], np.float32)
    bias = -slopes[:, None, None] * abs(keys[:, None] - keys)
    check(
        arrays,
        clary.attention(*map(arrays, (q, k, v)), alibi_slopes=arrays(slopes)),
        exact(q, k, v, mask=bias)[0],
        slack=2,
    )
    sinks = np.array([0.0, 3.0, -2.0, 5.0], np.float32)
    out, lse = clary.attention(*map(arrays, (q, k, v)), sinks=arrays(sinks), return_lse=True)
    reference, reference_lse = exact(q, k, v, sinks=sinks)
    check(arrays, out, reference, slack=1.5)
    assert np.abs(arrays.numpy(lse) - reference_lse).max() < 0.05


def test_paged_keys(arrays, rng):
    q, k, v = qkv(rng, q_len=20, kv_len=48)
    table = np.array([[5, 2, 0], [1, 4, 3]], np.int32)
    pages = [np.zeros((6, 4, 16, 64), np.float32) for _ in range(2)]
    for paged, dense in zip(pages, (k, v)):
        for b in range(2):
            for page in range(3):
                paged[table[b, page]] = dense[b, :, 16 * page : 16 * page + 16]
    lengths = np.array([48, 33], np.int32)
    out = clary.attention(arrays(q), *map(arrays, pages), block_table=arrays(table), kv_lengths=arrays(lengths))
    mask = (np.arange(48) < lengths[:, None])[:, None, None]
    check(arrays, out, exact(q, k, v, mask=mask)[0], slack=1.5)


def test_t28_t34_strided_views(arrays, rng):
    q, k, v = qkv(rng, heads=3)
    fused = arrays(np.concatenate([a.swapaxes(1, 2) for a in (q, k, v)], axis=2))  # [B, L, 3 H, D]
    views = [fused[:, :, 3 * i : 3 * i + 3] for i in range(3)]
    expected = clary.attention(*map(arrays, (q, k, v)))
    out = clary.attention(*views, layout="nhd")
    assert (arrays.numpy(out).swapaxes(1, 2) == arrays.numpy(expected)).all()
    # The last dimension not contiguous.
    turned = [arrays(np.ascontiguousarray(a.swapaxes(2, 3))) for a in (q, k, v)]
    turned = [a.swapaxes(2, 3) for a in turned]
    assert (clary.attention(*turned) == expected).all()


def test_t28_t29_offsets_beyond_2_to_31():
    """Views of a fused projection of 4.3 GB, of which a hundredth is touched: the last keys lie behind 2^31
    elements."""
    length, width = 99_866, 3 * 56 * 128
    memory = mmap.mmap(-1, length * width * 2)  # pages that nobody writes stay unreal
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    fused = np.frombuffer(memory, np.float16).reshape(1, length, width // 128, 128)
    assert (length - 1) * width > 2**31 - width
    rng = np.random.default_rng(0)
    for head in (0, 56, 112):
        fused[:, :, head] = rng.standard_normal((1, length, 128), dtype=np.float32)
    q, k, v = fused[:, -40:, :1], fused[:, :, 56:57], fused[:, :, 112:113]
    out = clary.attention(q, k, v, layout="nhd")
    assert (out == clary.attention(*map(np.ascontiguousarray, (q, k, v)), layout="nhd")).all()
    # The last keys count: seen alone through a window, they give what they give alone.
    out = clary.attention(q, k, v, layout="nhd", causal="bottom_right", window=(30, 0))
    reference = exact(*[np.ascontiguousarray(a[:, -80:]).swapaxes(1, 2) for a in (q, k, v)],
                      mask=visible(40, 80, "bottom_right") & ~visible(40, 80, None, 9))[0]  # fmt: skip
    assert rel_l1(out.swapaxes(1, 2), reference) < 0.03


def test_t36_more_than_65535_heads(arrays, rng):
    q, k, v = qkv(rng, batch=1, heads=70_000, q_len=3, dim=16)
    out = arrays.numpy(clary.attention(*map(arrays, (q, k, v))))
    assert (
        rel_l1(out, exact(q, k, v)[0]) < 0.03
        and rel_l1(out[:, -100:], exact(q[:, -100:], k[:, -100:], v[:, -100:])[0]) < 0.05
    )


def test_t16_inputs_stay_as_they_are(arrays, rng):
    tensors = [arrays(a) for a in qkv(rng)]
    before = [arrays.numpy(t).copy() for t in tensors]
    clary.attention(*tensors)
    clary.attention_consume(list(tensors))
    assert all((arrays.numpy(t) == b).all() for t, b in zip(tensors, before))


def test_t01_t02_values_beyond_fp16(arrays, rng):
    q, k, v = qkv(rng, batch=1, heads=1, q_len=64)
    out = clary.attention(arrays(q), arrays(np.zeros_like(k)), arrays(np.full_like(v, 1100)))
    assert np.abs(arrays.numpy(out) - 1100).max() < 1
    v[0, 0, 7, 3] = 1e5
    check(arrays, clary.attention(*map(arrays, (q, k, v))), exact(q, k, v)[0], slack=4)


def test_t06_t11_peaked_and_flat_rows(arrays, rng):
    q, k, v = qkv(rng, batch=1, heads=1, q_len=226)
    sharp = arrays.numpy(clary.attention(arrays(q * 100), arrays(q * 100), arrays(v)))
    assert np.isfinite(sharp).all() and rel_l1(sharp, v) < 0.03
    for zero in (0, 1):
        tensors = [q, k, v]
        tensors[zero] = np.zeros_like(q)
        assert rel_l1(arrays.numpy(clary.attention(*map(arrays, tensors))), exact(*tensors)[0]) < 0.1


def test_t09_t13_t14_channels(arrays, rng):
    q, k, v = qkv(rng, batch=1, heads=2, q_len=512, dim=128)
    silent = v.copy()
    silent[..., 5] = 0
    assert np.abs(arrays.numpy(clary.attention(*map(arrays, (q, k, silent))))[..., 5]).max() < 0.02
    offset = k.copy()
    offset[..., :4] += 50
    check(arrays, clary.attention(*map(arrays, (q, offset, v))), exact(q, offset, v)[0], slack=1.2)
    loud = k.copy()
    loud[..., 9] += 100 * np.where(np.arange(512) % 2, 1, -1)
    q[..., 9] *= 0.05
    assert rel_l1(arrays.numpy(clary.attention(*map(arrays, (q, loud, v)))), exact(q, loud, v)[0]) < 0.1


def test_t17_packed_sequences(arrays, rng):
    lengths_q, lengths_k = [40, 0, 7, 90], [40, 10, 0, 33]
    q, _, _ = qkv(rng, batch=1, heads=4, q_len=sum(lengths_q))
    _, k, v = qkv(rng, batch=1, heads=4, kv_heads=2, kv_len=sum(lengths_k))
    cu_q, cu_k = (np.cumsum([0, *lengths], dtype=np.int32) for lengths in (lengths_q, lengths_k))
    for i, mean in enumerate((20, 5, 0, -20)):
        k[:, :, cu_k[i] : cu_k[i + 1]] += mean
    packed = [arrays(np.ascontiguousarray(a[0].swapaxes(0, 1))) for a in (q, k, v)]
    out, lse = clary.attention_varlen(*packed, arrays(cu_q), arrays(cu_k), causal="bottom_right", return_lse=True)
    assert tuple(out.shape) == (137, 4, 64) and tuple(lse.shape) == (4, 137)
    for i in range(4):
        part_q, part_k = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        alone = [arrays(a) for a in (q[:, :, part_q], k[:, :, part_k], v[:, :, part_k])]
        expected = arrays.numpy(clary.attention(*alone, causal="bottom_right"))[0]
        assert (arrays.numpy(out)[part_q].swapaxes(0, 1) == expected).all()
    with pytest.raises(ValueError, match="ambiguous"):
        clary.attention_varlen(*packed, arrays(cu_q), arrays(cu_k), causal=True)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_t54_merge_equals_one_call(arrays, rng, shards):
    q, k, v = qkv(rng, q_len=64, kv_len=512)
    k += np.repeat(np.arange(8), 64)[:, None] * 0.5  # shards of different means
    whole, whole_lse = exact(q, k, v)
    parts = [clary.attention(*map(arrays, (q, *[np.split(a, shards, 2)[i] for a in (k, v)])), return_lse=True)
             for i in range(shards)]  # fmt: skip
    empty = clary.attention(arrays(q), arrays(k[:, :, :0]), arrays(v[:, :, :0]), return_lse=True)
    out, lse = clary.merge(*empty, *parts[0])  # an empty first block poisons nothing
    for part in parts[1:]:
        given = out
        out, lse = clary.merge(out, lse, *part)
        assert out is given
    check(arrays, out, whole)
    assert np.abs(arrays.numpy(lse) - whole_lse).max() < 0.05


def test_out_of_any_stride_and_type(arrays, rng):
    q, k, v = map(arrays, qkv(rng))
    expected = clary.attention(q, k, v)
    wide = arrays(np.full((2, 4, 130, 128), 7, np.float32))
    given = wide[..., ::2]
    assert clary.attention(q, k, v, out=given) is given
    assert (given == expected).all() and (wide[..., 1::2] == 7).all()
    half = [arrays(a, "float16") for a in qkv(rng)]
    single = arrays(np.full((2, 4, 130, 64), np.nan, np.float32))
    clary.attention(*half, out=single)  # T61: overwritten whole
    assert rel_l1(arrays.numpy(clary.attention(*half)), arrays.numpy(single)) < 2e-3


def test_same_bits_every_time(arrays, rng):
    q, k, v = map(arrays, qkv(rng))
    first = clary.attention(q, k, v)
    assert all((clary.attention(q, k, v) == first).all() for _ in range(20))


def test_number_of_threads(rng):
    q, k, v = qkv(rng)
    expected, before = clary.attention(q, k, v), clary.get_num_threads()
    try:
        for count in (1, 3):
            clary.set_num_threads(count)
            assert clary.get_num_threads() == count
            assert (clary.attention(q, k, v) == expected).all()
    finally:
        clary.set_num_threads(before)
    with pytest.raises(ValueError, match="threads: -1"):
        clary.set_num_threads(-1)


def test_dlpack_of_another_library(rng):
    """Whatever speaks DLPack is read where it lies."""

    q, k, v = qkv(rng)
    mask = rng.standard_normal((130, 130), dtype=np.float32)
    out = clary.attention(*map(Foreign, (q, k, v)), mask=Foreign(mask))
    assert (np.asarray(out) == clary.attention(q, k, v, mask=mask)).all()
