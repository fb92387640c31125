"""Binds of which nothing was sent yet, while others come to, or leave, a zone that the pod's rules reach over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

import anyio
import pytest

from multisched.framework.ports import BindAnswer, BindReply
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.shell.binding.send_check import CHANGES_READ_MAX
from multisched.state.external_pod_changes import CHANGES_MAX
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.cycle.relations_kit import REQUIRED, ZONE
from tests.unit.plugins.scenes import put
from tests.unit.plugins.volumes.storage_documents import claim, uses
from tests.unit.shell.binding.test_send_check import Counting
from tests.unit.shell.shell_kit import HELD_S, Holding, WorkerHarness

Fields = Mapping[str, Any]
FILTERS = ("VolumeRestrictions", "PodTopologySpread", "InterPodAffinity")


def labelled(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


def term(**labels: str) -> dict[str, Any]:
    return {REQUIRED: [{"topologyKey": ZONE, "labelSelector": {"matchLabels": labels}}]}


def spread(**labels: str) -> dict[str, Any]:
    rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": labels}}]}


AWAY: Fields = {"affinity": {"podAntiAffinity": term(role="leader")}}
NEAR: Fields = {"affinity": {"podAffinity": term(role="leader")}}
AWAY_FROM_US: Fields = {"affinity": {"podAntiAffinity": term(app="ours")}}


def others(harness: WorkerHarness, name: str, node: str = "beside", **fields: Any) -> str:
    """A pod that no decision of ours has placed."""
    return harness.see_pod(name, scheduler="them", nodeName=node, phase="Running", **fields)


def come_and_go(harness: WorkerHarness, name: str) -> None:
    others(harness, name)
    harness.lose_pod(name)


def relabel_node(harness: WorkerHarness, name: str, zone: str) -> None:
    harness.see_node(name, cpu="100m", labels={ZONE: zone})


class Case(NamedTuple):
    """A pod, what stands before it comes, and what happens elsewhere while it waits."""

    pod: Fields
    before: Callable[[WorkerHarness], object]
    change: Callable[[WorkerHarness], object]
    plugin: str = "InterPodAffinity"


NOTHING: Callable[[WorkerHarness], object] = lambda harness: None  # noqa: E731
LEADER = labelled(role="leader")
CASES = {
    "company comes that it keeps away from": Case(AWAY, NOTHING, lambda h: others(h, "x", **LEADER)),
    "somebody comes that keeps away from it": Case(
        labelled(app="ours"), NOTHING, lambda h: others(h, "x", **AWAY_FROM_US)
    ),
    "a standing pod takes on the label": Case(
        AWAY, lambda h: others(h, "x", **labelled(role="follower")), lambda h: others(h, "x", **LEADER)
    ),
    "its zone is full by others": Case(
        {**labelled(app="ours"), **spread(app="ours")},
        NOTHING,
        lambda h: others(h, "x", **labelled(app="ours")),
        "PodTopologySpread",
    ),
    "the emptiest zone empties": Case(
        {**labelled(app="ours"), **spread(app="ours")},
        lambda h: [others(h, "x", **labelled(app="ours")), others(h, "y", "far", **labelled(app="ours"))],
        lambda h: h.lose_pod("y"),
        "PodTopologySpread",
    ),
    "a pod of the emptiest zone begins to go": Case(
        {**labelled(app="ours"), **spread(app="ours")},
        lambda h: [others(h, "x", **labelled(app="ours")), others(h, "y", "far", **labelled(app="ours"))],
        lambda h: others(h, "y", "far", metadata={"labels": {"app": "ours"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}),
        "PodTopologySpread",
    ),
    "the company it wants goes": Case(NEAR, lambda h: others(h, "x", **LEADER), lambda h: h.lose_pod("x")),
    "the company it wants drops the label": Case(
        NEAR, lambda h: others(h, "x", **LEADER), lambda h: others(h, "x", **labelled(role="follower"))
    ),
    "the node of its company changes zones": Case(
        NEAR, lambda h: others(h, "x", **LEADER), lambda h: relabel_node(h, "beside", "z2")
    ),
    "the node of its company goes": Case(NEAR, lambda h: others(h, "x", **LEADER), lambda h: h.lose_node("beside")),
    "a node comes with pods on it": Case(
        AWAY, lambda h: others(h, "x", "late", **LEADER), lambda h: relabel_node(h, "late", "z1")
    ),
    "more comes than is remembered, and somebody who keeps away from it": Case(
        labelled(app="ours"),
        NOTHING,
        lambda h: [others(h, "x", **AWAY_FROM_US), *(others(h, f"n{number}", "far") for number in range(CHANGES_MAX + 1))],
    ),
    "more comes and goes than is remembered": Case(
        AWAY,
        NOTHING,
        lambda h: [others(h, "x", **LEADER), *(others(h, f"n{number}", "far") for number in range(CHANGES_MAX + 1))],
    ),
}  # fmt: skip


def play(scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]], *plugins: Any) -> None:
    """Node `a` takes pods; `beside`, of its zone, and `far` have no room."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, plugins=[Holding(), *plugins], bind_workers=1, filters=FILTERS)
        harness.see_node("a", cpu="8", labels={ZONE: "z1"})
        relabel_node(harness, "beside", "z1")
        relabel_node(harness, "far", "z2")
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            await scene(harness)
        harness.cache.validate()

    simulate(main(), loop)


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bind_is_not_sent_against_a_rule_violated_on_other_nodes(where: str, case: Case) -> None:
    async def scene(harness: WorkerHarness) -> None:
        case.before(harness)
        harness.desk.replies = [HELD_S] if where == "queued" else []
        harness.see_pod("first")
        await asyncio.sleep(0.1)
        harness.see_pod(where, **case.pod)
        await asyncio.sleep(0.1)
        assert harness.node_of(where) == "a"

        case.change(harness)
        await asyncio.sleep(HELD_S)
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("first", "a")]
        assert any(case.plugin in message for message in harness.told(where)), harness.told(where)

    play(scene)


def test_single_pod_claim_used_by_another_pod_cancels_the_bind() -> None:
    async def scene(harness: WorkerHarness) -> None:
        put(harness.cache.objects, ObjectKind.PERSISTENT_VOLUME_CLAIM, claim("c", modes=["ReadWriteOncePod"]))
        harness.see_pod("permit", volumes=uses("c"))
        await asyncio.sleep(0.1)
        assert harness.node_of("permit") == "a"
        others(harness, "x", volumes=uses("c"))
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == []
        assert "ReadWriteOncePod" in harness.told("permit")[0]

    play(scene)


def test_throttled_bind_is_not_resent_against_a_rule() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [BindReply(BindAnswer.THROTTLED, retry_after_s=3.0)]
        harness.see_pod("p", **AWAY)
        await asyncio.sleep(0.1)
        others(harness, "x", **LEADER)
        await asyncio.sleep(10.0)

        assert harness.desk.posts == [("p", "a")]

    play(scene)


def test_pod_with_affinity_to_a_cancelled_bind_is_cancelled() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S]
        harness.see_pod("first")
        harness.see_pod("permit", **LEADER)
        await asyncio.sleep(0.1)
        harness.see_pod("queued", **NEAR)
        await asyncio.sleep(0.1)
        assert harness.node_of("queued") == "a"
        harness.worker.waiting.reject("uid-permit", "Holding", "no")
        await asyncio.sleep(HELD_S)

        assert harness.desk.posts == [("first", "a")]

    play(scene)


SILENT: dict[str, Callable[[WorkerHarness], object]] = {
    "plain pods come": lambda h: others(h, "x"),
    "others of the class come to another zone": lambda h: others(h, "x", "far", **labelled(app="theirs")),
    "somebody comes who keeps away from others": lambda h: others(h, "x", **NEAR),
    "plain pods go": lambda h: come_and_go(h, "x"),
    "company comes": lambda h: others(h, "x", **LEADER),
}


@pytest.mark.parametrize("change", SILENT.values(), ids=SILENT)
def test_plain_pod_is_not_checked_for_changes_on_other_nodes(
    change: Callable[[WorkerHarness], object],
) -> None:
    counting = Counting()

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("permit", **labelled(app="ours"))
        await asyncio.sleep(0.1)
        asked = counting.asked
        change(harness)
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("permit", "a")]
        assert counting.asked == asked

    play(scene, counting)


@pytest.mark.parametrize("change", [lambda h: others(h, "x"), lambda h: others(h, "x", **labelled(role="follower"))])
def test_pod_with_affinity_is_checked_only_for_matching_pods(
    change: Callable[[WorkerHarness], object],
) -> None:
    counting = Counting()

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("permit", **AWAY)
        await asyncio.sleep(0.1)
        asked = counting.asked
        change(harness)
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("permit", "a")]
        assert counting.asked == asked

    play(scene, counting)


def test_plain_pod_is_checked_only_for_pods_with_anti_affinity() -> None:
    """However many came: one of them keeps away from somebody else."""
    counting = Counting()

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("permit", **labelled(app="ours"))
        await asyncio.sleep(0.1)
        asked = counting.asked
        others(harness, "x", **AWAY)
        for number in range(CHANGES_READ_MAX + 1):
            others(harness, f"n{number}", "far")
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("permit", "a")]
        assert counting.asked == asked

    play(scene, counting)


@pytest.mark.parametrize(("count", "is_asked_again"), [(CHANGES_READ_MAX, False), (CHANGES_READ_MAX + 1, True)])
def test_many_external_changes_are_checked_by_running_filters(count: int, is_asked_again: bool) -> None:
    counting = Counting()

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("permit", **AWAY)
        await asyncio.sleep(0.1)
        asked = counting.asked
        for number in range(count):
            others(harness, f"n{number}", "far")
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("permit", "a")]
        assert (counting.asked > asked) == is_asked_again

    play(scene, counting)


@pytest.mark.parametrize("rules", [{}, AWAY_FROM_US, spread(app="ours")], ids=["plain", "anti-affinity", "spread"])
def test_own_binds_and_confirmations_are_no_external_changes(rules: Fields) -> None:
    """The API server adds the labels of the node's zone and region as it binds."""
    pods = 12

    async def scene(harness: WorkerHarness) -> None:
        labels = {"app": "theirs" if rules is AWAY_FROM_US else "ours"}
        harness.see_node("b", cpu="16", labels={ZONE: "z2"})
        for number in range(pods):
            harness.see_pod(f"p{number}", cpu="100m", metadata={"labels": labels}, **rules)
        await asyncio.sleep(1.0)
        assert len(harness.desk.posts) == pods
        placed: list[Pod] = [entry.pod for entry in harness.cache]
        for pod in placed:
            written = {**labels, ZONE: "z", "topology.kubernetes.io/region": "r"}
            fields: dict[str, Any] = {"nodeName": harness.node_of(pod.name), **rules}
            harness.see_pod(pod.name, cpu="100m", phase="Running", metadata={"labels": written}, **fields)
        assert harness.cache.pod_changes.end == 0

    play(scene)
