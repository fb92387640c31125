"""The view `gpu` of a running program."""

from __future__ import annotations

from typing import Any

import orjson

from domains.gpu.commands import tables
from multisched.cluster.gpu_nodes import gpu_nodes
from multisched.framework.views import ViewQuery
from multisched.shell.plugin_views import ProgramViews
from multisched.testing.builders import GPU
from tests.unit.shell.program_kit import Cluster, at_once, play

REQUESTS = {
    "hami": {GPU: "1", "nvidia.com/gpumem": "100"},
    "volcano-vgpu": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "100"},
    "gpushare": {"aliyun.com/gpu-mem": "1"},
}


async def nodes_of(cluster: Cluster) -> dict[str, dict[str, Any]]:
    body = await ProgramViews(cluster.program, in_thread=at_once).document("gpu", ViewQuery("nodes"))
    return {one["node"]: one for one in orjson.loads(body)["nodes"]}


def test_unconfirmed_holds_have_an_age_until_the_device_plugin_answers() -> None:
    async def prepare(cluster: Cluster) -> None:
        for template in REQUESTS:
            for node in gpu_nodes(template, 1):
                await cluster.send("POST", "/api/v1/nodes", node)

    async def scene(cluster: Cluster) -> None:
        for template, limits in REQUESTS.items():
            await cluster.add_pod(template, limits=limits, scheduler="gpu-scheduler")
        await cluster.settle(90.0)
        found = await nodes_of(cluster)
        for template in REQUESTS:
            [waiting] = found[f"{template}-000"]["unconfirmed"]
            assert waiting["pod"] == f"default/{template}"
            assert 80 <= waiting["ageSeconds"] <= 95
        await cluster.change_metadata("hami", annotations={"hami.io/vgpu-devices-to-allocate": ";"})
        await cluster.change_metadata("gpushare", annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"})
        await cluster.change_metadata("volcano-vgpu", annotations={"volcano.sh/bind-phase": "success"})
        await cluster.settle()
        assert [one["unconfirmed"] for one in (await nodes_of(cluster)).values()] == [[], [], []]

    play(scene, prepare=prepare)


def test_notes_name_what_is_not_read_of_the_shown_nodes() -> None:
    async def prepare(cluster: Cluster) -> None:
        for template in ("gpushare", "whole"):
            for node in gpu_nodes(template, 1):
                await cluster.send("POST", "/api/v1/nodes", node)

    async def scene(cluster: Cluster) -> None:
        views = ProgramViews(cluster.program, in_thread=at_once)
        nodes = orjson.loads(await views.document("gpu", ViewQuery("nodes")))
        (note,) = nodes["notes"]
        assert note.startswith("mode gpushare: cards in the ConfigMap kube-system/unhealthy-gpu-NODE count as healthy")
        assert note in tables.nodes(nodes, is_wide=False)
        one = orjson.loads(await views.document("gpu", ViewQuery("node", {"name": "whole-000"})))
        assert one["notes"] == []
        some = orjson.loads(await views.document("gpu", ViewQuery("nodes", {"limit": "1"})))
        assert ([one["node"] for one in some["nodes"]], some["nodesLeftOut"]) == (["gpushare-000"], 1)

    play(scene, prepare=prepare)


def test_pods_with_units_of_unknown_cards_are_counted() -> None:
    async def prepare(cluster: Cluster) -> None:
        for template in ("mig", "shared"):
            for node in gpu_nodes(template, 1):
                await cluster.send("POST", "/api/v1/nodes", node)

    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("a", limits={"nvidia.com/mig-1g.10gb": "1"}, scheduler="gpu-scheduler")
        await cluster.add_pod("b", limits={GPU: "1"}, scheduler="gpu-scheduler")
        await cluster.settle()
        found = await nodes_of(cluster)
        assert {name: one["pods"] for name, one in found.items()} == {"mig-000": 1, "shared-000": 1}

    play(scene, prepare=prepare)
