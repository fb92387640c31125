"""GPU nodes: cards swing between inference and training, and free CPU works for jobs. The shipped example, with shorter times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from multisched.cluster.controllers.run import run_controllers
from multisched.testing.builders import Document, container, pod_document
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import PODS, open_gpu_cluster
from tests.integration.gpu.tide_cluster import DEPLOYMENTS, MIN_RUN_S, HookServer, TideCluster, gpu_node, well
from tests.integration.loans.test_loans import loans, on_node

EXAMPLE = Path(__file__).parents[3] / "config/examples/tide-and-loans.yaml"
NOTICE_S = 4.0
HEADROOM = 8
CPU = 100
REPLICAS = 12


def configuration() -> str:
    """The example with seconds in place of minutes."""
    document = yaml.safe_load(EXAMPLE.read_text())
    (tide,) = (one for one in document["domains"] if one["name"] == "gpu")
    tide["profile"]["plugins"]["enabled"][0]["args"] |= {
        "notice": f"{NOTICE_S:g}s",
        "grace": "1s",
        "minRunTime": f"{MIN_RUN_S:g}s",
        "growth": {"quiet": "5s", "ahead": f"{MIN_RUN_S:g}s"},
        "headroom": {"min": 0},
    }
    (job,) = (one for one in document["domains"] if one["name"] == "job")
    job["loans"][0]["return"] = {"notice": f"{NOTICE_S:g}s", "grace": "2s"}
    short = {
        "client": {"bindTimeout": "900ms"},
        "lease": {"duration": "2s", "renewDeadline": "1s", "retryPeriod": "200ms"},
    }
    return yaml.safe_dump(document | short)


def chat() -> Document:
    """Inference that needs half of a node's headroom for each of twelve cards."""
    resources = {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "1"}}
    labels = {"app": "chat", "tier": "serving"}
    pod = {"schedulerName": "gpu-scheduler", "containers": [{"name": "c", "image": "app:v1", "resources": resources}]}
    template = {"metadata": {"labels": labels}, "spec": pod | {"terminationGracePeriodSeconds": 1}}
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": {"app": "chat"}}, "template": template}
    return {"metadata": {"name": "chat"}, "spec": spec}


def test_cards_swing_by_the_tide_while_free_cpu_works_for_jobs() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        nodes = (gpu_node("a"), gpu_node("b"))
        async with open_gpu_cluster(loop, *nodes, configuration=configuration()) as inner:
            controllers = asyncio.create_task(run_controllers(inner.api, clock=inner.clock, rng=inner.rng))
            cluster = TideCluster(loop, inner, HookServer(well))
            try:
                await story(cluster)
            finally:
                controllers.cancel()
                await asyncio.gather(controllers, return_exceptions=True)

    async def story(cluster: TideCluster) -> None:
        inner = cluster.inner
        await cluster.train("train")
        await cluster.runs("train", 2)
        for number in range(200):
            spec = {"schedulerName": "job-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
            await inner.send("POST", PODS, pod_document(f"image-{number}", container("c", cpu="1"), **spec))  # type: ignore[arg-type]
        await asyncio.sleep(MIN_RUN_S)
        before = await on_node(inner, "image-")
        shown = await loans(inner)
        assert shown["loans"][0]["held"]["cpuMilli"] == 1000 * len(before)
        assert len(before) >= 2 * (CPU - HEADROOM) - 20

        await cluster.send(
            "POST", DEPLOYMENTS, chat()
        )  # the tide evicts the gang: its cards are there, but not the CPU
        await cluster.runs("chat", REPLICAS)
        assert await cluster.running("train") == []
        after = await on_node(inner, "image-")
        assert len(after) >= len(before) - 4 * REPLICAS
        shown = await loans(inner)
        assert shown["recalls"]["late"] == 0
        assert inner.differences() == []

        await cluster.scale("chat", 0)
        await cluster.runs("train", 2, 60.0)

    simulate(main(), loop)
