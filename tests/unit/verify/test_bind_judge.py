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
from tests.kit.checkers.api.bind_judge import KINDS, UNSEEN_MAX_S, BindJudge
from tests.unit.verify.clusters import WEB, ZONE, Told, affinity, anti_affinity, make_node, make_pod, spread, term


class _Clock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


class JudgedCluster:
    """An API server's store, written to directly, with a judge that follows it."""

    def __init__(self) -> None:
        self.server = ApiServer(_Clock(), seed=0, rbac=False)
        self.now_s = 100.0
        self.ours: set[str] = set()
        self.delivered: set[str] = set()
        """uids of pods that whoever decided knew as they are."""
        self.missed: set[str] = set()
        """uids of pods of which a word was missed."""
        self.judge = BindJudge(self.server, loading.default(), lambda: self.now_s, self)
        for name in ("n1", "n2"):
            self.write(make_node(name, zone=name))
        self.wait(2 * UNSEEN_MAX_S)

    def is_known(self, one: str, uid: str) -> bool:
        return one in self.ours

    def was_delivered(self, pod: dict[str, Any], uid: str) -> bool:
        return pod["metadata"]["uid"] in self.delivered

    def missed_pods(self, uid: str) -> Collection[str]:
        return self.missed

    def write(self, delivered: Told) -> None:
        kind, document = delivered
        storage = next(key for key, of in KINDS.items() if of == kind)
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


def test_own_binds_are_known_at_once() -> None:
    judged = JudgedCluster()
    assert judged.bind("first", "n1", **LARGE) == []
    assert judged.bind("second", "n1", **LARGE) == ["resources"]
    assert judged.bind("loner", "n2", **LONER) == []
    assert judged.bind("other", "n2", **LONER) == ["podAntiAffinity"]


def test_foreign_bind_may_be_unknown_for_a_while() -> None:
    judged = JudgedCluster()
    judged.bind("first", "n1", is_ours=False, **LARGE)
    assert judged.bind("second", "n1", **LARGE) == []
    judged.delete("second")
    judged.wait(UNSEEN_MAX_S + 1)
    assert judged.bind("third", "n1", **LARGE) == ["resources"]


def test_node_change_may_be_unknown_for_a_while() -> None:
    judged = JudgedCluster()
    judged.write(make_node("n1", cpu="1"))
    judged.write(make_node("n2", taints=[{"key": "k", "effect": "NoSchedule"}]))
    assert judged.bind("one", "n1", **LARGE) == []
    assert judged.bind("two", "n2") == []
    judged.wait(UNSEEN_MAX_S + 1)
    assert judged.bind("three", "n1", **LARGE) == ["resources"]
    assert judged.bind("four", "n2") == ["taints"]


def test_pod_watch_may_be_ahead_of_the_node_watch() -> None:
    judged = JudgedCluster()
    judged.bind("first", "n1", **LARGE)
    judged.wait(UNSEEN_MAX_S + 1)
    judged.write(make_node("n1", cpu="1"))
    judged.delete("first")
    assert judged.bind("second", "n1", **LARGE) == []
    assert judged.bind("third", "n1", **LARGE) == ["resources"], "its own bind is no news in any watch"


def test_pod_watch_may_be_behind_the_node_watch() -> None:
    judged = JudgedCluster()
    judged.write(make_node("n1", cpu="1"))
    judged.wait(UNSEEN_MAX_S + 1)
    judged.bind("stranger", "n1", is_ours=False, **LARGE)
    judged.write(make_node("n1", cpu="4"))
    assert judged.bind("second", "n1", **LARGE) == []
    assert judged.bind("third", "n1", **LARGE) == ["resources"], "its own bind is no news in any watch"


def test_reverted_change_may_be_unknown_for_a_while() -> None:
    judged = JudgedCluster()
    judged.write(make_node("n1", cpu="1"))
    judged.wait(UNSEEN_MAX_S + 1)
    judged.write(make_node("n1"))
    judged.write(make_node("n1", cpu="1"))
    assert judged.bind("one", "n1", **LARGE) == []


def test_affinity_to_an_assumed_pod_that_failed_to_bind_is_allowed() -> None:
    friend: dict[str, Any] = {"affinity": affinity(term(ZONE))}
    judged = JudgedCluster()
    judged.bind("elsewhere", "n2", labels=WEB)
    judged.write(make_pod("lost", "", labels=WEB))
    assert judged.bind("alone", "n1", **friend) == ["podAffinity"]
    judged.judge.assumed("uid-default-lost", "n1")
    judged.judge.assumed("uid-default-friend", "n1")
    assert judged.bind("friend", "n1", **friend) == []


def test_pod_recreated_with_the_same_name_is_another_pod() -> None:
    judged = JudgedCluster()
    judged.bind("first", "n1", **LARGE)
    judged.wait(UNSEEN_MAX_S + 1)
    kind, document = make_pod("first", "", **LARGE)
    document["metadata"]["uid"] = "uid-another"
    judged.write((kind, document))
    assert judged.bind("second", "n1", **LARGE) == []


def test_pod_resized_during_its_bind_is_judged_by_its_old_size() -> None:
    judged = JudgedCluster()
    judged.bind("first", "n1", requests={"cpu": "2"})
    judged.ours.add("uid-default-second")
    judged.write(make_pod("second", "", requests={"cpu": "1"}))
    judged.write(make_pod("second", "", requests={"cpu": "3"}))
    assert judged.bind("second", "n1", requests={"cpu": "3"}) == []
    assert judged.bind("third", "n1", requests={"cpu": "3"}) == ["resources"]


def _resize_on_the_wire(judged: JudgedCluster) -> list[str]:
    judged.write(make_pod("first", "", requests={"cpu": "1"}))
    judged.write(make_pod("first", "", requests={"cpu": "3"}))
    judged.bind("first", "n1", requests={"cpu": "3"})
    return judged.bind("second", "n1", requests={"cpu": "2"})


def test_other_pod_resized_during_a_bind_is_judged_by_its_old_size() -> None:
    assert _resize_on_the_wire(JudgedCluster()) == []


def test_resize_delivered_before_the_decision_counts() -> None:
    judged = JudgedCluster()
    judged.delivered.add("uid-default-first")
    assert _resize_on_the_wire(judged) == ["resources"]


@pytest.mark.parametrize(("missed", "rules"), [("second", []), ("old", ["resources"])])
def test_missed_resize_stays_unknown_after_later_events(missed: str, rules: list[str]) -> None:
    """The node was never free and the pod small at once; who missed the resize alone believes so."""
    judged = JudgedCluster()
    judged.missed.add(f"uid-default-{missed}")
    judged.bind("old", "n1", **LARGE)
    judged.write(make_pod("second", "", requests={"cpu": "1"}))
    judged.write(make_pod("second", "", requests={"cpu": "2"}))
    judged.delete("old")
    assert judged.bind("second", "n1", requests={"cpu": "2"}) == []
    assert judged.bind("third", "n1", **LARGE) == rules


def test_recreated_pod_does_not_get_the_size_of_the_old_one() -> None:
    judged = JudgedCluster()
    judged.bind("first", "n1", requests={"cpu": "2"})
    kind, document = make_pod("second", "", requests={"cpu": "1"})
    document["metadata"]["uid"] = "uid-before"
    judged.write((kind, document))
    assert judged.bind("second", "n1", requests={"cpu": "3"}) == ["resources"]


def test_topology_spread_is_judged_in_decision_order() -> None:
    rule: dict[str, Any] = {"topologySpreadConstraints": spread(), "labels": WEB}
    judged = JudgedCluster()
    judged.judge.assumed("uid-default-first", "n1")
    judged.judge.assumed("uid-default-free", "n1")
    assert judged.bind("free", "n1", labels=WEB) == []
    assert judged.bind("first", "n1", **rule) == []
    judged.judge.assumed("uid-default-last", "n1")
    assert judged.bind("last", "n1", **rule) == ["topologySpread"]
