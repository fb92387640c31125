"""Quotas with mistakes through the whole program: what was in force stays so, nobody is evicted, and the object says what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import partial
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.plugins.quota import quota_ledger
from multisched.shell.kept_objects import RENEW_S
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    open_cluster,
    with_controllers,
)
from tests.integration.plugins.test_quotas import TREES, becomes, quota, quota_cluster, replicas, tree, two
from tests.unit.model.quotas.quota_documents import flat
from tests.unit.plugins.quota.trees import Json, leaf, node

GOOD = two((1, 4), (1, 4), 4)
"""Of 4 CPUs the first namespace borrows 3 in the tests below."""


def changed(change: Callable[[Json], object]) -> Json:
    root = deepcopy(GOOD)
    change(root)
    return root


def child(at: int, **fields: Any) -> Json:
    return changed(lambda root: root["children"][at].update(fields))


BAD = {
    "min over max": (child(1, min={"cpu": 3}, max={"cpu": 2}), "root.q2.min.cpu: min 3 is over max 2"),
    "children over their parent": (
        changed(lambda root: [one["min"].update(cpu=3) for one in root["children"]]),
        "root.min.cpu: min of its children is 6 in all, over its own 4",
    ),
    "max over that of the parent": (child(1, max={"cpu": 9}), "root.q2.max.cpu: max 9 is over 4 of root"),
    "a namespace twice": (
        child(1, namespaces=["namespace2", "namespace1"]),
        "root.q2.namespaces: namespace 'namespace1' is already in root.q1",
    ),
    "an unknown resource": (
        child(1, max={"cpu": 4, "gpus": 1}),
        "root.q2.max.'gpus': no pod can ask for such a resource",
    ),
    "no amount": (child(1, min={"cpu": "lots"}), "root.q2.min.cpu: 'lots' is not an amount"),
    "a name twice": (child(1, name="q1"), "root.children[1].name: root.q1 has the same name 'q1'"),
}


async def events(cluster: ProgramCluster) -> list[tuple[str, str]]:
    """Name of the object, and what is said of it, of events about quotas."""
    answer = await DirectTransport(cluster.server).request("GET", "/apis/events.k8s.io/v1/events")
    items = orjson.loads(answer.body)["items"]
    return [(one["regarding"]["name"], one["note"]) for one in items if "Quota" in one["regarding"]["kind"]]


async def is_still_in_force(cluster: ProgramCluster) -> None:
    """The first namespace keeps its four pods until the second one asks for what it is sure of, and gives no more than that."""
    assert len(cluster.program.cache) == 4
    await replicas(cluster, "namespace2", 4, "1")
    await becomes(cluster, [3, 1])
    await cluster.at_rest()


@pytest.mark.parametrize("what", BAD)
def test_invalid_tree_edit_changes_nothing_and_is_reported_on_the_tree(what: str) -> None:
    root, told = BAD[what]

    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await tree(cluster, GOOD)
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [4])
            await cluster.patch(f"{TREES}/tree", {"spec": {"root": root}})
            await becomes(cluster, [4])
            ((name, note),) = await events(cluster)
            assert (name, note.partition("; ")[0]) == ("tree", f"Not used for scheduling: {told}")
            await is_still_in_force(cluster)

    in_virtual_time(main)


def test_second_tree_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await tree(cluster, GOOD)
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [4])
            await tree(cluster, two((1, 1), (1, 1), 2), "another")
            await becomes(cluster, [4])
            (said,) = [vars(one) for one in caplog.records if one.message == "quota has no effect"]
            assert said["object"] == "kube-system/another"
            assert said["error"].startswith("kube-system/tree is in force, and only one tree is allowed")
            await is_still_in_force(cluster)

    in_virtual_time(main)


async def breaks_it(cluster: ProgramCluster) -> None:
    await cluster.patch(f"{TREES}/tree", {"spec": {"root": child(1, max={"cpu": 9})}})


async def adds_a_second(cluster: ProgramCluster) -> None:
    await tree(cluster, two((1, 1), (1, 1), 2), "another")


@pytest.mark.parametrize("mistake", [breaks_it, adds_a_second])
def test_new_process_with_an_invalid_tree_keeps_what_was_in_force(
    mistake: Callable[[ProgramCluster], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with quota_cluster(2) as first:
            await tree(first, GOOD)
            await replicas(first, "namespace1", 5, "1")
            await becomes(first, [4])
            await mistake(first)
            await becomes(first, [4])
        async with open_cluster(HEAD, server=first.server) as cluster, with_controllers(cluster):
            await becomes(cluster, [4])
            await is_still_in_force(cluster)

    in_virtual_time(main)


def test_tree_in_another_namespace_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with quota_cluster(1) as cluster:
            path = TREES.replace("kube-system", "namespace1")
            await cluster.post(
                path, "tree", {}, spec={"root": node("root", {"cpu": 1}, {"cpu": 1}, leaf("a", 1, 1, "namespace1"))}
            )
            await replicas(cluster, "namespace1", 3, "1")
            await becomes(cluster, [3])
            (said,) = [vars(one) for one in caplog.records if one.message == "quota has no effect"]
            assert said["error"] == "only a tree in namespace kube-system has effect; move it there"

    in_virtual_time(main)


def test_tree_deleted_without_consent_stays_in_force_until_recreated() -> None:
    """`kubectl replace --force` deletes and creates."""

    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await tree(cluster, GOOD)
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [4])
            await cluster.delete(f"{TREES}/tree")
            await becomes(cluster, [4])
            (said,) = await events(cluster)
            assert said[0] == "tree"
            assert said[1].startswith("The tree was deleted without consent: its limits stay in force")
            await tree(cluster, two((1, 2), (1, 4), 4))
            await replicas(cluster, "namespace2", 2, "1")
            await becomes(cluster, [3, 1])
            await cluster.at_rest()

    in_virtual_time(main)


LIFT = {"metadata": {"annotations": {"multisched.io/lift-quotas": "true"}}}
KEPT = "/api/v1/namespaces/kube-system/configmaps/multisched-elasticquotatrees"


async def kept(cluster: ProgramCluster) -> str:
    answer = await DirectTransport(cluster.server).request("GET", KEPT)
    return str(orjson.loads(answer.body)["data"]["object.json"])


async def full_cluster(cluster: ProgramCluster) -> None:
    """The first namespace holds all that its quota allows, and the process has kept the tree."""
    await tree(cluster, GOOD)
    await replicas(cluster, "namespace1", 5, "1")
    await becomes(cluster, [4])


@pytest.mark.parametrize("pods_at_once", [1, quota_ledger.PODS_AT_ONCE])
def test_deleted_tree_stays_in_force_after_all_replicas_restart(
    pods_at_once: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quota_ledger, "PODS_AT_ONCE", pods_at_once)

    async def main() -> None:
        async with quota_cluster(2) as first:
            await full_cluster(first)
            await first.delete(f"{TREES}/tree")
            await becomes(first, [4])
        for _ in range(2):  # the second restart knows the tree from the ConfigMap alone
            caplog.clear()
            async with open_cluster(HEAD, server=first.server) as cluster, with_controllers(cluster):
                await becomes(cluster, [4])
                assert not [one for one in caplog.records if one.message == "object was deleted"]
                assert {name for name, note in await events(cluster) if "without consent" in note} == {"tree"}
        async with open_cluster(HEAD, server=first.server) as cluster, with_controllers(cluster):
            await tree(cluster, GOOD)
            await cluster.patch(f"{TREES}/tree", LIFT)
            await cluster.delete(f"{TREES}/tree")
            await becomes(cluster, [5])
            assert await kept(cluster) == ""
        async with open_cluster(HEAD, server=first.server) as cluster, with_controllers(cluster):
            await replicas(cluster, "namespace1", 1, "1", of="more")
            await becomes(cluster, [6])
            await cluster.at_rest()

    in_virtual_time(main)


def test_standby_that_started_after_the_deletion_enforces_the_tree_as_leader() -> None:
    head = HEAD.replace("lease: {enabled: false}\n", "")

    async def main() -> None:
        async with quota_cluster(2, head=head) as first:
            await full_cluster(first)
            await first.delete(f"{TREES}/tree")
            await becomes(first, [4])
            async with open_cluster(head, server=first.server, identity="second") as second:
                assert not any(worker.is_leading for worker in second.program.router.workers())
                first.program.stop()
                await replicas(second, "namespace2", 2, "1")
                await becomes(second, [3, 1])
                await second.at_rest()

    in_virtual_time(main)


def test_tree_deleted_while_no_replica_runs_stays_in_force_unless_it_may_be_lifted() -> None:
    async def main(is_lifted: bool) -> None:
        async with quota_cluster(2) as first:
            await full_cluster(first)
            if is_lifted:
                await first.patch(f"{TREES}/tree", LIFT)
                await becomes(first, [4])
        await first.delete(f"{TREES}/tree")
        async with open_cluster(HEAD, server=first.server) as cluster, with_controllers(cluster):
            await becomes(cluster, [5 if is_lifted else 4])
            await cluster.at_rest()

    for is_lifted in (False, True):
        in_virtual_time(partial(main, is_lifted))


def test_forced_tree_replacement_during_a_restart_leaves_no_gap() -> None:
    """`kubectl replace --force` deletes and creates; here no replica runs in between, and the new tree has a mistake first."""

    async def main() -> None:
        async with quota_cluster(2) as first:
            await full_cluster(first)
        await first.delete(f"{TREES}/tree")
        await tree(first, child(1, max={"cpu": 9}))
        async with open_cluster(HEAD, server=first.server) as cluster, with_controllers(cluster):
            await becomes(cluster, [4])
            await cluster.patch(f"{TREES}/tree", {"spec": {"root": two((1, 2), (1, 4), 4)}})
            await replicas(cluster, "namespace2", 2, "1")
            await becomes(cluster, [3, 1])
            await cluster.at_rest()

    in_virtual_time(main)


def test_kept_tree_is_written_again_after_it_was_lost_and_after_each_change() -> None:
    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await full_cluster(cluster)
            assert '"q1"' in await kept(cluster)
            await cluster.delete(KEPT)
            await becomes(cluster, [4])
            await asyncio.sleep(RENEW_S)
            await becomes(cluster, [4])
            assert '"q1"' in await kept(cluster)
            await cluster.patch(KEPT, {"data": {"object.json": "{"}})
            await cluster.patch(f"{TREES}/tree", {"spec": {"root": two((1, 3), (1, 4), 4)}})
            await becomes(cluster, [4])
            assert '"cpu":"3"' in await kept(cluster)
            await quota(cluster, flat("namespace2", 2, 4))
            await cluster.delete(f"{TREES}/tree")
            await becomes(cluster, [5])
            assert await kept(cluster) == "", "other quotas exist"

    in_virtual_time(main)


def test_tree_deleted_with_consent_evicts_no_pod_and_applies_again_when_recreated() -> None:
    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await tree(cluster, GOOD)
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [4])
            await replicas(cluster, "namespace2", 2, "1")
            await becomes(cluster, [3, 1])
            await cluster.patch(f"{TREES}/tree", {"metadata": {"annotations": {"multisched.io/lift-quotas": "true"}}})
            await cluster.delete(f"{TREES}/tree")
            await becomes(cluster, [5, 2])
            await tree(cluster, GOOD)
            await becomes(cluster, [5, 2])  # over its max, and nobody goes for that
            await replicas(cluster, "namespace1", 1, "1", of="more")
            await becomes(cluster, [5, 2])
            await cluster.at_rest()

    in_virtual_time(main)


def test_invalid_quota_among_many_keeps_the_others_unchanged() -> None:
    """The root of scheduler-plugins' quotas is the sum of them: with one left out the others would lend less."""

    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await quota(cluster, flat("namespace1", 2, 4))
            await quota(cluster, flat("namespace2", 2, 4))
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [4])
            path = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/namespace2/elasticquotas/quota"
            await cluster.patch(path, {"spec": {"min": {"cpu": 5}}})
            await becomes(cluster, [4])
            assert await events(cluster) == [
                ("quota", "Not used for scheduling: spec.min.cpu: min 5 is over max 4; lower min or raise max")
            ]
            await replicas(cluster, "namespace2", 5, "1")
            await becomes(cluster, [2, 2])
            await cluster.at_rest()

    in_virtual_time(main)
