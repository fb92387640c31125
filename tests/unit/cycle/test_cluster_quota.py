"""A quota of the cluster over parallel cycles of several domains: its room is a ledger, its plugin filters and dry-runs by it."""

from __future__ import annotations

import random
from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import settings

from multisched.cycle.results import Conflicted, Placed, Result, Unplaced
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import CPU, Pod
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Asks, Domain, Waiting
from tests.unit.state.state_kit import NamespaceRoom

MAX_MILLI = 1000
FULL = "node(s) are of no use: the namespace's quota is used up"

_THOUGHT: StateKey[int] = StateKey("NamespaceQuota/milli-CPU of the pod's namespace, more or less in thought")


class NamespaceQuota:
    """Filter by what is left of the namespace's room; the ledger has the last word at commit."""

    name = "NamespaceQuota"
    depends_on = Dependency.CACHE_KEY

    def __init__(self, context: PluginContext) -> None:
        room = context.hold.register(NamespaceRoom(MAX_MILLI))
        assert isinstance(room, NamespaceRoom)
        self._room = room
        self.reasons = ReasonTable(self.name)
        self._full = self.reasons.code(Code.UNSCHEDULABLE, FULL)

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable:
        return self._room.version()

    def sign(self, pod: Pod) -> Hashable:
        return ()

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        cycle.state.write(_THOUGHT, 0)
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        used = self._room.used[pod.namespace] + cycle.state.read(_THOUGHT)
        fits = used + pod.requests.get(CPU, 0) <= MAX_MILLI
        return np.full(len(rows), 0 if fits else self._full, np.uint8)

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._change(cycle, pod, other, 1)

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._change(cycle, pod, other, -1)

    @staticmethod
    def _change(cycle: CycleView, pod: Pod, other: Pod, sign: int) -> Status:
        if other.namespace == pod.namespace:
            cycle.state.write(_THOUGHT, cycle.state.read(_THOUGHT) + sign * other.requests.get(CPU, 0))
        return SUCCESS


def room_of(domain: Domain) -> NamespaceRoom:
    room = domain.cache.ledgers.register(NamespaceRoom(MAX_MILLI))
    assert isinstance(room, NamespaceRoom)
    return room


def quota_cluster(*, with_plugin: bool) -> list[Domain]:
    """Three domains over one cache, each with nodes of its own; CPU of nodes is no limit."""
    domains: list[Domain] = []
    for label in "xyz":
        domains.append(
            Domain(
                *(make_node(f"{label}{number}", labels={"at": label}, cpu_milli=64_000) for number in range(2)),
                plugins=[Asks()],
                factories=[NamespaceQuota] if with_plugin else (),
                cache=domains[0].cache if domains else None,
                selects=lambda node, at=label: node.labels["at"] == at,  # type: ignore[misc]
            )
        )
    room_of(domains[0])
    return domains


def play(seed: int, *, with_plugin: bool) -> list[Result]:
    """Attempts of all domains, one within the other; what became of them. Judges the room after each step."""
    rng, domains = random.Random(seed), quota_cluster(with_plugin=with_plugin)
    cache, room = domains[0].cache, room_of(domains[0])
    waiting: list[Waiting] = []
    ended: list[Result] = []
    for number in range(120):
        domain, step = rng.choice(domains), rng.choice(("slow", "slow", "fast", "answer", "answer", "remove"))
        if step == "answer" and waiting:
            attempt = waiting.pop(rng.randrange(len(waiting)))
            ended.append(attempt.answer({"Asks": ""}))
        elif step == "remove" and len(cache):
            uid = rng.choice(cache.uids())
            assert cache.forget(uid) if rng.random() < 0.5 else cache.remove(uid)
        else:
            pod = make_pod(
                f"{step}{number}", cpu_milli=rng.choice((100, 300, 700)), namespace=rng.choice(("red", "blue"))
            )
            try:
                waiting.append(Waiting.begin(domain, pod))
            except StopIteration as done:
                ended.append(done.value)
        for namespace in ("red", "blue"):
            taken = sum(one.pod.requests[CPU] for one in cache if one.pod.namespace == namespace)
            assert room.used[namespace] == taken <= MAX_MILLI
    return ended


@pytest.mark.parametrize("with_plugin", [False, True], ids=["ledger alone", "with its plugin"])
def test_parallel_domain_cycles_stay_within_the_quota(*, with_plugin: bool) -> None:
    ended = [result for seed in range(settings().max_examples // 3) for result in play(seed, with_plugin=with_plugin)]
    assert {Placed, Conflicted} <= {type(result) for result in ended}, "rooms were contended for"
    for result in ended:
        if isinstance(result, Conflicted):
            assert "of its CPU left" in result.refusal
        elif isinstance(result, Unplaced):
            assert with_plugin
            assert not result.is_error
            assert FULL in result.message


def test_pod_refused_by_quota_at_commit_is_placed_when_there_is_room() -> None:
    first, second, _ = quota_cluster(with_plugin=True)
    slow = make_pod("slow", cpu_milli=600)
    attempt = Waiting.begin(first, slow)
    taker = make_pod("taker", cpu_milli=600)
    assert isinstance(second.schedule(taker), Placed)
    refused = attempt.answer({"Asks": ""})
    assert isinstance(refused, Conflicted)
    assert (refused.refusal, refused.rejector) == ("namespace default has 400m of its CPU left", "NamespaceQuota")
    assert first.cycle.conflicts.true == 1
    assert first.cache.placed(slow.uid) is None
    again = first.schedule(make_pod("again", cpu_milli=600))
    assert isinstance(again, Unplaced)
    assert again.rejectors == {"NamespaceQuota"}
    assert first.cache.forget(taker.uid)
    assert isinstance(first.schedule(make_pod("again", cpu_milli=600)), Placed)
    assert room_of(first).used["default"] == 600


def test_dry_run_counts_quota_of_victims_and_writes_nothing() -> None:
    nodes = [make_node(name, cpu_milli=4000) for name in ("a", "b")]
    domain = Domain(*nodes, factories=[NamespaceQuota], in_tree=("NodeResourcesFit", "DefaultPreemption"))
    for name, cpu, namespace in (("mine", 800, "red"), ("other", 800, "blue")):
        domain.cache.place(make_pod(name, cpu_milli=cpu, namespace=namespace, node={"mine": "a", "other": "b"}[name]))
    before = room_of(domain).held()
    result = domain.schedule(make_pod("urgent", cpu_milli=500, namespace="red", priority=10))
    assert isinstance(result, Unplaced)
    assert [(victim.name, result.nominated_node) for victim in result.victims] == [("mine", "a")]
    assert room_of(domain).held() == before
    domain.cache.remove("uid-mine")
    assert isinstance(domain.schedule(make_pod("urgent", cpu_milli=500, namespace="red", priority=10)), Placed)


def test_nominated_pods_count_against_the_quota() -> None:
    domain = Domain(make_node("a"), factories=[NamespaceQuota])
    domain.nominator.nominate(make_pod("urgent", cpu_milli=700, priority=9), "a")
    assert isinstance(domain.schedule(make_pod("late", cpu_milli=500)), Unplaced)
    assert isinstance(domain.schedule(make_pod("late", cpu_milli=300)), Placed)
