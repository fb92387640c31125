"""All clients of nodes with shared GPUs: users, kubelets with device plugins, node agents, and another scheduler.

Owns these nodes and their pods. The kubelets are those of the embedded cluster: each plugin guesses the pod that it serves.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cluster.client.object_client import WallClock
from multisched.cluster.gpu_nodes import gpu_nodes
from multisched.cluster.kubelet.kubelets import Kubelets
from multisched.cluster.kubelet.plugin_rules import HAMI_LOCK
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from multisched.model.objects import Pod
from multisched.model.wire import JSON, MERGE_PATCH, Response
from tests.kit.wire.faults import CARDED
from tests.kit.world.api_user import NAMESPACE, ApiUser, pods_path
from tests.kit.world.card_contests import COMES_S, CardGang, drawn_gangs, make_urgent
from tests.kit.world.definitions import POD_GROUP
from tests.kit.world.gang_plans import group_manifest
from tests.kit.world.gpu_nodes import (
    DEVICE_GROUP,
    DEVICE_VERSION,
    HAMI,
    KOORDINATOR,
    REGISTERS,
    CardNode,
    drawn_nodes,
)
from tests.kit.world.gpu_pods import CardDemand, drawn_demand, manifest
from tests.kit.world.labels import CARDS
from tests.kit.world.pod_manifests import small_spec
from tests.kit.world.store_view import StoreView

BURSTS: Final = (14, 20)
BURST_MAX: Final = 5
BETWEEN_S: Final = (0.3, 3.0)
DELETED: Final = 0.25
"""Share of pods that their users delete, gracefully, within `DELETED_S`."""
DELETED_S: Final = 9.0
PLUGIN_S: Final = ((0.0, 0.0), (0.0, 1.0), (0.5, 2.0))
"""Duration of an allocation by a device plugin, one range per run."""
FOREIGN: Final = "foreign-carded"
"""A pending pod of another scheduler, for which that scheduler locks nodes."""
LOCKED_S: Final = (0.1, 2.5)
LOCK_EVERY_S: Final = (1.0, 4.0)
CHANGES: Final = (2, 4)
CHANGED_S: Final = (0.5, 5.0)


class RetryingTransport(DirectTransport):
    """A client that repeats requests while the server is away: a device plugin that fails would fail its pod."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        while True:
            answer = await super().request(method, path, body=body, content_type=content_type, accept=accept)
            if answer.status != 503:
                return answer
            await asyncio.sleep(0.5)


class SharedGpuActors:
    """The shared GPUs of one run."""

    def __init__(
        self,
        server: ApiServer,
        user: ApiUser,
        objects: StoreView,
        clock: WallClock,
        seed: int,
        *,
        is_contested: bool = False,
    ) -> None:
        """`is_contested`: there are urgent pods, and gangs; PodGroups must be installed then."""
        self._user, self._objects, self._clock = user, objects, clock
        self._rng = random.Random(f"{seed}/cards")
        self.nodes: Mapping[str, CardNode] = {one.name: one for one in drawn_nodes(self._rng)}
        self.demands: dict[str, CardDemand] = {}
        """Name of each pod created so far -> its demand."""
        self.stolen: list[str] = []
        """Locks of the other scheduler that were removed or overwritten while it used them."""
        self.kubelets = Kubelets(
            RetryingTransport(server),
            clock=clock,
            rng=random.Random(f"{seed}/card kubelets"),
            stages=builtin_stages("general"),
            node_selector=CARDS,
            lease_interval_s=0.0,
            status_interval_s=0.0,
            plugin_delay_s=self._rng.choice(PLUGIN_S),
        )
        self._contests = random.Random(f"{seed}/contested cards") if is_contested else None
        self.gangs: Mapping[str, CardGang] = (
            {} if self._contests is None else {one.plan.name: one for one in drawn_gangs(self._contests)}
        )
        """Gangs by name; their members are named `NAME-NUMBER`, with the prefix of all these pods."""
        self._numbers = itertools.count(1)
        self._under_way: set[asyncio.Task[None]] = set()

    async def build(self) -> None:
        for document in gpu_nodes(KOORDINATOR, 1):
            if document["kind"] == "CustomResourceDefinition":
                await self._post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
        for node in self.nodes.values():
            if node.mode == KOORDINATOR:
                await self._post(f"/apis/{DEVICE_GROUP}/{DEVICE_VERSION}/devices", node.device())
            await self._post("/api/v1/nodes", node.manifest())
        foreign = {"metadata": {"name": FOREIGN, "labels": {CARDS: ""}}, "spec": small_spec("hami-scheduler", "1m")}
        await self._post(pods_path(NAMESPACE), foreign)

    async def run(self, struck: Counter[str]) -> None:
        """Creates and deletes pods while cards change and nodes are locked. Returns when all pods are created and all changes are
        reverted.
        """
        tasks = [asyncio.ensure_future(one(struck)) for one in (self._lock_nodes, self._change_cards)]
        forming = None if self._contests is None else asyncio.ensure_future(self._form_gangs(struck, self._contests))
        try:
            await self._arrive(struck)
            if forming is not None:
                await forming
        finally:
            if forming is not None:
                forming.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                task.result()
        await asyncio.gather(*self._under_way)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    def pods(self) -> list[Pod]:
        """Returns the existing pods, in order of their names."""
        return [pod for pod in self._objects.pods().values() if CARDS in pod.labels]

    # -- users ---------------------------------------------------------------------------------------------------------

    async def _arrive(self, struck: Counter[str]) -> None:
        for _ in range(self._rng.randint(*BURSTS)):
            for _ in range(self._rng.randint(1, BURST_MAX)):
                name, demand = f"{CARDED}{next(self._numbers)}", drawn_demand(self._rng)
                self.demands[name], pod = demand, manifest(name, demand, self._rng)
                if self._contests is not None:
                    make_urgent(pod, self._contests)
                await self._user.create_pod(pod)
                struck[f"{demand.mode} pod"] += 1
                if self._rng.random() < DELETED:
                    self._delete_later([name], self._rng.uniform(0.0, DELETED_S))
            await asyncio.sleep(self._rng.uniform(*BETWEEN_S))

    async def _form_gangs(self, struck: Counter[str], rng: random.Random) -> None:
        """Creates the gangs one after the other."""
        for gang in self.gangs.values():
            await asyncio.sleep(rng.uniform(*COMES_S))
            if gang.plan.has_group:
                await self._post(POD_GROUP.path(NAMESPACE), group_manifest(gang.plan))
            names = [f"{gang.plan.name}-{number}" for number in range(gang.plan.size)]
            for name, demand in zip(names, gang.demands, strict=True):
                self.demands[name] = demand
                await self._user.create_pod(gang.member(name, demand, rng))
            struck[f"{gang.demands[0].mode} gang"] += 1
            if gang.leaves_s is not None:
                self._delete_later(names, gang.leaves_s)

    def _delete_later(self, names: Sequence[str], after_s: float) -> None:
        task = asyncio.ensure_future(self._delete(names, after_s))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _delete(self, names: Sequence[str], after_s: float) -> None:
        """Deletes pods as users do: the kubelet ends and then removes them."""
        await asyncio.sleep(after_s)
        for name in names:
            await self._user.send("DELETE", f"{pods_path(NAMESPACE)}/{name}")

    # -- agents of nodes -----------------------------------------------------------------------------------------------

    async def _change_cards(self, struck: Counter[str]) -> None:
        """Makes cards missing, unhealthy or malformed in the register annotation, for some seconds."""
        registered = [node for node in self.nodes.values() if node.mode in REGISTERS]
        for _ in range(self._rng.randint(*CHANGES)):
            await asyncio.sleep(self._rng.uniform(*CHANGED_S))
            node, what = self._rng.choice(registered), self._rng.choice(("vanished", "sick", "garbled"))
            some = self._rng.sample(sorted(node.cards), self._rng.randint(1, len(node.cards) - 1))
            told = node.annotations(without=some) if what == "vanished" else node.annotations(sick=some)
            if what == "garbled":
                told = {key: self._rng.choice((text[: len(text) // 2], "[1, 2", "")) for key, text in told.items()}
            try:
                await self._annotate(node.name, told)
                struck[f"cards {what}"] += 1
                await asyncio.sleep(self._rng.uniform(*CHANGED_S))
            finally:
                await self._annotate(node.name, node.annotations())

    # -- another scheduler ---------------------------------------------------------------------------------------------

    async def _lock_nodes(self, struck: Counter[str]) -> None:
        """Locks nodes for a pod of the other scheduler, and leaves abandoned locks."""
        names = [node.name for node in self.nodes.values() if node.mode == HAMI]
        while True:
            await asyncio.sleep(self._rng.uniform(*LOCK_EVERY_S))
            name, now = self._rng.choice(names), self._clock.now()
            texts = {
                "fresh": f"{now:%Y-%m-%dT%H:%M:%SZ},{NAMESPACE},{FOREIGN}",
                "expired": f"{now - timedelta(minutes=6):%Y-%m-%dT%H:%M:%SZ},{NAMESPACE},{FOREIGN}",
                "vanished": f"{now:%Y-%m-%dT%H:%M:%SZ},{NAMESPACE},nobody",
                "malformed": self._rng.choice(("yesterday", f"{now:%Y-%m-%dT%H:%M:%SZ},{NAMESPACE}", "x" * 2000, ",,")),
            }
            kind = self._rng.choice((*texts, "fresh"))
            if not await self._swap_lock(name, "", texts[kind]):
                continue
            struck[f"foreign lock {kind}"] += 1
            if kind != "fresh":
                continue
            try:
                await asyncio.sleep(self._rng.uniform(*LOCKED_S))
            finally:
                if not await self._swap_lock(name, texts[kind], ""):
                    self.stolen.append(f"{name}: {texts[kind]}")

    async def _swap_lock(self, name: str, before: str, text: str) -> bool:
        """Sets the node's lock if it is `before`. Returns False if it is not."""
        while True:
            answer = await self._user.send("GET", f"/api/v1/nodes/{name}")
            if answer.status != 200:
                return False
            meta = orjson.loads(answer.body)["metadata"]
            if (meta.get("annotations") or {}).get(HAMI_LOCK, "") != before:
                return False
            body = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": {HAMI_LOCK: text or None}}}
            written = await self._user.send("PATCH", f"/api/v1/nodes/{name}", body, MERGE_PATCH)
            if written.status != 409:
                return written.status == 200

    async def _annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        await self._user.send("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}}, MERGE_PATCH)

    async def _post(self, path: str, document: Mapping[str, Any]) -> None:
        answer = await self._user.send("POST", path, document)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)
