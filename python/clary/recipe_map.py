# SPDX-License-Identifier: Apache-2.0
"""Which recipe for which part of a model: a JSON object such as

    {"default": "int8_int8:accurate",
     "layers": {"model.layers.0": "exact", "model.layers.*.cross_attn": "int8_fp16"}}

Keys of ``layers`` are qualified module names (``model.named_modules()``) or patterns with ``*`` and ``?``; a name
counts for everything inside that module that has no entry of its own. An exact name comes before patterns, patterns in
their order.
``"exact"`` leaves the host's own attention in place.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._explain import explain
from .errors import InvalidArgument

EXACT = "exact"


@dataclass(frozen=True)
class RecipeMap:
    """See the module's text."""

    default: str = "auto"
    layers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for where, recipe in (("default", self.default), *self.layers.items()):
            if not isinstance(recipe, str):
                raise InvalidArgument(f"recipes: {where!r} is {recipe!r}; allowed: a recipe's text, or 'exact'")
            if recipe != EXACT:
                explain((1, 1, 1, 64), recipe=recipe)  # raises where the text means nothing

    def of_modules(self, names: Iterable[str]) -> dict[str, str]:
        """The recipe of each module that has an entry of its own, by qualified name; ``""``, the model, has the
        default.
        Raises InvalidArgument where an entry matches no module: it would be ignored without a word."""
        found, unused = {"": self.default}, set(self.layers)
        for name in filter(None, names):
            matching = [key for key in self.layers if key == name or fnmatch.fnmatchcase(name, key)]
            if matching:
                found[name] = self.layers[name if name in self.layers else matching[0]]
                unused.difference_update(matching)
        if unused:
            raise InvalidArgument(
                f"recipes: no module of the model is called {min(unused)!r}; allowed: names and patterns of "
                "model.named_modules()"
            )
        return found

    def save(self, path: str | os.PathLike) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"default": self.default, "layers": dict(self.layers)}, file, indent=1)
            file.write("\n")


def recipe_map(recipes: Any) -> RecipeMap:
    """A RecipeMap from itself, a recipe's text, a path that ends in .json, or the JSON object."""
    if isinstance(recipes, RecipeMap):
        return recipes
    if recipes is None:
        return RecipeMap()
    if isinstance(recipes, os.PathLike) or (isinstance(recipes, str) and recipes.endswith(".json")):
        with open(recipes, encoding="utf-8") as file:
            try:
                recipes = json.load(file)
            except ValueError as error:
                raise InvalidArgument(f"recipes: {os.fspath(recipes)} is no JSON: {error}") from None
    if isinstance(recipes, str):
        return RecipeMap(recipes)
    if not isinstance(recipes, Mapping) or set(recipes) - {"default", "layers"}:
        raise InvalidArgument("recipes: allowed: a recipe's text, a .json file, or {'default': ..., 'layers': {...}}")
    layers = recipes.get("layers", {})
    if not isinstance(layers, Mapping):
        raise InvalidArgument(
            f"recipes: 'layers' is a {type(layers).__name__}; allowed: an object of names and recipes"
        )
    return RecipeMap(recipes.get("default", "auto"), dict(layers))
