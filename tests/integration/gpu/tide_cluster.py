"""A cluster in which inference and training share GPU nodes by the tide, in virtual time, with controllers and replicas of the program.

A recorder sees each write at the server: notices, evictions and hook calls, with their times. It judges from these alone: no eviction
without a notice of the configured length, no gang in part.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from domains.gpu.tide.gpu_tide import GpuTide
from multisched.cluster.controllers.run import run_controllers
from multisched.config import loading
from multisched.framework.ports import ExtenderError, ExtenderSettings
from multisched.framework.views import ViewQuery
from multisched.model.gang import ACK_MIN, ACK_NAME
from multisched.model.wire import MERGE_PATCH, ConnectFailedError
from multisched.shell.plugin_views import ProgramViews
from multisched.testing.builders import NOTHING, Document, node_document
from multisched.testing.sim_loop import SimLoop
from tests.integration.gpu.gpu_cluster import GpuCluster, open_gpu_cluster

T = TypeVar("T")
NOTICE = "multisched.io/tide-notice"
NOTICE_S, MIN_RUN_S = 4.0, 30.0
ANSWERS_MAX = 4096
SERVING: Mapping[str, Any] = {"selector": {"matchLabels": {"tier": "serving"}}}
JOBS, DEPLOYMENTS = "/apis/batch/v1/namespaces/default/jobs", "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def configuration(**args: Any) -> str:
    """Returns a configuration of the gpu domain with the tide: seconds in place of minutes."""
    tide = {
        "inference": SERVING,
        "notice": f"{NOTICE_S:g}s",
        "grace": "1s",
        "minRunTime": f"{MIN_RUN_S:g}s",
        "growth": {"quiet": "5s", "ahead": f"{MIN_RUN_S:g}s"},
        "headroom": {"min": 0},
        "hook": {"url": "https://hook.example/tide/notice", "timeout": "2s"},
        **args,
    }
    enabled = [{"name": "GpuTide", "args": {key: value for key, value in tide.items() if value is not None}}]
    domain = {"name": "gpu", "profile": {"plugins": {"enabled": enabled}}}
    return (
        "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
        f"domains: {orjson.dumps([domain]).decode()}\n"
        "client: {bindTimeout: 900ms}\nlease: {duration: 2s, renewDeadline: 1s, retryPeriod: 200ms}\n"
    )


def gpu_node(name: str, cards: int = 8, model: str = "A100") -> Document:
    labels = {"nvidia.com/gpu.product": model}
    return node_document(name, cpu=100, memory="1Ti", pods=100, extra={"nvidia.com/gpu": cards}, labels=labels)


@dataclass
class HookServer:
    """Stands for the hook's server: implements `ports.ExtenderClient`, since there is no network in virtual time."""

    answer: Callable[[], Awaitable[bytes]]
    calls: list[tuple[float, Document]] = field(default_factory=list)
    settings: ExtenderSettings = field(default_factory=lambda: ExtenderSettings(""))

    def open(self, settings: ExtenderSettings) -> HookServer:
        self.settings = settings
        return self

    async def post(self, verb: str, body: bytes, *, answer_bytes_max: int) -> bytes:
        assert (self.settings.url, verb) == ("https://hook.example/tide", "notice")
        assert answer_bytes_max <= ANSWERS_MAX
        self.calls.append((asyncio.get_running_loop().time(), orjson.loads(body)))
        return await self.answer()

    async def close(self) -> None:
        """Nothing is open."""


async def at_once(work: Callable[[], T]) -> T:
    return work()


async def well() -> bytes:
    return b""


async def hangs() -> bytes:
    await asyncio.sleep(2.0)  # the client's timeout
    raise ExtenderError("no answer within 2 s")


async def fails() -> bytes:
    raise ExtenderError("failed notice with extender at URL https://hook.example/tide/notice, code 500")


@dataclass
class Noticed:
    """What the server has seen of one pod."""

    name: str
    gang: str
    noticed_s: float | None = None
    """When the annotation that it has now was first written."""
    evicted_s: float | None = None
    had_notice_s: float = 0.0
    """How long it had its notice when it was evicted."""


class TideCluster:
    """A running cluster. Created by `open_tide_cluster`."""

    def __init__(self, loop: SimLoop, inner: GpuCluster, hook: HookServer) -> None:
        self.loop, self.inner, self.hook = loop, inner, hook
        self.send = inner.send
        self.seen: dict[str, Noticed] = {}
        """uid -> what was seen of the pod."""
        self.dies_at: tuple[str, str, int] | None = None
        """Two parts of a path, and the number of the request with both before which the leader dies."""
        self._requests = 0
        self.broken: list[str] = []

    @property
    def now_s(self) -> float:
        return self.loop.time()

    # -- what users do ---------------------------------------------------------------------------------------------------

    async def train(
        self, name: str, pods: int = 2, cards: int = 8, *, model: str = "", labels: Mapping[str, str] = NOTHING
    ) -> None:
        """A Job whose pods form a gang."""
        spec: Document = {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 100,
            "template": _template(cards, {ACK_NAME: name, ACK_MIN: str(pods), **labels}, model),
        }
        spec["template"]["spec"]["restartPolicy"] = "Never"
        spec["template"]["metadata"]["annotations"] = {"multisched.io/run-seconds": "100000"}
        await self.send("POST", JOBS, {"metadata": {"name": name}, "spec": spec})

    async def serve(
        self, name: str, replicas: int, cards: int = 1, *, model: str = "", priority: int | None = None
    ) -> None:
        """A Deployment of inference."""
        labels = {"app": name, "tier": "serving"}
        spec: Document = {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": _template(cards, labels, model),
        }
        if priority is not None:
            await self.send("POST", PRIORITIES, {"metadata": {"name": name}, "value": priority})
            spec["template"]["spec"]["priorityClassName"] = name
        await self.send("POST", DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec})

    async def scale(self, name: str, replicas: int) -> None:
        await self.send("PATCH", f"{DEPLOYMENTS}/{name}", {"spec": {"replicas": replicas}}, content_type=MERGE_PATCH)

    async def budget(self, name: str, least: int, **labels: str) -> None:
        spec = {"minAvailable": least, "selector": {"matchLabels": labels}}
        await self.send("POST", BUDGETS, {"metadata": {"name": name}, "spec": spec})

    def reload(self, **args: Any) -> None:
        """Changes the args of GpuTide in all replicas."""
        for replica in self.inner.replicas:
            replica.program.reload(loading.parse(configuration(**args), "test"))

    # -- what is there ---------------------------------------------------------------------------------------------------

    async def running(self, prefix: str) -> list[Document]:
        """Returns the running pods whose names begin so, without those being deleted."""
        pods = await self.inner.pods()
        return [
            pod
            for name, pod in pods.items()
            if name.startswith(prefix)
            and pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    async def runs(self, prefix: str, count: int, within_s: float = 60.0) -> float:
        """Waits until exactly `count` such pods run; returns the time."""

        async def holds() -> bool:
            return len(await self.running(prefix)) == count

        await self.inner.until(holds, within_s)
        return self.now_s

    async def messages(self, prefix: str) -> list[str]:
        """Returns the messages of the condition PodScheduled of pending pods whose names begin so."""
        return [
            condition.get("message", "")
            for name, pod in (await self.inner.pods()).items()
            if name.startswith(prefix)
            for condition in pod["status"].get("conditions", ())
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        ]

    async def events(self, reason: str) -> list[Document]:
        return [one for one in (await self.send("GET", EVENTS))["items"] if one["reason"] == reason]

    async def view(self) -> Document:
        """Returns the document of `multisched gpu tide`."""
        program = self.inner.replicas[0].program
        found: Document = orjson.loads(await ProgramViews(program, at_once).document("tide", ViewQuery("now")))
        return found

    @property
    def tide(self) -> GpuTide:
        plugins = self.inner.replicas[0].program.router.workers()[0].plugins.built
        return next(one.plugin for one in plugins if isinstance(one.plugin, GpuTide))

    def metric(self, name: str) -> Mapping[tuple[str, ...], float]:
        return next(one.values for one in self.tide.metrics(self.now_s) if one.name == name)

    def evicted(self, prefix: str) -> list[Noticed]:
        return [one for one in self.seen.values() if one.evicted_s is not None and one.name.startswith(prefix)]

    # -- judging ---------------------------------------------------------------------------------------------------------

    async def before_request(self, path: str) -> None:
        """Notes an eviction when it is sent. Kills the leader if it is to die now."""
        if self.dies_at is not None and self.dies_at[0] in path and self.dies_at[1] in path:
            self._requests += 1
            leader = self.inner.leader()
            if leader is not None and self._requests == self.dies_at[2]:
                leader.wire.is_cut, self.dies_at = True, None
                self.loop.create_task(self.inner.kill(leader))
                raise ConnectFailedError("the replica was killed")
        if "/eviction" not in path:
            return
        pod = (await self.inner.pods()).get(path.partition("?")[0].split("/")[-2])
        if pod is None:
            return
        one = self.seen.setdefault(pod["metadata"]["uid"], Noticed(pod["metadata"]["name"], _gang(pod)))
        assert one.evicted_s is None or "deletionTimestamp" not in pod["metadata"], f"{one.name} is evicted twice"
        one.evicted_s = self.now_s
        one.had_notice_s = 0.0 if one.noticed_s is None else self.now_s - one.noticed_s

    async def record(self) -> None:
        """Looks at the pods all the time and notes which have a notice."""
        while True:
            for name, pod in (await self.inner.pods()).items():
                one = self.seen.setdefault(pod["metadata"]["uid"], Noticed(name, _gang(pod)))
                is_leaving = "deletionTimestamp" in pod["metadata"]
                if is_leaving and one.evicted_s is None and name.startswith("train"):
                    self.broken.append(f"{name} was deleted and not evicted")
                has_notice = bool((pod["metadata"].get("annotations") or {}).get(NOTICE))
                if has_notice and one.noticed_s is None:
                    one.noticed_s = self.now_s
                elif not has_notice:
                    one.noticed_s = None
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """Checks that all evictions came after the whole notice."""
        assert self.broken == []
        for one in self.seen.values():
            if one.evicted_s is not None:
                assert one.had_notice_s >= NOTICE_S - 0.05, one


def _template(cards: int, labels: dict[str, str], model: str) -> Document:
    container = {"name": "main", "image": "app:v1", "resources": {"limits": {"nvidia.com/gpu": str(cards)}}}
    spec: Document = {
        "schedulerName": "gpu-scheduler",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    if model:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": model}
    return {"metadata": {"labels": labels}, "spec": spec}


def _gang(pod: Document) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ACK_NAME, ""))


@asynccontextmanager
async def open_tide_cluster(
    loop: SimLoop,
    *nodes: Document,
    replicas: int = 1,
    answer: Callable[[], Awaitable[bytes]] = well,
    seed: int = 0,
    **args: Any,
) -> AsyncIterator[TideCluster]:
    """Runs a cluster with these nodes until the block is left; judges it then. `args`: of GpuTide, changed; None: without it."""
    hook = HookServer(answer)
    opened = open_gpu_cluster(
        loop, *nodes, seed=seed, replicas=replicas, configuration=configuration(**args), open_extender=hook.open
    )
    async with opened as inner:
        cluster = TideCluster(loop, inner, hook)
        inner.before_request = cluster.before_request
        tasks = [
            asyncio.ensure_future(run_controllers(inner.api, clock=inner.clock, rng=random.Random(seed))),
            asyncio.ensure_future(cluster.record()),
        ]
        try:
            yield cluster
            cluster.check()
            assert inner.differences() == []
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
