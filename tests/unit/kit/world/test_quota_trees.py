"""Quota trees that a run draws: valid ones keep every rule, invalid ones violate the rule in their name."""

from __future__ import annotations

import random

import pytest

from multisched.verify.fields import Unreadable
from multisched.verify.quota_tree import QuotaTree, read_tree
from tests.kit.world.quota_trees import (
    BREAKS,
    DEPTH,
    Level,
    broken,
    drawn_tree,
    edited,
    leaves_of,
    levels_of,
    namespaces_of,
    units_of,
)

SEEDS = 300
NAMESPACES = ("team-1", "team-2", "team-3", "team-4")
SAID = {
    "min over max": "is over max",
    "children over parent": "its children's min are",
    "namespace twice": "is listed 2 times",
    "name twice": "the name of 2 levels",
    "unreadable amount": "'a lot' is not a quantity",
    "negative amount": "is below 0",
    "namespace above a leaf": "namespaces at a level that has children",
}


def read(root: Level) -> QuotaTree:
    return read_tree({"metadata": {"name": "tree"}, "spec": {"root": root}})


def depth(level: Level) -> int:
    return 1 + max((depth(child) for child in level.get("children", ())), default=0)


def test_every_generated_tree_is_valid() -> None:
    trees = [drawn_tree(random.Random(seed), NAMESPACES) for seed in range(SEEDS)]

    assert {depth(root) for root in trees} == set(range(DEPTH[0], DEPTH[1] + 1))
    assert {len(leaves_of(root)) for root in trees} >= set(range(2, 8))
    assert {resource for root in trees for resource in root["max"]} == {
        "cpu",
        "memory",
        "nvidia.com/gpu",
        "example.com/licence",
    }
    for root in trees:
        assert all(read(root).leaf_of(namespace) is not None for namespace in NAMESPACES)


def test_every_edited_tree_is_valid_and_keeps_all_namespaces() -> None:
    is_new = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        root = drawn_tree(rng, NAMESPACES)
        found = edited(rng, root)

        read(found)
        assert sorted(namespaces_of(found)) == sorted(NAMESPACES)
        is_new += found != root
    assert is_new > SEEDS * 0.6


def test_edit_does_not_change_the_original_tree() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        root = drawn_tree(rng, NAMESPACES)
        before = str(root)
        edited(rng, root)
        for kind in BREAKS:
            broken(rng, root, kind)

        assert str(root) == before


@pytest.mark.parametrize("kind", sorted(BREAKS))
def test_invalid_tree_violates_the_rule_in_its_name(kind: str) -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        root = broken(rng, drawn_tree(rng, NAMESPACES), kind)

        with pytest.raises(Unreadable) as raised:
            read(root)
        assert SAID[kind] in str(raised.value)


def test_equal_seeds_give_equal_trees() -> None:
    assert drawn_tree(random.Random(3), NAMESPACES) == drawn_tree(random.Random(3), NAMESPACES)


def test_written_units_read_back_equal() -> None:
    root = drawn_tree(random.Random(1), NAMESPACES)

    for level in levels_of(root):
        for resource in level["max"]:
            assert 0 <= units_of(level, "min", resource) <= units_of(level, "max", resource)
