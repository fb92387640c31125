"""Several ledgers in one book: each is asked and told with its own arguments, and one that fails costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from multisched.framework.ledger import NO_CHOICES
from multisched.framework.runner import PluginFailure
from multisched.model.cluster_objects import ClusterObject, NodeDevices
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.state.cluster_cache import Assumption, ClusterCache
from multisched.state.ledgers import UNKNOWN_VERSION, LedgerRegistry
from multisched.state.transaction import assume
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import make_pod

POD, NODE = make_pod("p"), make_node("n")


class Noting:
    """Notes what it is asked and told, and raises at one point."""

    def __init__(self, name: str, *, fails_at: str = "", is_concerned: bool = True, reason: str = "") -> None:
        self.name = name
        self.annotations = frozenset({f"{name}/asked"})
        self.written = frozenset({f"{name}/given"})
        self.reported = frozenset({f"{name}/allocated"})
        self.node_annotations = frozenset({f"{name}/cards"})
        self.lock_annotations = frozenset({f"{name}/lock"})
        self.reads_objects = (ObjectKind.NODE_DEVICES,)
        self.heard: list[tuple[Any, ...]] = []
        self.fails_at = fails_at
        self.asked = 0
        """Calls of `is_used_by`."""
        self._is_concerned = is_concerned
        self._reason = reason

    def _hear(self, point: str, *handed: object) -> None:
        self.heard.append((point, *handed))
        if point == self.fails_at:
            raise RuntimeError("boom")

    def is_used_by(self, pod: Pod) -> bool:
        assert pod is POD
        self.asked += 1
        return self._is_concerned

    def version(self, row: int) -> int:
        self._hear("version", row)
        return 10 + row

    def fits(self, pod: Pod, row: int) -> str:
        self._hear("fits", pod, row)
        return self._reason

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self._hear("take", pod, row)
        return {f"{self.name}/given": str(row), "both": self.name}

    def object_changed(self, kind: ObjectKind, changed: ClusterObject) -> tuple[int, ...]:
        return (len(changed.name), len(self.name))

    def restore(self, pod: Pod, row: int) -> None:
        self._hear("restore", pod, row)

    def release(self, uid: str) -> None:
        self._hear("release", uid)

    def set_node(self, row: int, node: Node | None) -> None:
        self._hear("set_node", row, node)

    def held(self) -> Mapping[str, object]:
        return {}

    def empty_copy(self) -> Noting:
        return Noting(self.name)


def book_of(*ledgers: Noting) -> LedgerRegistry:
    book = LedgerRegistry()
    for ledger in ledgers:
        assert book.register(ledger) is ledger
    return book


def test_all_ledgers_get_the_pod_and_the_row() -> None:
    first, second = Noting("first"), Noting("second")
    book = book_of(first, second)
    assert book.fits(POD, 3) == ""
    assert book.take(POD, 3) == {"first/given": "3", "second/given": "3", "both": "second"}
    assert book.versions(POD, 3) == (13, 13)
    assert book.has_ledger(POD)
    book.restore(POD, 4)
    book.release("uid")
    book.set_node(5, NODE)
    told = [("restore", POD, 4), ("release", "uid"), ("set_node", 5, NODE)]
    assert first.heard == second.heard == [("fits", POD, 3), ("take", POD, 3), ("version", 3), ("version", 0), *told]
    assert (book.annotations, book.written, book.reported) == (
        frozenset({"first/asked", "second/asked"}),
        frozenset({"first/given", "second/given"}),
        frozenset({"first/allocated", "second/allocated"}),
    )
    described = NodeDevices(name="n1")
    assert book.object_changed(ObjectKind.NODE_DEVICES, described) == {2, 5, 6}
    assert book.object_changed(ObjectKind.SERVICE, described) == set(), "they do not read it"
    assert book.node_annotations == {"first/cards", "second/cards"}
    assert book.lock_annotations == {"first/lock", "second/lock"}
    assert book.read_annotations == book.annotations | book.written | book.reported
    assert [ledger.name for ledger in book] == ["first", "second"]


def test_unconcerned_ledger_is_only_asked_to_release() -> None:
    stranger = Noting("stranger", is_concerned=False, reason="full")
    book = book_of(stranger)
    assert (book.fits(POD, 3), book.take(POD, 3), book.versions(POD, 3), book.has_ledger(POD)) == ("", {}, (), False)
    book.restore(POD, 4)
    assert stranger.heard == [("release", "p")]


def test_decision_calls_concerns_once_per_ledger() -> None:
    cache = ClusterCache()
    concerned, stranger = Noting("concerned"), Noting("stranger", is_concerned=False, reason="full")
    for ledger in (concerned, stranger):
        cache.ledgers.register(ledger)
    row = cache.nodes.set_node(NODE)
    concerned.heard.clear()

    found = assume(cache, POD, row, lambda pod, row: NO_CHOICES)

    assert isinstance(found, Assumption)
    assert (concerned.asked, stranger.asked) == (1, 1)
    assert concerned.heard == [("fits", POD, row), ("take", POD, row)]
    assert stranger.heard == []


def test_first_ledger_reason_is_reported() -> None:
    book = book_of(Noting("fine"), Noting("full", reason="no room"), Noting("fuller", reason="none at all"))
    assert book.fits(POD, 3) == "no room"


@pytest.mark.parametrize("point", ["fits", "take"])
def test_ledger_that_raises_in_fits_is_named_and_nothing_is_held(point: str) -> None:
    before, failing, after = Noting("before"), Noting("failing", fails_at=point), Noting("after")
    book = book_of(before, failing, after)
    with pytest.raises(PluginFailure) as failed:
        (book.fits if point == "fits" else book.take)(POD, 3)
    assert (failed.value.status.plugin, failed.value.status.message) == (
        "failing",
        'running Ledger "failing": RuntimeError: boom',
    )
    given = [("release", "p")] if point == "take" else []
    assert before.heard == [(point, POD, 3), *given]
    assert after.heard == given
    assert book.broken == {}


@pytest.mark.parametrize("point", ["restore", "release", "set_node", "version"])
def test_ledger_that_raises_on_an_update_is_broken_until_trusted_again(point: str) -> None:
    failing, after = Noting("failing", fails_at=point), Noting("after")
    book = book_of(failing, after)
    match point:
        case "restore":
            book.restore(POD, 3)
        case "release":
            book.release("uid")
        case "set_node":
            book.set_node(3, None)
        case "version":
            assert book.versions(POD, 3) == (UNKNOWN_VERSION, 13)
    assert [heard[0] for heard in after.heard] == [point]
    assert book.broken == {"failing": f"{point}: RuntimeError: boom"}
    with pytest.raises(PluginFailure) as refused:
        book.fits(POD, 3)
    words = f"its state is inconsistent after an error ({point}: RuntimeError: boom); the next audit repairs it"
    assert refused.value.status.message == f'running Ledger "failing": {words}'
    book.trust("after")
    book.trust("failing")
    assert (book.broken, book.fits(POD, 3)) == ({}, "")


class Holding:
    """A ledger that some pods use, and records which pods it is asked about."""

    def __init__(self, name: str, is_used_by: Callable[[Pod], bool]) -> None:
        self.name = name
        self.calls: list[str] = []
        self._is_used_by = is_used_by

    def is_used_by(self, pod: Pod) -> bool:
        self.calls.append("is_used_by")
        return self._is_used_by(pod)

    def version(self, row: int) -> int:
        return 0

    def fits(self, pod: Pod, row: int) -> str:
        return ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        self.calls.append("restore")

    def release(self, uid: str) -> None:
        self.calls.append("release")

    def set_node(self, row: int, node: Node | None) -> None: ...

    def held(self) -> Mapping[str, object]:
        return {}

    def empty_copy(self) -> Holding:
        return Holding(self.name, self._is_used_by)


class CountingBound(Holding):
    """A ledger that counts pods once they have a node."""

    counts_bound_pods = True


ASKED = ["is_used_by", "restore"]


@pytest.mark.parametrize(
    ("change", "unused"),
    [
        ({}, []),
        ({"labels": {"a": "b"}}, ["is_used_by", "release"]),
        ({"annotations": {"a": "b"}}, ["is_used_by", "release"]),
        ({"phase": "Running"}, ["is_used_by", "release"]),
        ({"started_s": 1.0}, ["is_used_by", "release"]),
        ({"is_deleting": True}, ["is_used_by", "release"]),
        ({"held": {"cpu": 1}}, ["is_used_by", "release"]),
        ({"spec": replace(POD.spec)}, ["is_used_by", "release"]),
    ],
    ids=str,
)
def test_confirmation_asks_ledgers_without_holds_only_if_the_pod_changed(
    change: dict[str, Any], unused: list[str]
) -> None:
    used, without, bound = (
        Holding("used", lambda pod: True),
        Holding("without", lambda pod: False),
        CountingBound("bound", lambda pod: bool(pod.node)),
    )
    cache = ClusterCache()
    for ledger in (used, without, bound):
        cache.ledgers.register(ledger)
    cache.set_node(NODE)
    assert isinstance(assume(cache, POD, 0, lambda pod, row: NO_CHOICES), Assumption)
    for ledger in (used, without, bound):
        ledger.calls.clear()
    cache.place(replace(POD, node="n", **change))
    assert (used.calls, without.calls, bound.calls) == (ASKED, unused, ASKED)
    used.calls.clear()
    without.calls.clear()
    cache.place(replace(POD, node="n", **change))
    assert (used.calls, without.calls) == (ASKED, ["is_used_by", "release"]), (
        "later versions are restored in all of them"
    )


def test_confirmation_of_a_revised_pod_asks_all_ledgers() -> None:
    without, cache = Holding("without", lambda pod: False), ClusterCache()
    cache.ledgers.register(without)
    cache.set_node(NODE)
    assume(cache, POD, 0, lambda pod, row: NO_CHOICES)
    revised = replace(POD, labels={"a": "b"})
    cache.revise(revised)
    without.calls.clear()
    cache.place(replace(revised, node="n"))
    assert without.calls == ["is_used_by", "release"]
