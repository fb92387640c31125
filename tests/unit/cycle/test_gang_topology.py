"""The domain that a gang goes to, against every choice that there is in clusters small enough to list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from hypothesis import assume, example, given
from hypothesis import strategies as st

from multisched.cycle.results import GangResult
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.model.gang import TopologyLevel
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain

MEMBER_MILLI = 1000


class Spot(NamedTuple):
    """A node: how many members it has room for, and where it is; an empty name: it has no such label."""

    room: int
    zone: str
    rack: str


spots = st.builds(Spot, st.integers(0, 3), st.sampled_from(["z0", "z1", ""]), st.sampled_from(["r0", "r1", "r2", ""]))
clusters = st.lists(spots, min_size=1, max_size=7)
counts = st.integers(1, 8)

RACK, ZONE = TopologyLevel("rack"), TopologyLevel("zone")
RACK_REQUIRED, ZONE_REQUIRED = TopologyLevel("rack", is_required=True), TopologyLevel("zone", is_required=True)


def place(cluster: Sequence[Spot], count: int, *levels: TopologyLevel, standing: Sequence[int] = ()) -> list[int]:
    """Numbers of the nodes that the members go to; empty: none does."""
    nodes = [
        make_node(
            f"n{at}",
            cpu_milli=spot.room * MEMBER_MILLI,
            labels={key: value for key, value in (("zone", spot.zone), ("rack", spot.rack)) if value},
        )
        for at, spot in enumerate(cluster)
    ]
    domain = Domain(*nodes)
    members = tuple(QueuedPod(make_pod(f"m{at}", cpu_milli=MEMBER_MILLI), 0.0, 1) for at in range(count))
    gang_of = {entry.pod.uid: "g" for entry in members}
    gang = QueuedGang(members, {"g": count}, gang_of, levels, tuple(f"n{at}" for at in standing))
    attempt = domain.cycle.attempt(gang)
    try:
        next(attempt)
    except StopIteration as ended:
        result: GangResult = ended.value
    assert len(result.placed) in (0, count)
    domain.cache.validate()
    return [int(placed.node[1:]) for placed in result.placed]


def rooms(cluster: Sequence[Spot], where: Sequence[str]) -> Mapping[tuple[str, ...], int]:
    """Room by domain; of nodes that have the last of the labels."""
    found: dict[tuple[str, ...], int] = {}
    for spot in cluster:
        domain = tuple(getattr(spot, key) for key in where)
        if domain[-1]:
            found[domain] = found.get(domain, 0) + spot.room
    return found


def fewest(found: Mapping[tuple[str, ...], int], count: int) -> int | None:
    """How many domains are needed at least; None: all together have too little room."""
    sizes = range(1, len(found) + 1)
    return next((n for n in sizes if any(sum(some) >= count for some in combinations(found.values(), n))), None)


@given(clusters, counts)
def test_required_domain_with_the_least_remaining_room_is_chosen(cluster: list[Spot], count: int) -> None:
    found = rooms(cluster, ["rack"])
    large = [room for room in found.values() if room >= count]
    used = {cluster[at].rack for at in place(cluster, count, RACK_REQUIRED)}
    assert len(used) == bool(large)
    if large:
        assert found[*used,] == min(large)


@given(clusters, counts)
def test_preferred_domain_is_left_by_as_few_members_as_possible(cluster: list[Spot], count: int) -> None:
    placed = place(cluster, count, RACK)
    assert bool(placed) == (sum(spot.room for spot in cluster) >= count)
    needed = fewest(rooms(cluster, ["rack"]), count)
    if placed and needed is not None:
        assert len({cluster[at].rack for at in placed}) <= needed
        assert "" not in {cluster[at].rack for at in placed}


@given(clusters, counts, st.booleans())
def test_narrowest_of_two_levels_is_used(cluster: list[Spot], count: int, is_strict: bool) -> None:
    """Racks of the same name in two zones are two racks."""
    zone = ZONE_REQUIRED if is_strict else ZONE
    zones, racks = (len({getattr(spot, key) for spot in cluster} - {""}) for key in ("zone", "rack"))
    assume(zones <= racks)  # else racks are the wider level
    placed = [cluster[at] for at in place(cluster, count, *([zone, RACK] if zones == racks else [RACK, zone]))]
    inside = {key: room for key, room in rooms(cluster, ["zone", "rack"]).items() if key[0] or not is_strict}
    if any(room >= count for room in inside.values()):
        assert len({(spot.zone, spot.rack) for spot in placed}) == 1
        return
    if any(room >= count for room in rooms(cluster, ["zone"]).values()):
        assert len({spot.zone for spot in placed}) == 1
        assert "" not in {spot.zone for spot in placed}
        (one,) = {spot.zone for spot in placed}
        own = {key: room for key, room in inside.items() if key[0] == one}
        needed = fewest(own, count)
        if needed is not None:
            assert len({spot.rack for spot in placed}) == needed
        return
    assert bool(placed) == (not is_strict and sum(spot.room for spot in cluster) >= count)


@example([Spot(1, "z0", "r0"), Spot(1, "z0", "r1")], 2)
@given(clusters, counts)
def test_required_rack_is_kept_whatever_a_wider_level_has_room_for(cluster: list[Spot], count: int) -> None:
    zones, racks = (len({getattr(spot, key) for spot in cluster} - {""}) for key in ("zone", "rack"))
    assume(zones <= racks)  # else racks are the wider level
    placed = [cluster[at] for at in place(cluster, count, ZONE, RACK_REQUIRED)]
    inside = rooms(cluster, ["zone", "rack"])
    assert len({(spot.zone, spot.rack) for spot in placed}) == any(room >= count for room in inside.values())


@given(clusters, counts, st.integers(0, 6))
def test_later_members_use_the_domain_of_placed_members(cluster: list[Spot], count: int, number: int) -> None:
    home = cluster[number % len(cluster)]
    placed = place(cluster, count, RACK_REQUIRED, standing=[number % len(cluster)])
    has_room = bool(home.rack) and rooms(cluster, ["rack"])[home.rack,] >= count
    assert {cluster[at].rack for at in placed} == ({home.rack} if has_room else set())


def test_domain_with_placed_members_is_preferred_to_a_better_fit() -> None:
    cluster = [Spot(3, "z0", "r0"), Spot(1, "z0", "r1")]
    assert place(cluster, 1, RACK) == [1]
    assert place(cluster, 1, RACK, standing=[0]) == [0]


def test_small_gangs_keep_large_domains_free() -> None:
    cluster = [Spot(3, "z0", "r0"), Spot(3, "z0", "r0"), Spot(2, "z0", "r1"), Spot(3, "z0", "r2")]
    assert {cluster[at].rack for at in place(cluster, 2, RACK_REQUIRED)} == {"r1"}
    assert {cluster[at].rack for at in place(cluster, 3, RACK_REQUIRED)} == {"r2"}
    assert {cluster[at].rack for at in place(cluster, 6, RACK_REQUIRED)} == {"r0"}
