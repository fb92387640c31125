"""The load of `slices_bench`: short pods of a borrower, waves of pods of a lender, and what kubelets would do with them.

Pods are removed by API requests when their time is over, or when they are being deleted. Drawn from a seed.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from tests.real.admin import PODS, RETRY_S, Admin, UnexpectedAnswerError
from tests.real.slice_judge import SliceJudge

LENDER: Final = "gpu"
BORROWER: Final = "job"
NODE_CPU: Final = 16
NODE_PODS: Final = 60

JOB_CPUS: Final = ("250m", "250m", "500m", "1")
SPREAD: Final = (0.4, 1.6)
"""Of the time that a pod of the borrower runs, around its mean."""
JOB_MEMORY: Final = ("256Mi", "1Gi")
WAVE_CPUS: Final = ("500m", "1", "3", "6")
WAVE_S: Final = (10.0, 25.0)
WAVE_SHARE: Final = (0.1, 0.3)
"""Of all cores: what one wave requests."""
WAITED_MAX_S: Final = 60.0
"""A pod of a wave that was not bound for so long is removed."""
ENDS_IN_S: Final = (0.2, 2.0)
"""What a pod takes to end that is being deleted."""
SUCCEEDS: Final = 0.1
"""Share of pods that end by their status, and are removed later."""
TURN_S: Final = 0.25
AT_ONCE: Final = 24
MERGE_PATCH: Final = "application/merge-patch+json"
Document = Mapping[str, Any]


def node(number: int) -> dict[str, Any]:
    """Returns a node of the lender."""
    name = f"node-{number:03d}"
    amounts = {"cpu": str(NODE_CPU), "memory": "64Gi", "pods": str(NODE_PODS), "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(domain: str, number: int, cpu: str, memory: str) -> dict[str, Any]:
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{domain}-{number:06d}"},
        "spec": {
            "schedulerName": f"{domain}-scheduler",
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
        },
    }


class Load:
    """Runs while its task runs."""

    def __init__(
        self, admin: Admin, judge: SliceJudge, *, nodes: int, backlog: int, wave_s: float, pod_s: float, seed: int
    ) -> None:
        """`backlog`: pods of the borrower that wait. `wave_s`: mean time between two waves. `pod_s`: mean time that its pods run."""
        self._admin = admin
        self._judge = judge
        self._cores = nodes * NODE_CPU
        self._backlog = backlog
        self._wave_s = wave_s
        self._pod_s = pod_s
        self._rng = random.Random(seed)
        self._due: list[tuple[float, int, str, str]] = []
        """(when, number, what, name) of the next step of each pod, as a heap."""
        self._steps = 0
        self._known: dict[str, str] = {}
        """uid -> the last state for which a step was planned."""
        self.waiting: set[str] = set()
        """uids of pods of the borrower that wait."""
        self._numbers: Counter[str] = Counter()
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.is_calm = False
        """No more waves and no new pods of the borrower."""
        judge.listeners.append(self._on_pod)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._waves(tasks))
            while True:
                if not self.is_calm:
                    missing = self._backlog - len(self.waiting) - (self._numbers["asked"] - self._numbers["seen"])
                    for _ in range(max(0, missing)):
                        self._numbers["asked"] += 1
                        cpu, memory = self._rng.choice(JOB_CPUS), self._rng.choice(JOB_MEMORY)
                        tasks.create_task(self._create(BORROWER, cpu, memory))
                now_s = asyncio.get_running_loop().time()
                while self._due and self._due[0][0] <= now_s:
                    _, _, what, name = heapq.heappop(self._due)
                    tasks.create_task(self._carry_out(what, name))
                await asyncio.sleep(TURN_S)

    async def _waves(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.6, 1.4) * self._wave_s)
            left = 0.0 if self.is_calm else self._rng.uniform(*WAVE_SHARE) * self._cores
            while left > 0:
                cpu = self._rng.choice(WAVE_CPUS)
                left -= float(cpu.removesuffix("m")) / (1000 if cpu.endswith("m") else 1)
                tasks.create_task(self._create(LENDER, cpu, "1Gi"))

    async def _create(self, domain: str, cpu: str, memory: str) -> None:
        self._numbers[domain] += 1
        document = pod(domain, self._numbers[domain], cpu, memory)
        async with self._gate:
            await self._admin.create(document)

    def _on_pod(self, kind: str, found: Document) -> None:
        """Plans what happens to a pod next."""
        metadata, is_bound = found["metadata"], bool(found["spec"].get("nodeName"))
        uid, name = metadata["uid"], metadata["name"]
        domain = name.partition("-")[0]
        if kind == "DELETED":
            self.waiting.discard(uid)
            self._known.pop(uid, None)
            return
        state = "deleting" if metadata.get("deletionTimestamp") else "bound" if is_bound else "waiting"
        if self._known.get(uid) == state:
            return
        self._known[uid] = state
        if domain == BORROWER:
            self._numbers["seen"] += state == "waiting"
            (self.waiting.add if state == "waiting" else self.waiting.discard)(uid)
        if state == "waiting" and domain == LENDER:
            self._plan(WAITED_MAX_S, "remove if waiting", name)
        elif state == "bound":
            what = "succeed" if self._rng.random() < SUCCEEDS else "remove"
            runs_s = self._rng.uniform(*WAVE_S) if domain == LENDER else self._pod_s * self._rng.uniform(*SPREAD)
            self._plan(runs_s, what, name)
        elif state == "deleting":
            self._plan(self._rng.uniform(*ENDS_IN_S), "remove", name)

    def _plan(self, in_s: float, what: str, name: str) -> None:
        self._steps += 1
        heapq.heappush(self._due, (asyncio.get_running_loop().time() + in_s, self._steps, what, name))

    async def _carry_out(self, what: str, name: str) -> None:
        async with self._gate:
            if what == "succeed":
                body = {"status": {"phase": "Succeeded"}}
                await self._tried("PATCH", f"{PODS}/{name}/status", body, MERGE_PATCH)
                self._plan(self._rng.uniform(*ENDS_IN_S), "remove", name)
                return
            if what == "remove if waiting" and self._is_bound(name):
                return
            await self._tried("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0}, "")

    def _is_bound(self, name: str) -> bool:
        found = (one for one in self._judge.pods.values() if one["metadata"]["name"] == name)
        return any(one["spec"].get("nodeName") for one in found)

    async def _tried(self, method: str, path: str, body: Document, content_type: str) -> None:
        """Sends a request until it is answered; the pod may be gone by then."""
        while True:
            try:
                await self._admin.request(method, path, body, content_type)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(RETRY_S)
                continue
            except UnexpectedAnswerError as error:
                if ": 404" not in str(error):
                    raise
            return
