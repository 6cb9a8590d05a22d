# SPDX-License-Identifier: Apache-2.0
"""Quantized attention in models that call torch.nn.functional.scaled_dot_product_attention.

While any scope is active, one function stands in its place; it asks the innermost scope for the recipe, and calls
PyTorch's own where there is none. Scopes with a model learn from forward hooks which module is running.
"""

from __future__ import annotations

import collections
import functools
import logging
import threading
from typing import Any

import torch
import torch.nn.functional as F

from . import torch_ops
from ._attention import attention
from ._explain import explain
from ._problem import parse_index
from .errors import Error, InvalidArgument, Unsupported
from .recipe_map import EXACT, RecipeMap

log = logging.getLogger("clary")
POLICIES = ("exact", "raise")
_AS_TOLD = "the recipe says exact"
# A module that raises must not leave its recipe behind; PyTorch 2.0 cannot tell hooks so.
_ALWAYS = {"always_call": True} if "always_call" in torch.nn.Module.register_forward_hook.__annotations__ else {}
_active: list[Scope] = []
_original: Any = None
# Of torch.nn's modules: whether they may take fused attention that no replacement reaches. Off while a scope is active.
_short_cut = getattr(torch.backends, "mha", None)  # since PyTorch 2.1
_short_cut_before = True


def thread() -> int:
    return threading.get_ident()


thread._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result does


class Scope:
    """What ``clary.sdpa`` and ``clary.patch`` give: a context manager, and what happened.

    Attributes:
        calls: how often each recipe ran, ``"exact"`` where a recipe says so, and ``"exact: <reason>"`` for other calls
            that went to PyTorch's own attention. Compiled code does not count.
    """

    def __init__(self, recipes: RecipeMap, policy: str, min_q_len: int, backend: str, model: Any):
        if policy not in POLICIES:
            raise InvalidArgument(f"policy: {policy!r}; allowed: {', '.join(map(repr, POLICIES))}")
        if model is not None and not isinstance(model, torch.nn.Module):
            raise InvalidArgument(
                f"model: a {type(model).__name__}; allowed: a torch.nn.Module (of a pipeline, its transformer or unet)"
            )
        parse_index("min_q_len", min_q_len, "an integer >= 0", 0)
        explain((1, 1, 1, 64), backend=backend)  # raises where there is no such backend
        if recipes.layers and model is None:
            raise InvalidArgument("recipes: 'layers' needs the model that they are in; allowed: sdpa(..., model=model)")
        self.recipes, self.policy, self.min_q_len, self.backend, self.model = recipes, policy, min_q_len, backend, model
        self.calls: collections.Counter = collections.Counter()
        self._stacks: dict[int, list[str]] = {}  # by thread: recipes of the modules that are running, innermost last
        self._hooks: list[Any] = []
        self._reasons: set[str] = set()

    def current(self) -> str | None:
        if stack := self._stacks.get(thread()):
            return stack[-1]
        return self.recipes.default if self.model is None else None

    def begin(self) -> Scope:
        if self in _active:
            raise InvalidArgument("sdpa: this scope is active already; allowed: one at a time")
        if self.model is not None:
            self._hook_modules()
        _install(self)
        return self

    def undo(self) -> None:
        """Ends the scope; the model is as before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._stacks.clear()
        _remove(self)

    def __enter__(self) -> Scope:
        return self if self in _active else self.begin()

    def __exit__(self, *_: Any) -> None:
        self.undo()

    def _hook_modules(self) -> None:
        modules = dict(self.model.named_modules())
        recipes = self.recipes.of_modules(modules)
        for name, _ in self.model.named_children():  # models are entered by other methods too: vae.decode()
            recipes.setdefault(name, self.recipes.default)
        for name, recipe in recipes.items():
            self._hooks.append(modules[name].register_forward_pre_hook(functools.partial(self._enter, recipe)))
            self._hooks.append(modules[name].register_forward_hook(self._leave, **_ALWAYS))

    def _enter(self, recipe: str, *_: Any) -> None:
        self._stacks.setdefault(thread(), []).append(recipe)

    def _leave(self, *_: Any) -> None:
        self._stacks[thread()].pop()

    def note(self, what: str) -> None:
        if not torch_ops.compiling():
            self.calls[what] += 1

    def exact(self, reason: str) -> None:
        """Raises under policy "raise"; else one log line for each reason, where it was not the user's own wish."""
        if reason == _AS_TOLD:
            self.note(EXACT)
            return
        if self.policy == "raise":
            raise Unsupported(f"scaled_dot_product_attention: {reason}; allowed here: policy='exact'")
        if torch_ops.compiling():
            return
        self.calls[f"exact: {reason}"] += 1
        if reason not in self._reasons:
            self._reasons.add(reason)
            log.warning("clary.sdpa: PyTorch's own attention runs where %s", reason)


def _install(scope: Scope) -> None:
    global _original, _short_cut_before
    if not _active:
        _original = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = scaled_dot_product_attention
        if _short_cut is not None:
            _short_cut_before = _short_cut.get_fastpath_enabled()
            _short_cut.set_fastpath_enabled(False)
    _active.append(scope)


def _remove(scope: Scope) -> None:
    if scope not in _active:
        return
    _active.remove(scope)
    if not _active and _short_cut is not None:
        _short_cut.set_fastpath_enabled(_short_cut_before)
    if not _active and F.scaled_dot_product_attention is scaled_dot_product_attention:
        F.scaled_dot_product_attention = _original


@functools.cache
def _find_failure(recipe: str, backend: str, device: str, dtype: str, dim: int, dim_v: int) -> str:
    try:
        found = explain((1, 1, 64, dim), head_dim_v=dim_v, dtype=dtype, device=device, recipe=recipe, backend=backend)
    except Error as error:
        return str(error)
    return "" if found["kernel"] else found["error"]


def expected_failure(*looks: Any) -> str:
    """Why no kernel takes tensors like these, or "": recipe, backend, kind of device, dtype, head dims of q and v."""
    return _find_failure(*looks)


expected_failure._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result does: asked while tracing


def reason_for_exact(scope: Scope, recipe: str, q: Any, k: Any, v: Any, mask: Any, dropout_p: float) -> str:
    """Why this call cannot be quantized, or ""."""
    if recipe == EXACT:
        return _AS_TOLD
    if dropout_p:
        return "dropout is on"
    tensors = (q, k, v) if mask is None else (q, k, v, mask)
    if not torch_ops.compiling():
        if torch_ops.transforming() and any(map(torch_ops.is_wrapped, tensors)):
            return "a transform of torch.func is at work"
        if torch_ops.forward_mode() and any(map(torch_ops.has_tangent, tensors)):
            return "a gradient is required"
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                    or (mask is not None and mask.requires_grad)):  # fmt: skip
        return "a gradient is required"
    for t in tensors:
        if t.device.type not in ("cpu", "cuda") or t.is_nested or t.layout != torch.strided:
            return f"a tensor is on {t.device.type}, nested or sparse"
    for t in (q, k, v):
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return f"dtype is {t.dtype}"
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, torch.float16, torch.bfloat16):
        return f"the mask's dtype is {mask.dtype}"
    if q.dim() not in (3, 4) or k.dim() != q.dim() or v.dim() != q.dim():
        return f"tensors have {q.dim()} dimensions"
    if q.shape[-2] < scope.min_q_len:
        return f"there are fewer than {scope.min_q_len} queries"
    return expected_failure(recipe, scope.backend, q.device.type, str(q.dtype)[6:], int(q.shape[-1]), int(v.shape[-1]))


def in_type_of_autocast(q: Any) -> Any:
    """q in the type that torch.autocast wants results of attention to have."""
    kind = q.device.type
    if hasattr(torch, "get_autocast_dtype"):  # since PyTorch 2.4
        wanted = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else q.dtype
    elif kind == "cuda":
        wanted = torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else q.dtype
    else:
        wanted = torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else q.dtype
    return q.to(wanted)


def _fits(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, enable_gqa: bool) -> bool:
    """Whether these are arguments that PyTorch takes too without broadcasting; its own errors are best raised by
    itself."""
    if mask is not None and (is_causal or mask.dim() > q.dim()):
        return False
    if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
        return False
    if q.shape[-3] == k.shape[-3]:
        return True
    return enable_gqa and q.dim() == 4 and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Stands in for PyTorch's function of this name while a scope is active; same arguments, same result."""
    for scope in reversed(_active):
        recipe = scope.current()
        if recipe is None:
            continue
        reason = reason_for_exact(scope, recipe, query, key, value, attn_mask, dropout_p)
        if not reason and not _fits(query, key, value, attn_mask, is_causal, enable_gqa):
            reason = "shapes broadcast, or PyTorch refuses them"
        if reason:
            scope.exact(reason)
            break
        scope.note(recipe)
        return _quantized(in_type_of_autocast(query), key, value, attn_mask, is_causal, scale, recipe, scope.backend)
    more = {} if scale is None else {"scale": scale}
    if enable_gqa:  # since PyTorch 2.5
        more["enable_gqa"] = True
    return _original(query, key, value, attn_mask, dropout_p, is_causal, **more)


def _quantized(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: Any, recipe: str, backend: str) -> Any:
    batched = q.dim() == 4
    if not batched:
        q, k, v = q[None], k[None], v[None]
    out = attention(q, k, v, mask=mask, causal="top_left" if is_causal else False, scale=scale, recipe=recipe,
                    backend=backend)  # fmt: skip
    return out if batched else out[0]
