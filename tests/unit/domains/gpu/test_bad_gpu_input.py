"""Bad input about GPUs: a condition or event names object, field and fix; accepted pods keep what they have."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from domains.gpu.gpu_ledger import GpuLedger
from multisched.cluster.gpu_nodes import gpu_nodes
from multisched.model.wire import MERGE_PATCH
from multisched.observe.explain_view import ExplainQuery
from multisched.testing.builders import GPU, Document, container, pod_document
from multisched.whatif.explain_source import ProgramExplanations
from tests.unit.shell.program_kit import PODS, Cluster, at_once, play

EVENTS = "/apis/events.k8s.io/v1/events"


class GpuCluster:
    """A cluster with nodes of some templates."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def add(self, name: str, *limits: dict[str, Any], node: str = "", **fields: Any) -> None:
        """`limits`: of each container; `node`: its bind by another scheduler."""
        containers = [container() for _ in limits or ({},)]
        for number, (one, amounts) in enumerate(zip(containers, limits, strict=False)):
            one["name"] = f"c{number}"
            one["resources"]["limits"] = {key: str(amount) for key, amount in amounts.items()}
        scheduler = fields.pop("scheduler", "gpu-scheduler")
        await self.cluster.send("POST", PODS, pod_document(name, *containers, schedulerName=scheduler, **fields))
        if node:
            await self.cluster.bind(name, node)
        await self.cluster.settle()

    async def condition(self, name: str) -> str:
        pod = await self.cluster.send("GET", f"{PODS}/{name}")
        return str(pod["status"]["conditions"][0]["message"])

    async def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = (await self.cluster.send("GET", f"{PODS}/{name}"))["metadata"]["annotations"]
        return found

    async def events(self, reason: str) -> list[tuple[str, str]]:
        found = (await self.cluster.send("GET", EVENTS))["items"]
        return [(one["regarding"]["name"], one["note"]) for one in found if one["reason"] == reason]

    async def change_node(self, name: str, **fields: Document) -> None:
        await self.cluster.send("PATCH", f"/api/v1/nodes/{name}", fields, content_type=MERGE_PATCH)
        if "status" in fields:
            path = f"/api/v1/nodes/{name}/status"
            await self.cluster.send("PATCH", path, {"status": fields["status"]}, content_type=MERGE_PATCH)
        await self.cluster.settle()


def play_on(scene: Any, *templates: str) -> None:
    async def prepare(cluster: Cluster) -> None:
        for template in templates:
            for node in gpu_nodes(template, 1):
                await cluster.send("POST", "/api/v1/nodes", node)

    async def run(cluster: Cluster) -> None:
        await scene(GpuCluster(cluster))
        assert cluster.differences == []

    play(run, prepare=prepare)


@pytest.mark.parametrize(
    ("fields", "limits", "words"),
    [
        (
            {"annotations": {"multisched.io/gpu-milli": "250"}},
            [{"aliyun.com/gpu-mem": 4}],
            "the pod requests GPUs in two ways, gpushare and multisched; write only one of them",
        ),
        (
            {"annotations": {"gpu-fraction": "0.5", "alibabacloud.com/gpu-milli": "500"}},
            [{}],
            "the pod requests GPUs in two ways, alibabacloud.com and kai; write only one of them",
        ),
        (
            {},
            [{GPU: 1, "nvidia.com/gpumem": 10, "volcano.sh/vgpu-number": 1}],
            "the pod requests GPUs in two ways, hami and volcano-vgpu; write only one of them",
        ),
        (
            {},
            [{"nvidia.com/gpumem": 4000}],
            "spec.containers[c0].resources.limits[nvidia.com/gpumem]: requires nvidia.com/gpu; write nvidia.com/gpu: 1",
        ),
        (
            {},
            [{"aliyun.com/gpu-mem": 4}, {"aliyun.com/gpu-mem": 4}],
            "resources.limits[aliyun.com/gpu-mem]: several containers request it",
        ),
        (
            {},
            [{GPU: 1, "aliyun.com/gpu-mem": 4}],
            "the pod requests GPUs in two ways, gpushare and whole-GPU; write only one of them",
        ),
        (
            {},
            [{"volcano.sh/vgpu-number": 1}, {"amd.com/gpu": 1}],
            "the pod requests GPUs in two ways, volcano-vgpu and whole-GPU; write only one of them",
        ),
        (
            {},
            [{"aliyun.com/gpu-mem": 4}, {"aliyun.com/gpu-core.percentage": 10}],
            "resources.limits[aliyun.com/gpu-core.percentage]: several containers request it",
        ),
        (
            {},
            [{"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 150}],
            "limits[volcano.sh/vgpu-memory-percentage]: 150 is more than 100; write a percentage of one card",
        ),
        (
            {"annotations": {"gpu-fraction-num-devices": "2"}},
            [{}],
            "annotation gpu-fraction-num-devices: requires gpu-fraction or gpu-memory; write how much of each card",
        ),
        (
            {"annotations": {"alibabacloud.com/gpu-card-model": "T4"}},
            [{}],
            "gpu-card-model: requires alibabacloud.com/gpu-milli or alibabacloud.com/gpu-count; write how much of each card",
        ),
        (
            {"annotations": {"alibabacloud.com/gpu-card-model": "T4"}},
            [{GPU: 1}],
            "annotation alibabacloud.com/gpu-card-model: the pod also requests whole nvidia.com/gpu; remove one of them",
        ),
        (
            {"annotations": {"multisched.io/gpu-milli": "1500"}},
            [{}],
            "annotation multisched.io/gpu-milli: '1500' is not an integer of 1..1000; write thousandths of one device",
        ),
    ],
)
def test_condition_names_field_and_fix(fields: dict[str, Any], limits: list[dict[str, Any]], words: str) -> None:
    async def scene(gpus: GpuCluster) -> None:
        await gpus.add("bad", *limits, **fields)
        assert await gpus.cluster.node_of("bad") == ""
        assert words in await gpus.condition("bad")

    play_on(scene, "hami", "gpushare", "whole", "volcano-vgpu")


@pytest.mark.parametrize(
    ("limits", "fix"),
    [
        ({GPU: 1, "nvidia.com/gpumem": 90_000}, "lower the nvidia.com/gpumem request from 90000 to 81920"),
        ({GPU: 9, "nvidia.com/gpumem": 100}, "lower the nvidia.com/gpu request from 9 to 8"),
    ],
)
def test_more_than_a_node_s_cards_have_is_refused_and_explain_names_the_fix(limits: dict[str, Any], fix: str) -> None:
    async def scene(gpus: GpuCluster) -> None:
        await gpus.add("large", limits)
        assert "1 Insufficient nvidia.com/gpumem" in await gpus.condition("large")
        explanations = ProgramExplanations(gpus.cluster.program, in_thread=at_once)
        view = await explanations.pod(ExplainQuery("default", "large", with_fixes=True))
        assert [one.text for one in view.fixes or ()] == [fix]

    play_on(scene, "hami")


def test_forged_annotations_of_a_pending_pod_are_ignored_and_reported() -> None:
    async def scene(gpus: GpuCluster) -> None:
        forged = {"hami.io/vgpu-node": "hami-000", "hami.io/bind-phase": "allocating", "multisched.io/gpu-devices": "7"}
        await gpus.add("forger", annotations={"multisched.io/gpu-milli": "250", **forged})
        assert await gpus.cluster.node_of("forger") == "whole-000"
        assert (await gpus.annotations("forger"))["multisched.io/gpu-devices"] == "0"
        [(name, note)] = await gpus.events("IgnoredKey")
        assert name == "forger"
        assert note == (
            "annotations hami.io/bind-phase, hami.io/vgpu-node, multisched.io/gpu-devices: ignored, because only a"
            " scheduler may write them, when it binds the pod; remove them"
        )

    play_on(scene, "whole")


KOORDINATORS = '{"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-memory-ratio": "50"}}]}'
FORGED = {
    "multisched.io/gpu-devices": "3",
    "multisched.io/gpu-allocated-milli": "7",
    "multisched.io/gpu-allocated-mib": "9",
    "alibabacloud.com/gpu-index": "3",
    "hami.io/vgpu-devices-allocated": "GPU-hami-000-0,NVIDIA,50000,60:;",
    "volcano.sh/vgpu-ids-new": "GPU-x,NVIDIA,1,1:",
    "volcano.sh/devices-to-allocate": "GPU-x,NVIDIA,1,1:",
    "volcano.sh/bind-phase": "allocating",
    "ALIYUN_COM_GPU_MEM_IDX": "5",
    "scheduling.koordinator.sh/device-allocated": KOORDINATORS,
}


@pytest.mark.parametrize(
    ("template", "limits", "notes", "labels"),
    [
        ("whole", {GPU: 1}, {}, {}),
        ("whole", {}, {"multisched.io/gpu-milli": "250"}, {}),
        ("whole", {}, {"gpu-memory": "2000"}, {}),
        ("whole", {}, {}, {}),
        ("openb", {}, {"alibabacloud.com/gpu-milli": "250"}, {}),
        ("shared", {GPU: 1}, {}, {}),
        ("hami", {GPU: 1, "nvidia.com/gpumem": 100}, {}, {}),
        ("volcano-vgpu", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 100}, {}, {}),
        ("gpushare", {"aliyun.com/gpu-mem": 4}, {}, {}),
        ("gpushare", {"aliyun.com/gpu-mem": 4}, {}, {"aliyun.com/gpu-count": "2"}),
    ],
    ids=["whole", "fraction", "MiB", "no GPU", "openb", "replica", "hami", "volcano", "gpushare", "two cards"],
)
def test_forged_annotations_say_nothing_after_a_restart(
    template: str, limits: dict[str, Any], notes: dict[str, str], labels: dict[str, str]
) -> None:
    """The binding empties what it does not write: admission policies may be missing, and plugins read the pod's annotations, too."""

    async def scene(gpus: GpuCluster) -> None:
        fields: dict[str, Any] = {"annotations": {**FORGED, **notes}, "labels": labels}
        await gpus.add("forger", limits, **fields)
        cache = gpus.cluster.program.cache
        (ledger,) = (one for one in cache.ledgers if isinstance(one, GpuLedger))
        fresh = ledger.empty_copy()
        for row, node in cache.nodes.live_rows():
            fresh.set_node(row, node)
        for entry in cache:
            pod = replace(entry.pod, annotations=await gpus.annotations(entry.pod.name))
            fresh.restore(pod, entry.row)
        assert fresh.held() == ledger.held()
        assert gpus.cluster.placed == {"forger": f"{template}-000"}

    play_on(scene, template)


@pytest.mark.parametrize(
    ("template", "answer", "limits"),
    [
        ("whole", {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1,1:;"}, {GPU: 8}),
        ("hami", {"hami.io/vgpu-devices-allocated": "GPU-hami-000-0,NVIDIA,1,1:;"}, {GPU: 8}),
        (
            "volcano-vgpu",
            {"volcano.sh/vgpu-ids-new": "GPU-volcano-vgpu-000-0,NVIDIA,1,1:"},
            {"volcano.sh/vgpu-number": 8},
        ),
    ],
)
def test_forged_cards_of_a_foreign_pod_that_requests_no_gpu_take_nothing(
    template: str, answer: dict[str, str], limits: dict[str, Any]
) -> None:
    """Without the admission policies, its author could write so; the kubelet asks no device plugin for such a pod."""

    async def scene(gpus: GpuCluster) -> None:
        await gpus.add("forger", {}, node=f"{template}-000", scheduler="other", annotations=answer)
        await gpus.add("ours", limits)
        assert await gpus.cluster.node_of("ours") == f"{template}-000"

    play_on(scene, template)


def test_unknown_card_index_is_reported_and_blocks_the_cards_of_its_node() -> None:
    """Another scheduler bound a pod with a card that the node does not have; which card it uses is unknown."""

    async def scene(gpus: GpuCluster) -> None:
        answer = {"ALIYUN_COM_GPU_MEM_IDX": "9", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
        fields: dict[str, Any] = {"scheduler": "other", "annotations": answer}
        await gpus.add("wrong", {"aliyun.com/gpu-mem": 60}, node="gpushare-000", **fields)
        await gpus.change_node("gpushare-000", metadata={"labels": {"seen": "again"}})
        [(node, note)] = await gpus.events("UnusableNodeData")
        assert node == "gpushare-000"
        assert note.startswith("status.allocatable[aliyun.com/gpu-count]: card 9 is held by pods and not published; ")
        await gpus.add("large", {"aliyun.com/gpu-mem": 40})
        assert "Insufficient aliyun.com/gpu-mem" in await gpus.condition("large")
        await gpus.add("small", {"aliyun.com/gpu-mem": 20})
        assert await gpus.cluster.node_of("small") == "gpushare-000"

    play_on(scene, "gpushare")


def test_two_foreign_pods_on_one_slice_are_reported_and_keep_it() -> None:
    async def scene(gpus: GpuCluster) -> None:
        text = "GPU-hami-000-0,NVIDIA,50000,60:;"
        answer = {"hami.io/vgpu-node": "hami-000", "hami.io/vgpu-devices-allocated": text}
        for name in ("first", "second"):
            fields: dict[str, Any] = {"scheduler": "other", "annotations": answer}
            await gpus.add(name, {GPU: 1, "nvidia.com/gpumem": 50_000}, node="hami-000", **fields)
        await gpus.change_node("hami-000", metadata={"labels": {"seen": "again"}})
        [(node, note)] = await gpus.events("UnusableNodeData")
        assert node == "hami-000"
        assert note == (
            "annotation hami.io/node-nvidia-register: pods hold more of card 0 than it has; the pods keep what they hold, and no"
            " other pod gets it. Restore the cards, or delete the pods"
        )
        await gpus.add("ours", {GPU: 8, "nvidia.com/gpumem": 100})
        assert "Insufficient nvidia.com/gpumem" in await gpus.condition("ours")
        assert await gpus.cluster.nodes_of_pods() == {"first": "hami-000", "second": "hami-000", "ours": ""}

    play_on(scene, "hami")


def test_cards_smaller_than_their_holds_are_reported_once_and_kept() -> None:
    async def scene(gpus: GpuCluster) -> None:
        for number in range(8):
            await gpus.add(f"whole-{number}", {GPU: 1}, status={"phase": "Running"})
        held = {name: (await gpus.annotations(name))["multisched.io/gpu-devices"] for name in gpus.cluster.placed}
        assert sorted(held.values()) == [str(number) for number in range(8)]
        await gpus.change_node("whole-000", status={"allocatable": {GPU: "6"}})
        [(node, note)] = await gpus.events("UnusableNodeData")
        assert node == "whole-000"
        assert note.startswith(
            "status.allocatable[nvidia.com/gpu]: card 6, 7 is held by pods and not published; the pods keep"
        )
        await gpus.add("more", {GPU: 1})
        assert "Insufficient nvidia.com/gpu" in await gpus.condition("more")
        await gpus.change_node("whole-000", status={"allocatable": {GPU: "8"}})
        assert held == {name: (await gpus.annotations(name))["multisched.io/gpu-devices"] for name in held}
        assert len(await gpus.events("UnusableNodeData")) == 1

    play_on(scene, "whole")


def test_fewer_mig_instances_than_pods_hold_are_reported() -> None:
    async def scene(gpus: GpuCluster) -> None:
        await gpus.add("first", {"nvidia.com/mig-1g.10gb": 10})
        await gpus.change_node("mig-000", status={"allocatable": {"nvidia.com/mig-1g.10gb": "5"}})
        [(node, note)] = await gpus.events("UnusableNodeData")
        assert node == "mig-000"
        assert note.startswith(
            "status.allocatable[nvidia.com/mig-1g.10gb]: pods hold 10, and 5 are published; the pods keep"
        )
        assert gpus.cluster.placed == {"first": "mig-000"}

    play_on(scene, "mig")


def test_unhealthy_gpushare_card_leaves_the_size_of_the_others_and_is_reported() -> None:
    """The device plugin reports its memory as unhealthy, so the kubelet takes it off the allocatable memory alone."""

    async def scene(gpus: GpuCluster) -> None:
        await gpus.add("first", {"aliyun.com/gpu-mem": 80}, status={"phase": "Running"})
        await gpus.change_node("gpushare-000", status={"allocatable": {"aliyun.com/gpu-mem": "560"}})
        [(node, note)] = await gpus.events("UnusableNodeData")
        assert node == "gpushare-000"
        assert note == (
            "status.allocatable[aliyun.com/gpu-mem]: 80 less than the 8 cards have: some are unhealthy, it is not published which;"
            " cordon the node until they are replaced"
        )
        await gpus.add("second", {"aliyun.com/gpu-mem": 79})
        assert gpus.cluster.placed == {"first": "gpushare-000", "second": "gpushare-000"}

    play_on(scene, "gpushare")


def test_truncated_register_annotation_keeps_the_last_cards_and_is_reported() -> None:
    async def scene(gpus: GpuCluster) -> None:
        await gpus.change_node("hami-000", metadata={"annotations": {"hami.io/node-nvidia-register": '[{"id": "GPU'}})
        [(node, note)] = await gpus.events("UnusableNodeData")
        assert node == "hami-000"
        assert note.startswith("annotation hami.io/node-nvidia-register: ")
        await gpus.add("ours", {GPU: 8, "nvidia.com/gpumem": 100})
        assert await gpus.cluster.node_of("ours") == "hami-000"

    play_on(scene, "hami")


def test_two_programs_that_describe_the_same_cards_are_reported() -> None:
    async def scene(gpus: GpuCluster) -> None:
        await gpus.change_node("gpushare-000", status={"allocatable": {GPU: "8"}})
        [(_, note)] = await gpus.events("UnusableNodeData")
        assert note.startswith(
            "gpushare and the vendor's device plugin describe the same cards; only those of gpushare count"
        )

    play_on(scene, "gpushare")
