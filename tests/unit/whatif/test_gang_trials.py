"""What is said of members of gangs: a gang goes whole or not at all, in thought as well."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.objects import Pod
from multisched.observe.explain_view import ExplainQuery, PodView, WhatIfView
from multisched.shell.domain import DomainWorker
from multisched.testing.builders import Document, node_document
from multisched.whatif import fixes
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.sandbox import SchedulerSandbox
from tests.unit.shell.program_kit import Cluster, at_once, play
from tests.unit.whatif.clusters import dump_of, explained, small_pod

NAME, LEAST = "pod-group.scheduling.sigs.k8s.io/name", "pod-group.scheduling.sigs.k8s.io/min-available"
RACK = {"multisched.io/gang-topology": "rack:required"}


def labels(least: int) -> dict[str, str]:
    return {NAME: "crew", LEAST: str(least)}


def member(name: str, *, least: int, cpu: str = "1", **fields: Any) -> Document:
    return small_pod(name, cpu=cpu, labels=labels(least), **fields)


def nodes(*names: str, cpu: str = "1") -> list[Document]:
    return [node_document(name, cpu=cpu, labels={"rack": name}) for name in names]


def test_member_of_an_incomplete_gang_is_gated_without_a_fix() -> None:
    view = explained(*nodes("n1"), small_pod("other", cpu="1", node="n1"), member("late", least=3))
    assert view.now is not None
    assert ("PreEnqueue", "GangScheduling", "gates it: gang default/crew: waits until 3 members are there") in [
        (point.point, point.plugin, point.said) for point in view.now.points
    ]
    assert view.fixes == ()


def test_feasible_member_of_an_infeasible_gang_does_not_fit() -> None:
    view = explained(*nodes("n1"), member("early", least=2), member("late", least=2))
    note, no_fix = view.notes
    assert no_fix == "none of the tried single changes lets it start with its gang"
    assert note.startswith(
        "it is placed with its gang or not at all, and the results per node are about this pod alone: gang "
    )
    assert "1 of the 2 members that must start together fit; late: 0/1 nodes" in note
    assert view.fixes == ()


def test_feasible_member_of_an_incomplete_gang_gets_no_fix() -> None:
    view = explained(*nodes("n1"), member("late", least=3))
    assert view.fixes == ()
    assert view.notes[-1] == "none of the tried single changes lets it start with its gang"


def test_gang_spanning_racks_does_not_fit_a_required_rack() -> None:
    crew = [member(name, least=2, annotations=RACK) for name in ("early", "late")]
    view = explained(*nodes("n1", "n2"), *crew)
    assert any("no domain of rack has room for the 2 members" in note for note in view.notes), view.notes


def test_fix_counts_the_room_of_all_members() -> None:
    view = explained(
        *nodes("n1", "n2"), small_pod("other", cpu="1", node="n1"), member("early", least=2), member("late", least=2)
    )
    assert view.fixes is not None
    assert [fix.text for fix in view.fixes if fix.kind == "victim"] == [
        "delete the pod default/other (priority 0) from n1"
    ]


def test_fix_that_evicts_a_member_tries_no_placed_member_again() -> None:
    """The member in front takes the last room, and the gang is whole then; without the evicted one it is not."""
    crew = [member(name, least=4, node="n1") for name in "abc"]
    waiting = [member(name, least=4) for name in ("early", "late")]
    view = explained(*nodes("n1", cpu="4"), *crew, *waiting, query=ExplainQuery("default", "late", with_fixes=True))
    assert view.fixes is not None
    assert [fix.text for fix in view.fixes] == [f"delete the pod default/{name} (priority 0) from n1" for name in "abc"]


@pytest.mark.parametrize(("members_tried_max", "attempts"), [(5, 2), (1, 1), (100, 6)])
def test_large_gang_gets_few_trial_attempts(
    members_tried_max: int, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    genuine = SchedulerSandbox.fits

    def fits(sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod) -> str | None:
        tried.append(pod.name)
        return genuine(sandbox, worker, pod)

    monkeypatch.setattr(SchedulerSandbox, "fits", fits)
    monkeypatch.setattr(fixes, "MEMBERS_TRIED_MAX", members_tried_max)
    others = [small_pod(f"other-{at}", cpu="1", node="n1") for at in range(6)]
    explained(*nodes("n1", cpu="6"), *others, member("early", least=2), member("late", least=2))
    assert len(tried) - 1 == attempts, "the first is about the cluster as it is"


def test_feasible_gang_is_reported() -> None:
    view = explained(*nodes("n1", "n2"), member("early", least=2), member("late", least=2))
    assert view.notes[0].startswith("it is placed with its gang, on n")
    assert view.notes[-1].startswith("it fits now, on n")


def test_placed_member_is_not_gated() -> None:
    view = explained(*nodes("n1"), member("late", least=3, node="n1"), query=ExplainQuery("default", "late"))
    assert not any("gates it" in note for note in view.notes)


def test_finished_members_of_a_dump_count() -> None:
    done = [member(name, least=3, node="n1") for name in ("a", "b")]
    for one in done:
        one["status"] = {"phase": "Succeeded"}
    view = explained(*nodes("n1"), *done, member("late", least=3))
    assert view.notes[-1] == "it fits now, on n1, and only has to be retried"


# -- what if ------------------------------------------------------------------------------------------------------------


def asked(replicas: int, *documents: Document, least: int, **fields: Any) -> WhatIfView:
    return dump_of(*documents).what_if(member("new", least=least, **fields), replicas)


@pytest.mark.parametrize(("replicas", "placed"), [(1, 0), (2, 2), (3, 2)])
def test_planned_gang_is_placed_whole_or_not_at_all(replicas: int, placed: int) -> None:
    view = asked(replicas, *nodes("n1", "n2"), least=2)
    assert sum(bool(one.node) for one in view.placements) == placed
    assert all(one.node or one.message for one in view.placements)


def test_planned_gang_without_room_for_all_is_not_placed() -> None:
    view = asked(3, *nodes("n1", "n2"), least=3)
    assert [one.node for one in view.placements] == ["", "", ""]
    assert view.placements[0].message.startswith("gang default/crew: 2 of the 3 members")


def test_planned_members_join_pending_ones() -> None:
    view = asked(1, *nodes("n1", "n2"), member("early", least=2), least=2)
    assert view.placements[0].node


def test_planned_gang_shows_all_its_victims() -> None:
    standing = [small_pod(name, cpu="1", node=node, priority=-1) for name, node in (("a", "n1"), ("b", "n2"))]
    view = asked(2, *nodes("n1", "n2"), *standing, least=2, priority=5)
    assert sorted(one.node for one in view.placements) == ["n1", "n2"]
    assert sorted(view.placements[0].victims) == ["default/a", "default/b"]


# -- of a running program ------------------------------------------------------------------------------------------------

KOORDINATOR = "gang.scheduling.koordinator.sh/"


def test_program_exports_the_history_of_its_gangs() -> None:
    """A gang that has started stays started where its members say so, and finished members count."""

    async def told(cluster: Cluster, name: str) -> PodView:
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        return await explanations.pod(ExplainQuery("default", name, with_fixes=True))

    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("n1", cpu="4")
        crew = {f"{KOORDINATOR}name": "other-crew", f"{KOORDINATOR}min-available": "2"}
        for name in ("a", "b"):
            await cluster.add_pod(name, annotations=crew)
        await cluster.add_pod("alone", labels=labels(2))
        await cluster.settle()
        await cluster.delete_pod("a")
        await cluster.add_pod("huge", annotations=crew, cpu="9")
        await cluster.settle()
        huge, alone = await told(cluster, "huge"), await told(cluster, "alone")

        assert not any("its gang" in note for note in huge.notes), "it came after its gang had started, and goes alone"
        assert huge.fixes is not None
        assert huge.fixes[0].text.startswith("lower the cpu request from 9")
        assert [wake.events for wake in alone.wakes] == [
            ("a member of its gang is added or changes", "what its gang asks for changes")
        ]
        assert alone.fixes == ()

    play(scene)
