"""Trees of elastic quotas as a run draws them: valid ones, edits of these, and documents that break one rule each.

Amounts are whole units of each resource, so that every share of a tree is an amount that pods can request. Results depend on the
generator alone.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.kit.world.labels import GPU, LICENCE

Level = dict[str, Any]
"""One level of a tree, as in `spec.root`."""
_Units = dict[str, int]
"""Resource -> number of units."""

UNIT: Final[Mapping[str, tuple[int, str]]] = {"cpu": (250, "m"), "memory": (256, "Mi"), GPU: (1, ""), LICENCE: (1, "")}
"""Resource -> (amount, suffix) of one unit."""
ROOT: Final[Mapping[str, tuple[int, int]]] = {"cpu": (20, 40), "memory": (10, 20), GPU: (2, 6), LICENCE: (3, 8)}
"""Minimum and maximum units of the root: less than the nodes have, so that quotas are the limit."""
SHARES: Final[Mapping[str, float]] = {"cpu": 1.0, "memory": 0.6, GPU: 0.25, LICENCE: 0.25}
"""Resource -> share of trees that name it."""
DEPTH: Final = (2, 4)
"""Number of levels from the root to the deepest leaf."""
WIDTH: Final = (2, 3)
"""Number of children of an inner level."""
SHARED: Final = 0.8
"""Share of levels that divide half of each resource evenly among their children."""
INNER: Final = 0.5
"""Share of children with one sibling, above the deepest level, that have children of their own."""


def drawn_tree(rng: random.Random, namespaces: Sequence[str], *, always: Collection[str] = ()) -> Level:
    """Returns the root of a valid tree. Each namespace is in one leaf; leaves may have several or none.

    `always`: resources that the tree names in any case.
    """
    resources = [resource for resource, share in SHARES.items() if rng.random() < share or resource in always]
    amounts = {resource: rng.randint(*ROOT[resource]) for resource in resources}
    root = _level("root", amounts, amounts)
    _grow(rng, root, amounts, amounts, rng.randint(*DEPTH) - 1)
    leaves = leaves_of(root)
    for number, namespace in enumerate(namespaces):
        leaf = leaves[number] if number < len(leaves) else rng.choice(leaves)
        leaf.setdefault("namespaces", []).append(namespace)
    return root


def leaves_of(root: Level) -> list[Level]:
    return [level for level in levels_of(root) if not level.get("children")]


def levels_of(level: Level) -> Iterator[Level]:
    """Yields this level and all levels below it, parents first."""
    yield level
    for child in level.get("children", ()):
        yield from levels_of(child)


def namespaces_of(root: Level) -> list[str]:
    return [namespace for leaf in leaves_of(root) for namespace in leaf.get("namespaces", ())]


def _grow(rng: random.Random, level: Level, least: _Units, most: _Units, depth: int) -> None:
    """Adds children to the level: its min is divided among them, sometimes with a remainder."""
    width = rng.randint(*WIDTH)
    parts = {resource: _divided(rng, units, width) for resource, units in least.items()}
    level["children"] = []
    for number in range(width):
        own = {resource: part[number] for resource, part in parts.items()}
        limit = {resource: rng.randint(max(own[resource], units // 2), units) for resource, units in most.items()}
        child = _level(f"{level['name']}.{number}", own, limit)
        level["children"].append(child)
        if depth > 1 and width == WIDTH[0] and rng.random() < INNER:
            _grow(rng, child, own, limit, depth - 1)


def _divided(rng: random.Random, units: int, width: int) -> list[int]:
    """Returns a random division: in most trees each child gets some; sometimes there is a remainder, or a child gets none."""
    base = units // (2 * width) if rng.random() < SHARED else 0
    left = rng.randint(0, units - base * width)
    cuts = sorted(rng.randint(0, left) for _ in range(width - 1))
    return [base + after - before for before, after in zip([0, *cuts], [*cuts, left], strict=True)]


def _level(name: str, least: _Units, most: _Units) -> Level:
    return {"name": name, "min": amounts_of(least), "max": amounts_of(most)}


def amounts_of(units: Mapping[str, int]) -> dict[str, str]:
    """Returns the amounts as API quantities."""
    return {resource: f"{number * UNIT[resource][0]}{UNIT[resource][1]}" for resource, number in units.items()}


def units_of(level: Level, side: str, resource: str) -> int:
    """Returns the units in `min` or `max` of one level."""
    size, suffix = UNIT[resource]
    return int(level[side][resource].removesuffix(suffix)) // size


# -- edits -------------------------------------------------------------------------------------------------------------


def edited(rng: random.Random, root: Level, *, always: Collection[str] = ()) -> Level:
    """Returns another valid tree with the same namespaces: other amounts, another shape, or namespaces in other leaves."""
    kind = rng.randrange(3)
    if kind == 0:
        return drawn_tree(rng, namespaces_of(root), always=always)
    found = copy.deepcopy(root)
    if kind == 1:
        _move_namespace(rng, found)
    else:
        _move_min(rng, found)
    return found


def _move_namespace(rng: random.Random, root: Level) -> None:
    leaves = leaves_of(root)
    giving = rng.choice([leaf for leaf in leaves if leaf.get("namespaces")])
    namespace = giving["namespaces"].pop(rng.randrange(len(giving["namespaces"])))
    rng.choice(leaves).setdefault("namespaces", []).append(namespace)


def _move_min(rng: random.Random, root: Level) -> None:
    """Sets a resource of all sibling leaves' min to zero, and gives one leaf the parent's remaining min, up to its max."""
    parent = rng.choice([level for level in levels_of(root) if level.get("children")])
    resource = rng.choice(sorted(parent["min"]))
    leaves = [child for child in parent["children"] if not child.get("children")]
    for child in leaves:
        child["min"][resource] = amounts_of({resource: 0})[resource]
    left = units_of(parent, "min", resource)
    left -= sum(units_of(child, "min", resource) for child in parent["children"])
    if leaves:
        lucky = rng.choice(leaves)
        lucky["min"] |= amounts_of({resource: min(left, units_of(lucky, "max", resource))})


# -- documents that break a rule ---------------------------------------------------------------------------------------


def _min_over_max(rng: random.Random, root: Level) -> None:
    leaf = rng.choice(leaves_of(root))
    leaf["min"] = {**leaf["min"], "cpu": "100"}


def _children_over_parent(rng: random.Random, root: Level) -> None:
    parent = rng.choice([level for level in levels_of(root) if level.get("children")])
    for child in parent["children"]:
        child["min"], child["max"] = {**child["max"]}, {**child["max"]}
    parent["children"][0]["min"]["cpu"] = parent["children"][0]["max"]["cpu"] = "100"


def _namespace_twice(rng: random.Random, root: Level) -> None:
    leaf = rng.choice(leaves_of(root))
    leaf.setdefault("namespaces", []).append(rng.choice(namespaces_of(root)))


def _name_twice(rng: random.Random, root: Level) -> None:
    leaf = rng.choice(leaves_of(root))
    leaf["name"] = root["name"]


def _unreadable(rng: random.Random, root: Level) -> None:
    leaf = rng.choice(leaves_of(root))
    leaf["max"] = {**leaf["max"], "cpu": "a lot"}


def _negative(rng: random.Random, root: Level) -> None:
    leaf = rng.choice(leaves_of(root))
    leaf["min"] = {**leaf["min"], "cpu": "-1"}


def _namespace_above(rng: random.Random, root: Level) -> None:
    root["namespaces"] = ["of-nobody"]


BREAKS: Final[Mapping[str, Callable[[random.Random, Level], None]]] = {
    "min over max": _min_over_max,
    "children over parent": _children_over_parent,
    "namespace twice": _namespace_twice,
    "name twice": _name_twice,
    "unreadable amount": _unreadable,
    "negative amount": _negative,
    "namespace above a leaf": _namespace_above,
}
"""Kind of mistake -> function that makes it."""


def broken(rng: random.Random, root: Level, kind: str) -> Level:
    """Returns a copy of a valid tree that breaks one rule of `BREAKS`."""
    found = copy.deepcopy(root)
    BREAKS[kind](rng, found)
    return found
