"""Watches every pod of a cluster and keeps account, independently of any scheduler: who is where, and whether it fits.

`Witness` owns one watch, resumed by a new list when it breaks, and the sums per node. It sees binds in the order in which
they were stored, so a node that was too full for a moment only is seen too. The arithmetic shares no code with multisched,
nor does the judge that has the last word.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Final

import aiohttp
import anyio

from multisched.client.cluster_list import DEVICE, PATHS
from multisched.config import loading
from multisched.config.domains import judged_domains
from multisched.verify import judge
from tests.real.admin import NODES, RETRY_S, Admin, UnexpectedAnswerError

ALL_PODS: Final = "/api/v1/pods"
UNITS: Final = {"m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9)} | {
    f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGT", start=1)
}
ENDED: Final = ("Succeeded", "Failed")
GPU: Final = "nvidia.com/gpu"
GPU_MILLI: Final = "multisched.io/gpu-milli"
GPU_DEVICES: Final = "multisched.io/gpu-devices"
WHOLE_GPU_MILLI: Final = 1_000
Pod = Mapping[str, Any]


def quantity(text: str) -> Decimal:
    """`1`, `500m`, `4Gi` as a number."""
    digits = text.rstrip("".join(UNITS))
    return Decimal(digits) * UNITS.get(text[len(digits) :], Decimal(1))


def requests(pod: Pod) -> dict[str, Decimal]:
    """What a pod of plain containers takes from its node."""
    sums: dict[str, Decimal] = {"pods": Decimal(1)}
    for container in pod["spec"]["containers"]:
        for resource, amount in container.get("resources", {}).get("requests", {}).items():
            sums[resource] = sums.get(resource, Decimal(0)) + quantity(amount)
    return sums


class Witness:
    """Only `watching` makes one."""

    def __init__(self, admin: Admin, allocatable: Mapping[str, Mapping[str, Decimal]]) -> None:
        self._admin = admin
        self._allocatable = allocatable
        self._counted: dict[str, tuple[str, dict[str, Decimal]]] = {}
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._changed = asyncio.Event()
        self.pods: dict[str, Pod] = {}
        """By uid: the latest of those that exist."""
        self.node_of: dict[str, str] = {}
        """By uid, of every pod that was ever seen bound."""
        self.moved: list[str] = []
        """Pods that were seen on a second node."""
        self.overcommitted: list[str] = []
        """One sentence per moment at which a node held more than it has."""

    @classmethod
    @asynccontextmanager
    async def watching(cls, admin: Admin) -> AsyncIterator[Witness]:
        """Watches until the block ends; then every pod must be where it may be, says the judge of `multisched verify`.

        Nodes are read once: they must be there, and stay.
        """
        allocatable = {
            node["metadata"]["name"]: {name: quantity(text) for name, text in node["status"]["allocatable"].items()}
            for node in await admin.items(NODES)
        }
        witness = cls(admin, allocatable)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(witness._run)
            yield witness
            tasks.cancel_scope.cancel()
        assert await against_rules(admin) == []

    @property
    def bound(self) -> int:
        """Pods that were ever seen bound."""
        return len(self.node_of)

    async def wait(self, holds: Callable[[], bool], limit_s: float) -> None:
        """Until it holds, looked at after every change; TimeoutError with what is missing after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"not within {limit_s} s; {self}") from None

    def __str__(self) -> str:
        phases = Counter(f"{pod['spec']['schedulerName']} {pod['status']['phase']}" for pod in self.pods.values())
        return f"{self.bound} pods were bound; now there are {dict(phases)}"

    async def _run(self) -> None:
        while True:
            try:
                pods, version = await self._admin.listing(ALL_PODS)
            except (aiohttp.ClientError, TimeoutError, UnexpectedAnswerError):
                await anyio.sleep(RETRY_S)
                continue
            self._replace(pods)
            async for event in self._admin.watch(ALL_PODS, version):
                if event["type"] == "ERROR":
                    break
                self._apply(event["object"], is_there=event["type"] != "DELETED")

    def _replace(self, pods: Iterable[Pod]) -> None:
        listed = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid in self.pods.keys() - listed.keys():
            self._apply(self.pods[uid], is_there=False)
        for pod in listed.values():
            self._apply(pod, is_there=True)

    def _apply(self, pod: Pod, *, is_there: bool) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if node and self.node_of.setdefault(uid, node) != node:
            self.moved.append(pod["metadata"]["name"])
        if is_there:
            self.pods[uid] = pod
        else:
            self.pods.pop(uid, None)
        self._account(uid, pod, holds=is_there and bool(node) and pod["status"]["phase"] not in ENDED)
        self._changed.set()

    def _account(self, uid: str, pod: Pod, *, holds: bool) -> None:
        if holds == (uid in self._counted):
            return
        if not holds:
            node, amounts = self._counted.pop(uid)
            self._used[node].subtract(amounts)
            return
        node, amounts = pod["spec"]["nodeName"], requests(pod)
        self._counted[uid] = (node, amounts)
        self._used[node].update(amounts)
        has = self._allocatable.get(node, {})
        for resource, used in self._used[node].items():
            if used > has.get(resource, 0):
                self.overcommitted.append(f"{node}: {resource} {used} of {has.get(resource, 0)}")


async def against_rules(admin: Admin) -> list[str]:
    """Pods that stand against a required rule."""
    objects = [(kind, item) for kind, path in PATHS.items() if kind != DEVICE for item in await admin.items(path)]
    found = judge(objects, domains=judged_domains(loading.default()))
    return [f"{one.pod} on {one.node}, {one.rule}: {one.message}" for one in found if one.is_sure]


def device_overlaps(pods: Iterable[Pod], devices_per_node: Mapping[str, int]) -> list[str]:
    """Bound GPU pods whose annotated devices are missing, are not there, or are shared beyond what a device has."""
    taken: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    for pod in pods:
        annotations, node = pod["metadata"].get("annotations", {}), pod["spec"].get("nodeName", "")
        whole, milli = int(requests(pod).get(GPU, 0)), int(annotations.get(GPU_MILLI, 0))
        if not node or not (whole or milli):
            continue
        devices = [int(index) for index in annotations.get(GPU_DEVICES, "").split(",") if index]
        if len(set(devices)) != max(whole, 1) or not set(devices) <= set(range(devices_per_node[node])):
            wrong.append(f"{pod['metadata']['name']} on {node}: {devices}")
        taken.update({(node, device): milli or WHOLE_GPU_MILLI for device in devices})
    return wrong + [
        f"{node}, device {index}: {milli}" for (node, index), milli in taken.items() if milli > WHOLE_GPU_MILLI
    ]
