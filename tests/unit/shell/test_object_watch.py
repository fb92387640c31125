"""Which kinds of objects a program watches."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from multisched.framework.events import FLUSH, NODE_ADD, Action, ClusterEvent, EventRegistration
from multisched.framework.registry import BuiltPlugin, PluginSet, PluginUse
from multisched.framework.traits import Traits
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import Response
from multisched.shell.object_watch import watched_kinds
from tests.unit.cycle.cycle_kit import ByName
from tests.unit.shell.program_kit import Cluster, play

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Reads:
    """Reads claims, and is woken by anything."""

    name = "Reads"
    traits = Traits(reads_objects=(ObjectKind.PERSISTENT_VOLUME_CLAIM,))


class Registers:
    """Reads nothing, and has a quota's updates registered."""

    name = "Registers"

    def events_to_register(self) -> Sequence[EventRegistration]:
        quota = ClusterEvent(ObjectKind.RESOURCE_QUOTA, Action.UPDATE)
        return [EventRegistration(event) for event in (NODE_ADD, quota, FLUSH)]


def test_kinds_are_watched_if_read_or_registered_by_a_plugin() -> None:
    first, second = (
        PluginSet([BuiltPlugin(each, PluginUse(each.name)) for each in (ByName(), one)])
        for one in (Registers(), Reads())
    )
    assert watched_kinds([]) == ()
    assert watched_kinds([first, second, first]) == (ObjectKind.RESOURCE_QUOTA, ObjectKind.PERSISTENT_VOLUME_CLAIM)


def test_starting_server_that_refuses_all_kinds_logs_only_the_kind_it_keeps_refusing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = Response(403, b'{"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no"}', {})
    until_s, kept = 120.0, "/apis/policy/v1/poddisruptionbudgets"

    async def prepare(cluster: Cluster) -> None:
        def answer(method: str, path: str) -> Response | None:
            is_starting = cluster.clock.monotonic() < until_s
            return refused if method == "GET" and (is_starting or path.startswith(kept)) else None

        cluster.transport.answer = answer

    async def scene(cluster: Cluster) -> None:
        await cluster.settle(until_s - 20.0)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
        await cluster.settle(120.0)
        (said,) = [vars(record) for record in caplog.records if record.levelno >= logging.ERROR]
        assert (said["kind"], said["path"]) == ("PodDisruptionBudget", kept)

    play(scene, prepare=prepare)


def test_program_without_the_right_to_list_resource_slices_is_ready_and_places_gpu_pods() -> None:
    refused = Response(403, b'{"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no"}', {})

    async def prepare(cluster: Cluster) -> None:
        cluster.transport.answer = lambda method, path: refused if "resourceslices" in path else None

    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("n", gpus=2)
        await cluster.add_pod("p", limits={"nvidia.com/gpu": "1"}, scheduler="gpu-scheduler")
        await cluster.settle(60.0)

        assert cluster.program.cache.objects.unreadable(ObjectKind.RESOURCE_SLICE)
        assert cluster.program.objects.unreadable() == ""
        assert cluster.placed == {"p": "n"}

    play(scene, prepare=prepare)


def test_node_with_resource_slices_of_a_gpu_driver_takes_no_pods_of_its_device_plugin() -> None:
    spec = {"driver": "gpu.nvidia.com", "nodeName": "both", "pool": {"name": "both", "resourceSliceCount": 1}}
    devices = [{"name": f"gpu-{number}"} for number in range(2)]

    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("both", gpus=2)
        await cluster.settle()
        await cluster.send("POST", SLICES, {"metadata": {"name": "both-x7"}, "spec": {**spec, "devices": devices}})
        await cluster.settle()
        await cluster.add_pod("p", limits={"nvidia.com/gpu": "1"}, scheduler="gpu-scheduler")
        await cluster.settle()
        assert cluster.placed == {}

        await cluster.send("DELETE", f"{SLICES}/both-x7")
        await cluster.settle(1.0)

        assert cluster.placed == {"p": "both"}, "the deleted slice requeues it at once"

    play(scene)
