# SPDX-License-Identifier: Apache-2.0
"""Quantized attention in models. PyTorch is imported when one of these is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument
from .recipe_map import recipe_map

if TYPE_CHECKING:
    import torch

    from ._sdpa import Scope


def sdpa(
    recipe: Any = "auto",
    *,
    policy: str = "exact",
    min_q_len: int = 0,
    backend: str = "auto",
    model: torch.nn.Module | None = None,
) -> Scope:
    """A scope in which ``torch.nn.functional.scaled_dot_product_attention`` is Clary's.

        with clary.sdpa("int8_int8:accurate") as report:
            y = model(x)
        print(report.calls)

    Masks, ``is_causal``, ``scale`` and ``enable_gqa`` are honoured. Calls that Clary cannot serve (dropout, gradients,
    other types and devices, head dims that the recipe has no kernel for) go to PyTorch's own attention, with one log
    line for each reason (logger "clary"), or raise. The replacement is seen by every thread, but not by code that holds
    the function itself (``from torch.nn.functional import ...``), nor by code that torch.compile compiled before: enter
    first, then compile.

    Args:
        recipe: a recipe's text, a map of recipes as in :mod:`clary.recipe_map` (dict, or path of a .json file), which
            needs ``model``, or ``"exact"``.
        policy: ``"exact"`` or ``"raise"``: what to do with a call that Clary cannot serve.
        min_q_len: calls with fewer queries stay with PyTorch: quantizing K and V anew for each decoded token does not
            pay.
        backend: as in :func:`clary.attention`.
        model: limit the scope to what runs inside this module.
    """
    from ._sdpa import Scope

    return Scope(recipe_map(recipe), policy, min_q_len, backend, model)


def patch(
    model: torch.nn.Module,
    recipe: Any = "auto",
    *,
    policy: str = "exact",
    min_q_len: int = 0,
    backend: str = "auto",
) -> Scope:
    """Runs a model's attention with Clary until ``undo()`` (also a context manager).

        patched = clary.patch(model, {"default": "int8_int8", "layers": {"model.layers.0": "exact"}})

    Models of transformers that can change their attention (``set_attn_implementation``) get the implementation
    ``"clary"``, with masks as for ``"sdpa"``; grouped heads are not repeated, attention sinks work. All others, those
    of diffusers too, have ``scaled_dot_product_attention`` replaced inside them as by :func:`clary.sdpa` with
    ``model=``, so their processors stay as they are. Arguments and attributes of the result: see :func:`clary.sdpa`.
    """
    from ._patch import scope_for

    if model is None:
        raise InvalidArgument("model: None; allowed: a torch.nn.Module")
    return scope_for(model, recipe_map(recipe), policy, min_q_len, backend).begin()
