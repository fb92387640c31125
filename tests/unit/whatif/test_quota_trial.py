"""Who would be evicted under quotas that are not applied yet: pods that wait are tried where they are in force."""

from __future__ import annotations

from functools import cache
from typing import Any

from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.model.quotas.translation import QuotaApi
from multisched.testing.builders import Document
from multisched.whatif.quota_lint import lint
from multisched.whatif.quota_trial import Trial, try_quotas
from multisched.whatif.sandbox import SchedulerSandbox
from tests.unit.plugins.quota.trees import Json, acks_example, leaf
from tests.unit.plugins.quota.trees import node as level
from tests.unit.whatif.quota_clusters import node, pods, quota_tree, snapshot_of, walk_through


@cache
def configuration() -> Configuration:
    return loading.default()


def trial_of(root: Json, *cluster: Document) -> Trial:
    found = lint(QuotaApi.ACK, [quota_tree(root)], snapshot_of(cluster))
    assert found.after is not None, found.problems
    return try_quotas(SchedulerSandbox(configuration(), found.after), found.after)


def two(first: tuple[int, int], second: tuple[int, int], whole: int, **more: Any) -> Json:
    return level("root", {"cpu": whole}, {"cpu": whole}, leaf("a", *first), leaf("b", *second, **more))


def test_last_walk_through_step_evicts_one_pod_per_borrower() -> None:
    found = trial_of(acks_example(), *walk_through(3, 3, 2, 0))
    assert [(one.leaf, one.pod, one.node) for one in found.evictions] == [
        ("root.a.1", "namespace1/pod-2", "n"),
        ("root.a.2", "namespace2/pod-2", "n"),
    ]
    assert {one.preemptor_leaf for one in found.evictions} == {"root.b.4"}
    assert found.evictions[0].why == ("root.a.1 holds cpu 15, over its min 10; root.b.4 holds 0 of its min 10")
    assert found.placed == 2, "who comes for the place of the others is over its min"


def test_nothing_is_evicted_without_an_entitled_pod() -> None:
    assert trial_of(acks_example(), *walk_through(2, 2, 2, 2)).evictions == ()
    assert trial_of(two((1, 4), (3, 4), 4), node(), *pods("a", 4, cpu="1")).evictions == ()


def test_edit_in_favour_of_others_evicts_borrowers() -> None:
    before = [node(), *pods("a", 3, 2, cpu="1"), *pods("b", 1, 2, cpu="1")]
    assert trial_of(two((3, 4), (1, 4), 4), *before).evictions == ()
    found = trial_of(two((1, 4), (3, 4), 4), *before)
    assert [(one.leaf, one.pod, one.preemptor) for one in found.evictions] == [
        ("root.a", "a/pod-2", "b/pod-1"),
        ("root.a", "a/pod-1", "b/pod-2"),
    ]
    assert [one.why.partition(";")[0] for one in found.evictions] == [
        "root.a holds cpu 3, over its min 1",
        "root.a holds cpu 2, over its min 1",
    ]


def test_oldest_pod_of_a_priority_is_tried_first() -> None:
    """Whatever their uids: there is room that one of them is entitled to."""
    waiting = pods("b", 0, 2, cpu="1")
    waiting[0]["metadata"]["uid"] = "z"
    found = trial_of(two((3, 4), (1, 4), 4), node(), *pods("a", 4, cpu="1"), *reversed(waiting))
    assert [(one.pod, one.preemptor) for one in found.evictions] == [("a/pod-3", "b/pod-0")]


def test_pod_of_the_same_quota_is_preempted_by_priority() -> None:
    running = pods("a", 2, cpu="2")
    late = pods("a", 0, 1, cpu="2", priority=1000)
    late[0]["metadata"] |= {"name": "late", "uid": "late"}
    found = trial_of(two((4, 4), (0, 4), 4), node(), *running, *late)
    assert [(one.pod, one.why) for one in found.evictions] == [
        ("a/pod-1", "it has a lower priority in the same quota (0, not 1000)")
    ]


def test_preemptions_outside_quotas_are_not_listed() -> None:
    low, high = pods("free", 1, cpu="3"), pods("free", 0, 1, cpu="3", priority=1000)
    high[0]["metadata"] |= {"name": "high", "uid": "high"}
    found = trial_of(two((1, 4), (3, 4), 4), node("n", "4"), *low, *high)
    assert (found.evictions, found.placed) == ((), 1)


def test_foreign_and_gated_pods_are_not_tried() -> None:
    gated = pods("b", 0, 1, cpu="1", schedulingGates=[{"name": "hold"}])
    foreign = pods("b", 0, 1, cpu="1")
    foreign[0]["spec"]["schedulerName"] = "another"
    foreign[0]["metadata"] |= {"name": "foreign", "uid": "foreign"}
    found = trial_of(two((1, 4), (3, 4), 4), node(), *pods("a", 4, cpu="1"), *gated, *foreign)
    assert (found.evictions, found.placed, found.waiting) == ((), 0, 0)


def test_quota_trial_without_nodes_reports_it() -> None:
    found = trial_of(two((1, 4), (3, 4), 4), *pods("b", 0, 1))
    assert found.evictions == ()
    assert "no node is known" in found.notes[-1]
