# SPDX-License-Identifier: Apache-2.0
"""Which scope fits a model, and that of models of transformers, which have an interface for attention functions."""

from __future__ import annotations

import sys
from typing import Any

import torch

from . import _sdpa
from ._attention import attention
from .errors import InvalidArgument

_NAME = "clary"  # of transformers' attention implementation


def scope_for(model: Any, *settings: Any) -> _sdpa.Scope:
    """settings: RecipeMap, policy, min_q_len, backend."""
    transformers = sys.modules.get("transformers")
    kind = getattr(transformers, "PreTrainedModel", None) if hasattr(transformers, "AttentionInterface") else None
    if (kind is not None and isinstance(model, kind) and hasattr(model, "set_attn_implementation")
            and getattr(model, "_supports_attention_backend", False)):  # fmt: skip
        return _TransformersScope(*settings, model)
    return _sdpa.Scope(*settings, model)


class _TransformersScope(_sdpa.Scope):
    """Recipes lie on the modules that transformers hands to its attention functions, so nothing global changes."""

    def begin(self) -> _TransformersScope:
        modules = dict(self.model.named_modules())
        if any("_clary" in module.__dict__ for module in modules.values()):
            raise InvalidArgument("model: is patched already; allowed: after undo()")
        own = self.recipes.of_modules(modules)
        recipes: dict[str, str] = {}
        for name, module in modules.items():  # parents come first
            recipes[name] = own[name] if name in own else recipes[name.rpartition(".")[0]]
            module._clary = (self, recipes[name])
        _register()
        self._before = self.model.config._attn_implementation
        self.model.set_attn_implementation(_NAME)
        return self

    def undo(self) -> None:
        for module in self.model.modules():
            module.__dict__.pop("_clary", None)
        if self.model.config._attn_implementation == _NAME:
            self.model.set_attn_implementation(self._before)

    def __enter__(self) -> _TransformersScope:
        return self


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, attention_forward)
    try:
        from transformers import AttentionMaskInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    except ImportError:  # before 4.53, where masks do not depend on the implementation's name
        return
    AttentionMaskInterface.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Any, None]:
    """transformers' attention function: q ``[batch, heads, q_len, dim]``, the result ``[batch, q_len, heads, dim]``."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    scope, recipe = getattr(module, "_clary", (None, "auto"))
    if scope is None:
        raise InvalidArgument("attn_implementation='clary': this model was not patched; allowed: clary.patch(model)")
    reason = _sdpa.reason_for_exact(scope, recipe, query, key, value, attention_mask, dropout)
    if not reason and more.get("softcap") is not None:
        reason = "scores are capped (softcap)"
    if not reason and more.get("position_bias") is not None:
        reason = "there is a position bias"
    if reason:
        scope.exact(reason)
        if more.get("softcap") is not None:
            causal = _is_causal(module, is_causal, attention_mask, query)
            dropout *= module.training
            return _capped(query, key, value, attention_mask, dropout, scaling, causal, more["softcap"]), None
        return ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **more
        )
    causal = _is_causal(module, is_causal, attention_mask, query)
    if attention_mask is not None and attention_mask.dim() == 4:
        attention_mask = attention_mask[:, :, :, : key.shape[2]]
    sinks = more.get("s_aux")
    scope.note(recipe)
    out = attention(
        _sdpa.in_type_of_autocast(query),
        key,
        value,
        mask=attention_mask,
        causal="top_left" if causal else False,
        scale=scaling,
        sinks=None if sinks is None else sinks.detach().float(),
        recipe=recipe,
        backend=scope.backend,
    )
    return out.transpose(1, 2).contiguous(), None


def _is_causal(module: Any, is_causal: bool | None, mask: Any, query: Any) -> bool:
    """As for transformers' own "sdpa": a mask holds what is causal; without one the module says."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    return bool(is_causal) and mask is None and query.shape[2] > 1


def _capped(q: Any, k: Any, v: Any, mask: Any, dropout: float, scaling: float | None, causal: bool,
            softcap: float) -> Any:  # fmt: skip
    """Exact attention with capped scores, which neither Clary nor PyTorch's function has: written out, in fp32."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q.float() @ k.float().transpose(2, 3) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = torch.tanh(scores / softcap) * softcap
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        mask = mask[..., : k.shape[2]]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
        else:
            scores = scores + mask
    weights = torch.nn.functional.dropout(scores.softmax(-1), dropout)
    return (weights.to(v.dtype) @ v).transpose(1, 2).contiguous()
