"""Fair shares: sure first, then by weight, whole numbers, nothing lost and nothing beyond what is asked for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.quota_tree import GUARANTEE_ATTRIBUTE, WEIGHT_ATTRIBUTE
from multisched.model.quotas.koordinator import read_linked
from multisched.plugins.quota.fair_shares import Claim, divide, fair_shares
from tests.unit.model.quotas.quota_documents import decoded_linked, linked
from tests.unit.plugins.quota.trees import leaf, node, tree_of


@pytest.mark.parametrize(
    ("whole", "claims", "shares"),
    [
        (40, [(10, 20, 20), (10, 20, 20), (0, 0, 20), (0, 0, 20)], [20, 20, 0, 0]),
        (40, [(10, 20, 20)] * 4, [10, 10, 10, 10]),
        (10, [(0, 10, 1), (0, 10, 1), (0, 10, 1)], [4, 3, 3]),
        (10, [(0, 10, 3), (0, 10, 1)], [8, 2]),
        (10, [(0, 2, 3), (0, 10, 1)], [2, 8]),
        (10, [(0, 10, 0), (0, 4, 1)], [6, 4]),
        (10, [(0, 10, 0), (0, 10, 0)], [5, 5]),
        (5, [(3, 9, 1), (2, 9, 1)], [3, 2]),
        (8, [(3, 4, 3), (5, 5, 5)], [3, 5]),
    ],
)
def test_guaranteed_shares_come_first_and_the_rest_follows_weights(
    whole: int, claims: list[Claim], shares: list[int]
) -> None:
    assert divide(whole, claims) == shares


amounts = st.integers(0, 1000)
claims = st.lists(
    st.tuples(amounts, amounts, st.integers(0, 9)).map(lambda one: (min(one[:2]), max(one[:2]), one[2])), max_size=8
)


@given(claims, amounts)
def test_shares_are_integers_within_requests_and_leave_no_demanded_rest(claims: list[Claim], more: int) -> None:
    whole = sum(sure for sure, _, _ in claims) + more
    shares = divide(whole, claims)
    assert all(sure <= share <= most for share, (sure, most, _) in zip(shares, claims, strict=True))
    assert sum(shares) == min(whole, sum(most for _, most, _ in claims))


@given(st.integers(1, 6), st.integers(0, 50), st.integers(1, 9))
def test_equal_claims_differ_by_at_most_one(count: int, whole: int, weight: int) -> None:
    shares = divide(whole, [(0, 1000, weight)] * count)
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == whole


def test_level_shares_the_amount_of_its_parent() -> None:
    tree = tree_of({"cpu": 40}, {"cpu": 40}, leaf("a", 20, 40), leaf("b", 20, 40))
    asked = [{"cpu": 70_000}, {"cpu": 10_000}, {"cpu": 60_000}]
    assert fair_shares(tree, asked) == [{"cpu": 40_000}, {"cpu": 10_000}, {"cpu": 30_000}]


def test_level_requests_at_most_what_its_children_may_hold() -> None:
    """What its pods want beyond that is of no use to it, and its sibling can use it."""
    narrow = node("narrow", {"cpu": 0}, {"cpu": 12}, leaf("a", 0, 2), leaf("b", 0, 2))
    tree = tree_of({"cpu": 12}, {"cpu": 12}, narrow, leaf("wide", 0, 12))
    asked = [{"cpu": 40_000}, {"cpu": 20_000}, {"cpu": 10_000}, {"cpu": 10_000}, {"cpu": 20_000}]
    assert [one["cpu"] for one in fair_shares(tree, asked)] == [12_000, 4_000, 2_000, 2_000, 8_000]


@given(st.data())
def test_children_share_the_whole_amount_of_a_level(data: st.DataObject) -> None:
    most = st.integers(0, 9)
    halves = [
        node(half, {}, {"cpu": data.draw(most)}, *(leaf(f"{half}{n}", 0, data.draw(most)) for n in range(2)))
        for half in "ab"
    ]
    for half in halves:  # no child may hold more than its parent
        for child in half["children"]:
            child["max"]["cpu"] = min(child["max"]["cpu"], half["max"]["cpu"])
    tree = tree_of({"cpu": 9}, {"cpu": 9}, *halves)
    asked = [{"cpu": 0} for _ in tree.nodes]
    for at in tree.leaves():
        amount = data.draw(st.integers(0, 12_000))
        for level in tree.paths[at]:
            asked[level]["cpu"] += amount
    shares = [one["cpu"] for one in fair_shares(tree, asked)]
    for at, one in enumerate(tree.nodes):
        if one.children:
            assert sum(shares[child] for child in one.children) == shares[at]


def test_guarantee_is_not_shared_with_others() -> None:
    kept = {"attributes": {GUARANTEE_ATTRIBUTE: "cpu=15"}}
    tree = tree_of({"cpu": 40}, {"cpu": 40}, leaf("a", 20, 40, **kept), leaf("b", 20, 40))
    asked = [{"cpu": 41_000}, {"cpu": 1000}, {"cpu": 40_000}]
    assert fair_shares(tree, asked) == [{"cpu": 40_000}, {"cpu": 15_000}, {"cpu": 25_000}]


def test_guarantee_is_kept_beyond_the_limits_of_children() -> None:
    """What pods ask for beyond their max does not fill the guarantee of the level above."""
    kept = {"attributes": {GUARANTEE_ATTRIBUTE: "all"}}
    team = node("team", {"cpu": 8}, {"cpu": 10}, leaf("a", 0, 2), leaf("b", 0, 10), **kept)
    tree = tree_of({"cpu": 20}, {"cpu": 20}, team, leaf("c", 0, 20))
    asked = [{"cpu": 40_000}, {"cpu": 10_000}, {"cpu": 10_000}, {"cpu": 0}, {"cpu": 30_000}]
    assert [one["cpu"] for one in fair_shares(tree, asked)] == [20_000, 8_000, 2_000, 0, 12_000]


def test_weight_and_sibling_max_are_compared_in_user_units() -> None:
    """5 beside `cpu: 20` is one part in five, though CPU is counted in milli."""
    weighted = leaf("a", 0, 20, attributes={WEIGHT_ATTRIBUTE: "5"})
    tree = tree_of({"cpu": 20}, {"cpu": 20}, weighted, leaf("b", 0, 20))
    asked = [{"cpu": 40_000}, {"cpu": 20_000}, {"cpu": 20_000}]
    assert [one["cpu"] for one in fair_shares(tree, asked)] == [20_000, 4_000, 16_000]


def test_weights_apply_per_resource() -> None:
    found = read_linked(
        map(
            decoded_linked,
            [linked("a", 0, 30, shared_weight={"cpu": "2"}), linked("b", 0, 30, shared_weight={"cpu": "1"})],
        )
    )
    assert found.tree is not None
    asked = [{"cpu": 60_000}, {"cpu": 30_000}, {"cpu": 30_000}]
    bounded = msgspec.structs.replace(found.tree.nodes[0], max={"cpu": 30_000})
    tree = msgspec.structs.replace(found.tree, nodes=(bounded, *found.tree.nodes[1:]))
    assert [one["cpu"] for one in fair_shares(tree, asked)] == [30_000, 20_000, 10_000]
