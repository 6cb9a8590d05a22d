# SPDX-License-Identifier: Apache-2.0
"""Quantize and attend as two steps: K and V quantized once and attended to many times, caches, and freeing Q, K and V
early."""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any

from . import _structs, _tracing
from ._arrays import ALIGNMENT, WIDTHS, adopt, family_of, is_torch
from ._explain import explain
from ._library import check, lib
from ._problem import (
    Options,
    Plan,
    contiguous,
    fresh_results,
    gather,
    parse_causal,
    parse_index,
    parse_layout,
    parse_recipe,
    parse_scale,
    parse_window,
    plan_for,
)
from .errors import InvalidArgument, Unsupported

Array = Any

_CAPACITY = "0 (what k has), or at least that, at most 2^40"


def _layouts(plan: Plan, capacity: int) -> tuple[_structs.PackedLayout, _structs.PackedLayout]:
    made = [_structs.PackedLayout(struct_size=ctypes.sizeof(_structs.PackedLayout)) for _ in range(2)]
    check(lib.clary_packed_layouts(ctypes.byref(plan.params), ctypes.c_int64(capacity), *map(ctypes.byref, made)))
    return made[0], made[1]


def _buffer(family: Any, memory: Array, where: tuple[int, int], capacity: int) -> _structs.Packed:
    return _structs.Packed(struct_size=ctypes.sizeof(_structs.Packed), device=where[0], device_index=where[1],
                           data=family.pointer(memory), bytes=memory.shape[0], kv_capacity=capacity)  # fmt: skip


def _traced(what: str, arrays: dict[str, Array]) -> bool:
    """Whether PyTorch is tracing, so that the call must become an operator."""
    if not is_torch(arrays["k" if "k" in arrays else "q"]):
        return False
    _tracing.refuse(what, arrays)
    return _tracing.active(arrays)


class PackedKV:
    """Quantized K and V, made by :func:`quantize_kv`.

    Attributes:
        capacity: keys per sequence that there is room for; 0: no more than were packed.
        length: keys of the longest sequence now; on a GPU no fewer than that, and as this object was told (a replayed
            CUDA graph appends without it).
        recipe: the recipe in full.
        memory: the packed bytes, a uint8 array (docs/packed_format.md).
    """

    def __init__(self, family: Any, options: Options, shapes: dict[str, tuple], capacity: int, length: int):
        self._family, self._options, self._shapes = family, options, shapes  # by "k" and "v": what describe() answers
        self.capacity, self._length = capacity, length
        self.recipe, self.memory, self._sections = "", None, {}
        self._text = ""  # all of this but memory and length, for operators: they take tensors, numbers and texts

    def _describe(self) -> str:
        return json.dumps([self._options, self._shapes, self.capacity, self.recipe, self._sections])

    @classmethod
    def _of(cls, text: str, memory: Array) -> PackedKV:
        """The one that was described, with other memory, whose lengths only that memory knows."""
        options, shapes, capacity, recipe, sections = _parse(text)
        made = cls(family_of("memory", memory), options, shapes, capacity, None)
        if not capacity:  # it takes no more keys
            made._length = shapes["k"][3][1 if options.layout == "nhd" else 2]
        made.recipe, made.memory, made._sections, made._text = recipe, memory, sections, text
        return made

    @property
    def length(self) -> int:
        known = self._known_length()
        if known is None:
            known = self._length = int(self.lengths.max())
        return known

    def _known_length(self) -> int | None:
        """None where a GPU would have to be waited for."""
        if self._length is None and not self._shapes["k"][1]:
            return int(max(self.lengths, default=0))
        return self._length

    @property
    def nbytes(self) -> int:
        return self.memory.shape[0]

    def section(self, name: str) -> Array:
        """A view of one array inside, e.g. ``"k_codes"`` or ``"lengths"``, with the types that numpy and torch have."""
        dtype, shape, offset = self._sections[name]
        count = 1
        for extent in shape:
            count *= extent
        width = WIDTHS.get(dtype, 1)
        return self._family.reinterpret(self.memory[offset : offset + count * width], dtype, shape)

    def __repr__(self) -> str:
        return f"PackedKV({self.length} of {self.capacity or self.length} keys, {self.recipe}, {self.nbytes} bytes)"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_family"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._family = family = family_of("memory", self.memory)
        if family.pointer(self.memory) % ALIGNMENT:  # as copies of numpy's may lie
            aligned = family.bytes(self.nbytes, self.memory)
            aligned[:] = self.memory
            self.memory = aligned

    @property
    def lengths(self) -> Array:
        """int64 ``[batch]``: keys of each sequence, a view of the packed bytes."""
        return self.section("lengths")

    def _fixed(self, length: int) -> tuple:
        """K and V as tensors without data."""
        fixed = []
        tokens = 1 if self._options.layout == "nhd" else 2
        for name in ("k", "v"):
            dtype, device, index, shape = self._shapes[name]
            shape = (*shape[:tokens], length, *shape[tokens + 1 :])
            fixed.append((name, (dtype, device, index, shape, contiguous(shape))))
        return tuple(fixed)

    def _packed(self) -> _structs.Packed:
        return _buffer(self._family, self.memory, self._shapes["k"][1:3], self.capacity)

    def attend(
        self,
        q: Array,
        *,
        causal: bool | str = False,
        causal_offset: int | Array | None = None,
        window: tuple[int, ...] | None = None,
        mask: Array | None = None,
        kv_lengths: Array | None = None,
        alibi_slopes: Array | None = None,
        sinks: Array | None = None,
        return_lse: bool = False,
        out: Array | None = None,
    ) -> Array | tuple[Array, Array]:
        """Attention of q to these keys; arguments, result and errors as in :func:`clary.attention`. ``mask`` spans at
        least ``length`` keys."""
        return self._attend(
            [adopt(q)],
            causal,
            causal_offset,
            window,
            adopt(mask),
            adopt(kv_lengths),
            adopt(alibi_slopes),
            adopt(sinks),
            return_lse,
            adopt(out),
        )

    def _attend(
        self,
        holder: list,
        causal: Any,
        causal_offset: Any,
        window: Any,
        mask: Any,
        kv_lengths: Any,
        alibi_slopes: Any,
        sinks: Any,
        return_lse: bool,
        out: Any,
    ) -> Any:
        """`holder` holds q, and alone does, so that q is freed once it is packed."""
        q = holder.pop()
        tokens = 1 if self._options.layout == "nhd" else 2
        arrays = {"q": q, "mask": mask, "kv_lengths": kv_lengths, "alibi_slopes": alibi_slopes, "sinks": sinks,
                  "out": out}  # fmt: skip
        traced = _traced("attend", arrays)
        same = (causal is True and kv_lengths is None and not traced and len(q.shape) == 4
                and q.shape[tokens] == self.length)  # fmt: skip
        kind, offset, offsets = parse_causal(causal, adopt(causal_offset), same)
        arrays["causal_offsets"] = offsets
        if traced:
            made, lse = _tracing.attend(self, arrays, (kind, offset, parse_window(window)), return_lse)
            if out is not None:
                made = out.copy_(made)
            return (made, lse) if return_lse else made
        options = self._options._replace(causal=kind, causal_offset=offset, window=parse_window(window))
        del q
        return self._attend_now(options, arrays, return_lse)

    def _attend_now(self, options: Options, arrays: dict[str, Array], return_lse: bool) -> Any:
        out = arrays["out"]
        family = gather(arrays)
        if family is not self._family:
            raise TypeError(f"q: a {family.name}, but K and V were {self._family.name}; allowed: the same kind")
        fresh = fresh_results(return_lse, out is not None)
        length = self._planned_length(arrays.get("mask"))
        plan = plan_for(family, options, arrays, fresh, self._fixed(length), one_shot=False)
        if self.capacity not in plan.q_bytes:
            plan.q_bytes[self.capacity] = _layouts(plan, self.capacity)[0].bytes
        memory = family.bytes(plan.q_bytes[self.capacity], self.memory)
        bound = plan.bind(arrays)
        q_packed = ctypes.byref(_buffer(family, memory, self._shapes["k"][1:3], self.capacity))
        kv_packed = ctypes.byref(self._packed())
        check(lib.clary_quantize(bound.reference, q_packed, None, kv_packed))
        dtype = arrays["q"].dtype
        del arrays["q"]
        made = {name: family.empty(plan.shapes[name], dtype if name == "out" else family.float32(memory), self.memory)
                for name in fresh}  # fmt: skip
        plan.store(bound, made)
        check(lib.clary_attend(bound.reference, q_packed, kv_packed))
        plan.release(bound)
        if out is not None:
            family.written(out)
        out = made.get("out", out)
        return (out, made["lse"]) if return_lse else out

    def _planned_length(self, mask: Array | None) -> int:
        """Every length that the buffer may come to hold, so that a decode step makes no new plan; but what is beyond a
        mask has no key."""
        width = mask.shape[-1] if mask is not None and len(mask.shape) else 1
        known = self._known_length()
        if width == 1:
            return self.capacity or known
        if known is None and width < self.capacity:
            raise InvalidArgument(
                f"mask: spans {width} keys, and how many there are the GPU knows; allowed: the capacity {self.capacity}"
            )
        return max(width, self.capacity if known is None else known)

    def append(self, k: Array, v: Array, *, kv_lengths: Array | None = None) -> None:
        """Quantizes further keys behind those that are there, with the smoothing vectors of the first: the same bits as
        quantizing all at once with those.

        Args:
            k, v: ``[batch, kv_heads, n, head_dim]`` in the layout of the first.
            kv_lengths: int array ``[batch]``: how many of the n are real, per sequence.

        Raises:
            InvalidArgument: a sequence would pass the capacity (on the CPU; nothing is changed). On a GPU that is known
                in time only for equal lengths; else the sequence takes no key and attending to it gives NaN.
        """
        arrays = {"k": adopt(k), "v": adopt(v), "kv_lengths": adopt(kv_lengths)}
        if _traced("append", arrays):
            _tracing.append(self, arrays)
            self._length = None
        else:
            self._append_now(arrays)

    def _append_now(self, arrays: dict[str, Array]) -> None:
        ragged = arrays["kv_lengths"] is not None
        family = gather(arrays)
        if family is not self._family:
            raise TypeError(
                f"k: a {family.name}, but the first K and V were {self._family.name}; allowed: the same kind"
            )
        known = self._known_length()
        tokens, n = self._check_more(arrays, 0 if ragged or known is None else known)
        dtype, device, index, q_shape = self._shapes["q"]
        q_shape = (*q_shape[:tokens], 0, *q_shape[tokens + 1 :])
        q = ("q", (dtype, device, index, q_shape, contiguous(q_shape)))
        plan = plan_for(family, self._options, arrays, (), (q,), one_shot=False)
        bound = plan.bind(arrays)
        check(lib.clary_append_kv(bound.reference, ctypes.byref(self._packed())))
        plan.release(bound)
        self._length = None if known is None else min(known + n, self.capacity)
        self._read_length(ragged)

    def _check_more(self, arrays: dict[str, Array], known: int) -> tuple[int, int]:
        """Axis and number of the tokens that append adds, where they fit."""
        tokens, heads = (1, 2) if self._options.layout == "nhd" else (2, 1)
        n = 0
        for name, what in (("k", "keys"), ("v", "values")):
            shape, packed = tuple(arrays[name].shape), self._shapes[name][3]
            if len(shape) != 4:
                continue  # the library says so
            for axis, extent in ((heads, "heads"), (3, "head_dim")):
                if shape[axis] != packed[axis]:
                    raise InvalidArgument(
                        f"{name}: {extent} is {shape[axis]}, but the packed {what} have {packed[axis]}; "
                        "allowed: the same"
                    )
            if name == "k":
                n = shape[tokens]
        if n > self.capacity - known:
            raise InvalidArgument(f"k: {n} tokens behind {known} pass the capacity; allowed: "
                                  f"{max(self.capacity - known, 0)} more")  # fmt: skip
        return tokens, n

    def _read_length(self, ragged: bool) -> None:
        """Of ragged sequences the longest may be shorter than the arrays; a GPU is not waited for to know it."""
        if ragged and not self._shapes["k"][1]:
            self._length = int(max(self.lengths, default=0))


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> tuple[Options, dict[str, tuple], int, str, dict[str, tuple]]:
    options, shapes, capacity, recipe, sections = json.loads(text)
    shapes = {name: (*what[:3], tuple(what[3])) for name, what in shapes.items()}
    sections = {name: (dtype, tuple(shape), offset) for name, (dtype, shape, offset) in sections.items()}
    return Options(*options), shapes, capacity, recipe, sections


def quantize_kv(
    k: Array,
    v: Array,
    *,
    q: Array | None = None,
    q_heads: int | None = None,
    capacity: int = 0,
    layout: str = "hnd",
    scale: float | None = None,
    kv_lengths: Array | None = None,
    c_k: Array | None = None,
    c_q: Array | None = None,
    q_base: Array | None = None,
    recipe: str = "auto",
    backend: str = "auto",
) -> PackedKV:
    """Quantizes K and V once, to attend to them with any number of queries and to append to them.

    Args:
        k, v: as in :func:`attention`.
        q: queries that the recipe takes its statistics from (mean, and the base of the row scales): the prefill's, or
            any sample. The default recipe needs it, or ``q_base``.
        q_heads: query heads that will attend, where q is not given; default those of k.
        capacity: keys per sequence to lay out memory for; 0 for no more than k has.
        scale: of the softmax; it belongs to the packed keys, since their bias digits hold it.

    Raises: as :func:`attention`.
    """
    k, v, q = adopt(k), adopt(v), adopt(q)
    arrays = {"k": k, "v": v, "kv_lengths": adopt(kv_lengths), "c_k": adopt(c_k), "c_q": adopt(c_q),
              "q_base": adopt(q_base)}  # fmt: skip
    if q is not None:
        arrays["q"] = q
    if _traced("quantize_kv", arrays):
        raise Unsupported("quantize_kv: under torch.compile or another tracer, where the size of packed keys is not "
                          "known; allowed: before, with attend and append in the graph")  # fmt: skip
    capacity = parse_index("capacity", capacity, _CAPACITY)
    family = gather(arrays)
    options = Options(layout=parse_layout(layout), scale=parse_scale(scale), recipe=parse_recipe(recipe),
                      backend=parse_recipe(backend, "backend"))  # fmt: skip
    shapes = {name: family.describe(name, family.facts(a))[:4] for name, a in arrays.items() if name in ("q", "k", "v")}
    if len(shapes["k"][3]) != 4 or len(shapes["v"][3]) != 4:
        raise InvalidArgument(f"k: {len(shapes['k'][3])} dimensions, v: {len(shapes['v'][3])}; allowed: 4")
    tokens, heads = (1, 2) if options.layout == "nhd" else (2, 1)
    fixed = ()
    if q is None:
        shape = list(shapes["k"][3])
        shape[tokens] = 1  # one query without data: a recipe that needs some says so
        if q_heads is not None:
            shape[heads] = parse_index("q_heads", q_heads, "an integer")
        shapes["q"] = (*shapes["k"][:3], tuple(shape))
        fixed = (("q", (*shapes["q"], contiguous(shapes["q"][3]))),)
    elif q_heads not in (None, q.shape[heads]):
        raise InvalidArgument(f"q_heads: {q_heads}, but q has {q.shape[heads]}; allowed: one of the two")
    plan = plan_for(family, options, arrays, (), fixed, one_shot=False)
    layout_kv = _layouts(plan, capacity)[1]
    made = PackedKV(
        family, options._replace(recipe=layout_kv.recipe.decode()), shapes, capacity, shapes["k"][3][tokens]
    )
    made.recipe = made._options.recipe
    made.memory = family.bytes(layout_kv.bytes, k)
    for section in layout_kv.sections[: layout_kv.section_count]:
        made._sections[section.name.decode()] = (section.dtype, tuple(section.shape[: section.ndim]), section.offset)
    bound = plan.bind(arrays)
    check(lib.clary_quantize(bound.reference, None, ctypes.byref(made._packed()), None))
    plan.release(bound)
    made._read_length("kv_lengths" in arrays)
    made._text = made._describe()
    return made


class KVCache:
    """A key-value cache of one layer, for prefill and decode.

        cache = clary.KVCache(capacity=4096)
        cache.append(k, v, q=q)                              # prefill; q gives the statistics of the queries
        out = cache.attend(q, causal="bottom_right")
        cache.append(k_new, v_new)                           # one token, or some
        out = cache.attend(q_new, causal="bottom_right")

    Args:
        capacity: keys per sequence, at most.
        layout, scale, recipe, backend: as in :func:`attention`, for every step. Recipes with ``v_scale=channel``
            (``:fast``) cannot append.
    """

    def __init__(self, capacity: int, *, layout: str = "hnd", scale: float | None = None, recipe: str = "auto",
                 backend: str = "auto"):  # fmt: skip
        self.capacity = parse_index("capacity", capacity, ">= 1, at most 2^40", 1, 2**40)
        explain((1, 1, 1, 64), layout=layout, scale=scale, recipe=recipe, backend=backend)  # raises where one is wrong
        self._options = {"layout": layout, "scale": scale, "recipe": recipe, "backend": backend}
        self.packed: PackedKV | None = None

    def __repr__(self) -> str:
        return f"KVCache({self.length} of {self.capacity} keys, {self._options['recipe']})"

    @property
    def length(self) -> int:
        """Keys of the longest sequence."""
        return self.packed.length if self.packed else 0

    def append(self, k: Array, v: Array, *, q: Array | None = None, kv_lengths: Array | None = None) -> None:
        """Adds keys. The first call is the prefill: it also decides the smoothing vectors, from q too (see
        :func:`quantize_kv`). ``kv_lengths``: how many of these keys are real, per sequence."""
        if self.packed is not None:
            self.packed.append(k, v, kv_lengths=kv_lengths)
        else:
            self.packed = quantize_kv(k, v, q=q, capacity=self.capacity, kv_lengths=kv_lengths, **self._options)

    def attend(self, q: Array, **options: Any) -> Array | tuple[Array, Array]:
        """As :meth:`PackedKV.attend`."""
        if self.packed is None:
            raise InvalidArgument("attend: the cache is empty; allowed: after append")
        return self.packed.attend(q, **options)

    def clear(self) -> None:
        """Forgets all keys; the next append is a prefill again."""
        self.packed = None


def attention_consume(
    qkv: list,
    *,
    layout: str = "hnd",
    causal: bool | str = False,
    causal_offset: int | Array | None = None,
    window: tuple[int, ...] | None = None,
    mask: Array | None = None,
    scale: float | None = None,
    kv_lengths: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    recipe: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """:func:`attention` that takes q, k and v out of the list ``[q, k, v]`` and lets go of each once it is quantized:
    where the caller holds no other reference, their memory is free before the output is made. The list is empty
    afterwards. Results are the same bits."""
    if not isinstance(qkv, list) or len(qkv) != 3:
        raise TypeError(f"qkv: a {type(qkv).__name__} of {len(qkv)}; allowed: a list [q, k, v], which is emptied")
    q, k, v = qkv
    qkv.clear()
    q, k, v = adopt(q), adopt(k), adopt(v)
    tokens = 1 if parse_layout(layout) == "nhd" else 2
    if causal is True:
        same = kv_lengths is None and len(q.shape) == len(k.shape) == 4 and q.shape[tokens] == k.shape[tokens]
        causal = (
            parse_causal(causal, causal_offset, same or causal_offset is not None)[0]
            if causal_offset is None
            else False
        )
    packed = quantize_kv(k, v, q=q, layout=layout, scale=scale, kv_lengths=kv_lengths, recipe=recipe, backend=backend)
    holder = [q]
    del q, k, v
    return packed._attend(holder, causal, causal_offset, window, adopt(mask), adopt(kv_lengths), adopt(alibi_slopes),
                          adopt(sinks), return_lse, None)  # fmt: skip
