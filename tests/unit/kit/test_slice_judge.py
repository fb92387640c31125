"""The judge of loans between processes sees what it is there for."""

from __future__ import annotations

from tests.real.slice_history import Amount, SliceHistory
from tests.real.slice_judge import Holding, bound_without_lease
from tests.real.slice_replay import PodEntry, SliceEntry, SliceReplay

HAS: Amount = (8_000, 1 << 30, 10)


def amount(cpu: int) -> Amount:
    return cpu, 0, 0


def broken(*entries: PodEntry | SliceEntry) -> list[str]:
    replay = SliceReplay({"a": HAS}, {"uid-a": "a"})
    for entry in entries:
        replay.take(entry)
    return [one.partition(":")[0] for one in replay.broken]


def slices(version: int, offered: int, held: int) -> SliceEntry:
    return SliceEntry(version, "gpu.job.0", {"uid-a": amount(offered)}, {"uid-a": amount(held)})


def pod(version: int, cpu: int, *, is_borrower: bool, holds: bool = True) -> PodEntry:
    return PodEntry(version, "a", amount(cpu), is_borrower=is_borrower, holds=holds)


def test_borrower_within_what_it_holds_is_right() -> None:
    assert broken(slices(1, 4_000, 4_000), pod(2, 4_000, is_borrower=True), pod(3, 4_000, is_borrower=False)) == []


def test_pod_of_the_borrower_beyond_what_is_held_breaks_s2() -> None:
    assert broken(slices(1, 4_000, 2_000), pod(2, 3_000, is_borrower=True)) == ["S2"]


def test_claim_that_falls_below_running_pods_breaks_s2() -> None:
    assert broken(slices(1, 4_000, 4_000), pod(2, 3_000, is_borrower=True), slices(3, 4_000, 2_000)) == ["S2"]


def test_pod_of_the_lender_on_what_is_offered_breaks_s1() -> None:
    assert broken(slices(1, 4_000, 0), pod(2, 5_000, is_borrower=False)) == ["S1"]


def test_capacity_returns_when_pods_end_and_claims_fall() -> None:
    ended = pod(3, 4_000, is_borrower=True, holds=False)
    assert broken(slices(1, 4_000, 4_000), pod(2, 4_000, is_borrower=True), ended, slices(4, 0, 0)) == []


def version(offered: int, held: int, writes: int, claims: int | None = None) -> dict[str, object]:
    """`claims`: writes of the borrower, unless they are as many as the lender's."""

    def entries(cpu: int) -> dict[str, object]:
        return {"uid-a": {"cpuMilli": cpu, "memoryBytes": 0, "pods": 0}}

    return {
        "metadata": {"name": "gpu.job.0"},
        "spec": {"offers": entries(offered), "writes": writes},
        "status": {"held": entries(held), "writes": writes if claims is None else claims},
    }


def test_raises_and_recalls_are_counted_until_they_are_returned() -> None:
    history = SliceHistory()
    for at_s, (offered, held) in enumerate([(4, 0), (4, 4), (1, 4), (1, 2), (1, 1), (3, 1), (2, 1)]):
        history.take(version(offered, held, at_s + 1), float(at_s), is_there=True)
    (recall,) = history.recalls
    assert (recall.since_s, recall.until_s, recall.is_withdrawn) == (2.0, 4.0, False)
    assert (history.raises, history.recalling_versions, history.withdrawn_nodes) == (2, 1, 1)
    assert history.above_offer == []


def test_writes_are_counted_by_what_they_change() -> None:
    history = SliceHistory()
    for found in [(4, 0, 1, 0), (4, 4, 1, 1), (2, 4, 2, 1), (2, 2, 2, 2), (3, 2, 3, 2), (3, 1, 3, 3), (2, 1, 4, 3)]:
        history.take(version(*found), 0.0, is_there=True)
    assert history.kinds == {"raise": 2, "claim": 1, "recall": 1, "return": 1, "release": 1, "withdrawal": 1}


def test_claim_above_the_offer_is_told() -> None:
    history = SliceHistory()
    history.take(version(4, 0, 1), 0.0, is_there=True)
    history.take(version(4, 5, 2), 1.0, is_there=True)
    assert len(history.above_offer) == 1


def test_binds_after_a_lost_lease_are_told() -> None:
    holdings = [
        Holding("first", "1970-01-01T00:00:10Z", 15),
        Holding("first", "1970-01-01T00:00:20Z", 15),
        Holding("second", "1970-01-01T00:00:50Z", 15),
    ]
    assert bound_without_lease([("first", 34.0), ("second", 51.0)], holdings) == []
    assert len(bound_without_lease([("first", 36.0), ("first", 51.0), ("second", 49.0)], holdings)) == 3
