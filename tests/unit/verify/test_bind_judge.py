"""The judge at the bind checker of a simulation: what it blames a scheduler for, and what it lets pass as news."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.storage import Event, Stored
from multisched.config import loading
from tests.kit.checkers.api.bind_judge import NEWS_S, STORAGE, BindJudge
from tests.unit.verify.clusters import WEB, ZONE, Told, affinity, anti_affinity, make_node, make_pod, spread, term


class _Clock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


class Town:
    """An API server's store, written to directly, with a judge that follows it."""

    def __init__(self) -> None:
        self.server = ApiServer(_Clock(), seed=0, rbac=False)
        self.now_s = 100.0
        self.ours: set[str] = set()
        self.told: set[str] = set()
        """uids of pods that whoever decided knew as they are."""
        self.missed: set[str] = set()
        """uids of pods of which a word was missed."""
        self.judge = BindJudge(self.server, loading.default(), lambda: self.now_s, self)
        for name in ("n1", "n2"):
            self.write(make_node(name, zone=name))
        self.wait(2 * NEWS_S)

    def is_known(self, one: str, uid: str) -> bool:
        return one in self.ours

    def was_delivered(self, pod: dict[str, Any], uid: str) -> bool:
        return pod["metadata"]["uid"] in self.told

    def unheard(self, uid: str) -> Collection[str]:
        return self.missed

    def write(self, told: Told) -> None:
        kind, document = told
        storage = next(key for key, of in STORAGE.items() if of == kind)
        metadata = document["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else metadata["name"]
        metadata.setdefault("uid", f"uid-{key}")
        collection, version = self.server.store.collection(storage), self.server.store.next_version()
        stored = Stored(orjson.dumps(document), version, metadata["uid"], {}, ())
        collection.record(Event(version, key, collection.objects.get(key), stored))
        self.judge.follow()

    def delete(self, name: str) -> None:
        collection, version = self.server.store.collection("pods"), self.server.store.next_version()
        collection.record(Event(version, f"default/{name}", collection.objects[f"default/{name}"], None))
        self.judge.follow()

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def bind(self, name: str, node: str, *, is_ours: bool = True, **fields: Any) -> list[str]:
        """The rules that it is blamed for."""
        if is_ours:
            self.ours.add(f"uid-default-{name}")
        self.write(make_pod(name, "", **fields))
        self.write(make_pod(name, node, **fields))
        return [finding.rule for finding in self.judge.findings(f"uid-default-{name}")]


LARGE: dict[str, Any] = {"requests": {"cpu": "3"}}
LONER: dict[str, Any] = {"labels": WEB, "affinity": anti_affinity(term())}


def test_two_of_our_own_binds_are_never_news_to_us() -> None:
    town = Town()
    assert town.bind("first", "n1", **LARGE) == []
    assert town.bind("second", "n1", **LARGE) == ["resources"]
    assert town.bind("loner", "n2", **LONER) == []
    assert town.bind("other", "n2", **LONER) == ["podAntiAffinity"]


def test_what_somebody_else_bound_is_news_for_a_while() -> None:
    town = Town()
    town.bind("first", "n1", is_ours=False, **LARGE)
    assert town.bind("second", "n1", **LARGE) == []
    town.delete("second")
    town.wait(NEWS_S + 1)
    assert town.bind("third", "n1", **LARGE) == ["resources"]


def test_a_node_that_shrank_or_was_tainted_is_news_for_a_while() -> None:
    town = Town()
    town.write(make_node("n1", cpu="1"))
    town.write(make_node("n2", taints=[{"key": "k", "effect": "NoSchedule"}]))
    assert town.bind("one", "n1", **LARGE) == []
    assert town.bind("two", "n2") == []
    town.wait(NEWS_S + 1)
    assert town.bind("three", "n1", **LARGE) == ["resources"]
    assert town.bind("four", "n2") == ["taints"]


def test_the_watch_of_pods_may_be_ahead_of_that_of_nodes() -> None:
    town = Town()
    town.bind("first", "n1", **LARGE)
    town.wait(NEWS_S + 1)
    town.write(make_node("n1", cpu="1"))
    town.delete("first")
    assert town.bind("second", "n1", **LARGE) == []
    assert town.bind("third", "n1", **LARGE) == ["resources"], "its own bind is no news in any watch"


def test_the_watch_of_pods_may_be_behind_that_of_nodes() -> None:
    town = Town()
    town.write(make_node("n1", cpu="1"))
    town.wait(NEWS_S + 1)
    town.bind("stranger", "n1", is_ours=False, **LARGE)
    town.write(make_node("n1", cpu="4"))
    assert town.bind("second", "n1", **LARGE) == []
    assert town.bind("third", "n1", **LARGE) == ["resources"], "its own bind is no news in any watch"


def test_a_change_that_was_taken_back_is_news_too() -> None:
    town = Town()
    town.write(make_node("n1", cpu="1"))
    town.wait(NEWS_S + 1)
    town.write(make_node("n1"))
    town.write(make_node("n1", cpu="1"))
    assert town.bind("one", "n1", **LARGE) == []


def test_company_that_was_assumed_and_came_to_nothing_counts() -> None:
    friend: dict[str, Any] = {"affinity": affinity(term(ZONE))}
    town = Town()
    town.bind("elsewhere", "n2", labels=WEB)
    town.write(make_pod("lost", "", labels=WEB))
    assert town.bind("alone", "n1", **friend) == ["podAffinity"]
    town.judge.assumed("uid-default-lost", "n1")
    town.judge.assumed("uid-default-friend", "n1")
    assert town.bind("friend", "n1", **friend) == []


def test_a_pod_that_comes_back_under_its_name_is_another_one() -> None:
    town = Town()
    town.bind("first", "n1", **LARGE)
    town.wait(NEWS_S + 1)
    kind, document = make_pod("first", "", **LARGE)
    document["metadata"]["uid"] = "uid-another"
    town.write((kind, document))
    assert town.bind("second", "n1", **LARGE) == []


def test_a_pod_that_was_resized_on_its_way_is_judged_by_what_it_was() -> None:
    town = Town()
    town.bind("first", "n1", requests={"cpu": "2"})
    town.ours.add("uid-default-second")
    town.write(make_pod("second", "", requests={"cpu": "1"}))
    town.write(make_pod("second", "", requests={"cpu": "3"}))
    assert town.bind("second", "n1", requests={"cpu": "3"}) == []
    assert town.bind("third", "n1", requests={"cpu": "3"}) == ["resources"]


def _resize_on_the_wire(town: Town) -> list[str]:
    town.write(make_pod("first", "", requests={"cpu": "1"}))
    town.write(make_pod("first", "", requests={"cpu": "3"}))
    town.bind("first", "n1", requests={"cpu": "3"})
    return town.bind("second", "n1", requests={"cpu": "2"})


def test_a_pod_beside_it_that_was_resized_on_its_way_is_judged_by_what_it_was() -> None:
    assert _resize_on_the_wire(Town()) == []


def test_a_resize_that_was_told_before_the_decision_is_no_news() -> None:
    town = Town()
    town.told.add("uid-default-first")
    assert _resize_on_the_wire(town) == ["resources"]


@pytest.mark.parametrize(("missed", "rules"), [("second", []), ("old", ["resources"])])
def test_what_a_watch_left_out_is_taken_back_though_later_news_was_told(missed: str, rules: list[str]) -> None:
    """The node was never free and the pod small at once; who missed the resize alone believes so."""
    town = Town()
    town.missed.add(f"uid-default-{missed}")
    town.bind("old", "n1", **LARGE)
    town.write(make_pod("second", "", requests={"cpu": "1"}))
    town.write(make_pod("second", "", requests={"cpu": "2"}))
    town.delete("old")
    assert town.bind("second", "n1", requests={"cpu": "2"}) == []
    assert town.bind("third", "n1", **LARGE) == rules


def test_a_pod_that_came_again_was_never_smaller() -> None:
    town = Town()
    town.bind("first", "n1", requests={"cpu": "2"})
    kind, document = make_pod("second", "", requests={"cpu": "1"})
    document["metadata"]["uid"] = "uid-before"
    town.write((kind, document))
    assert town.bind("second", "n1", requests={"cpu": "3"}) == ["resources"]


def test_spreading_is_judged_in_the_order_of_decisions() -> None:
    rule: dict[str, Any] = {"topologySpreadConstraints": spread(), "labels": WEB}
    town = Town()
    town.judge.assumed("uid-default-first", "n1")
    town.judge.assumed("uid-default-free", "n1")
    assert town.bind("free", "n1", labels=WEB) == []
    assert town.bind("first", "n1", **rule) == []
    town.judge.assumed("uid-default-last", "n1")
    assert town.bind("last", "n1", **rule) == ["topologySpread"]
