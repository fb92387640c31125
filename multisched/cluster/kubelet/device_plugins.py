"""The GPU device plugins of fake nodes: they allocate cards to the containers of admitted pods before the pods start.

As in a kubelet, a node admits one pod at a time, and calls Allocate for one container after the other. Waiting pods are chosen in
random order. Some plugins must guess the pod (`plugin_rules`), so the record of an allocation has two pods: the admitted one, and the
one whose cards it got. Owns these records. Called only by Kubelets.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from multisched.cluster.client.object_client import ObjectClient, RefusedError, WallClock
from multisched.cluster.controllers.reconcile_queue import RESOLUTION_S, ReconcileQueue
from multisched.cluster.kubelet.admission import KubeletPod, NodeAccount, Refusal
from multisched.cluster.kubelet.nodes import NodeKeeper
from multisched.cluster.kubelet.plugin_rules import (
    AllocateError,
    Pick,
    PluginPorts,
    PluginRule,
    Slice,
    asked_of,
    rule_of,
)
from multisched.model.wire import TransportError

NODES_AT_ONCE = 32
ALLOCATIONS_KEPT = 20_000
REJECTED = "UnexpectedAdmissionError"


@dataclass(slots=True)
class Allocation:
    """One Allocate call that succeeded."""

    node: str
    rule: str
    uid: str
    """The pod that the kubelet admitted."""
    container: str
    believed_uid: str
    """The pod that the plugin guessed."""
    slices: tuple[Slice, ...]
    began_s: float
    """Event loop time."""
    ended_s: float = math.inf
    """Event loop time at which the pod's containers ended."""


@dataclass(slots=True)
class _Admission:
    """The pod of one node that is being admitted."""

    pod: KubeletPod
    rule: PluginRule
    asked: deque[tuple[str, int]]
    """(container, number of devices) of each container for which Allocate has not answered yet."""
    rest_s: float = 0.0
    """Rest of the current Allocate's time, after the choice of a pod."""
    pick: Pick | None = None


@dataclass(slots=True)
class _NodePlugin:
    waiting: dict[str, tuple[KubeletPod, PluginRule]] = field(default_factory=dict)
    current: _Admission | None = None
    due_s: float = 0.0
    """Event loop time of the next step; new pods do not make it earlier."""


class DevicePlugins:
    """The plugins of all nodes. Each call of Allocate takes a time drawn uniformly from the range `delay_s`."""

    def __init__(
        self,
        client: ObjectClient,
        nodes: NodeKeeper,
        *,
        clock: WallClock,
        rng: random.Random,
        delay_s: tuple[float, float],
        on_allocated: Callable[[str, Refusal | None], None],
    ) -> None:
        """`on_allocated`: called with a pod's uid, and None if the pod has got its devices, else the reason of its rejection."""
        self.allocations: deque[Allocation] = deque(maxlen=ALLOCATIONS_KEPT)
        self._client = client
        self._nodes = nodes
        self._clock = clock
        self._rng = rng
        self._delay_s = delay_s
        self._on_allocated = on_allocated
        self._plugins: dict[str, _NodePlugin] = {}
        self._served: dict[str, list[Allocation]] = {}
        """Pod uid -> its allocations, once it has one or was rejected."""
        self._queue = ReconcileQueue("device plugins", self._advance, rng=rng, workers=NODES_AT_ONCE)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._queue.run()

    def takes(self, pod: KubeletPod, account: NodeAccount) -> bool:
        """Reports whether the pod must wait until a plugin calls `on_allocated`; queues a new pod for the plugin of its node."""
        uid, node = pod.metadata.uid, pod.spec.nodeName or ""
        plugin = self._plugins.get(node)
        if plugin is not None and plugin.current is not None and plugin.current.pod.metadata.uid == uid:
            return True
        is_new = pod.status.phase in ("", "Pending") and pod.metadata.deletionTimestamp is None
        rule = None if uid in self._served or not is_new else self._rule(node, account)
        if rule is None or not asked_of(pod, rule.resource):
            if plugin is not None:
                plugin.waiting.pop(uid, None)
            return False
        self._plugins.setdefault(node, _NodePlugin()).waiting[uid] = pod, rule
        self._queue.add(node)
        return True

    def admitting(self, node: str) -> str:
        """Returns the name of the pod that is being admitted on the node; empty if there is none."""
        plugin = self._plugins.get(node)
        return plugin.current.pod.metadata.name if plugin is not None and plugin.current is not None else ""

    def end(self, uid: str) -> None:
        """Records that the containers of a pod have ended."""
        for allocation in self._served.get(uid, ()):
            allocation.ended_s = min(allocation.ended_s, asyncio.get_running_loop().time())

    def forget(self, uid: str, node: str) -> None:
        """Handles a pod that no longer exists. The plugin is not notified, so an admission in progress continues."""
        self.end(uid)
        self._served.pop(uid, None)
        plugin = self._plugins.get(node)
        if plugin is not None:
            plugin.waiting.pop(uid, None)

    def _rule(self, node: str, account: NodeAccount) -> PluginRule | None:
        meta = self._nodes.meta(node)
        return None if meta is None else rule_of(meta, account.allocatable)

    async def _advance(self, node: str) -> float | None:
        """Does the next step of the node's plugin; returns the seconds until the following step."""
        plugin, loop = self._plugins[node], asyncio.get_running_loop()
        early_s = plugin.due_s - loop.time()
        if early_s > RESOLUTION_S:
            return early_s
        if plugin.current is None:
            if not plugin.waiting:
                return None
            pod, rule = plugin.waiting.pop(self._rng.choice(sorted(plugin.waiting)))
            plugin.current = _Admission(pod, rule, deque(asked_of(pod, rule.resource)))
            pause_s = self._delay(plugin.current)
        else:
            pause_s = await self._answer(node, plugin, plugin.current)
        plugin.due_s = loop.time() + pause_s
        return pause_s

    async def _answer(self, node: str, plugin: _NodePlugin, admission: _Admission) -> float:
        """Does the next step of an admission; an error of the plugin ends it. Returns the seconds until the next step."""
        try:
            return await self._serve(node, plugin, admission)
        except (AllocateError, RefusedError, TransportError) as error:
            message = f"Allocate failed due to rpc error: code = Unknown desc = {error}, which is unexpected"
            self._finish(plugin, admission, Refusal(REJECTED, message))
            return 0.0

    async def _serve(self, node: str, plugin: _NodePlugin, admission: _Admission) -> float:
        """Serves one container in two steps, with a pause between the choice of the pod and the answer."""
        ports = PluginPorts(self._client, node, self._clock.now())
        container, count = admission.asked[0]
        if admission.pick is None:
            admission.pick = await admission.rule.find(ports, count)
            return admission.rest_s
        pick, admission.pick = admission.pick, None
        await admission.rule.settle(ports, pick)
        uid = admission.pod.metadata.uid
        now_s = asyncio.get_running_loop().time()
        allocation = Allocation(node, admission.rule.name, uid, container, pick.uid, pick.slices, now_s)
        self.allocations.append(allocation)
        self._served.setdefault(uid, []).append(allocation)
        admission.asked.popleft()
        if admission.asked:
            return self._delay(admission)
        self._finish(plugin, admission, None)
        return 0.0

    def _finish(self, plugin: _NodePlugin, admission: _Admission, refusal: Refusal | None) -> None:
        uid = admission.pod.metadata.uid
        plugin.current = None
        self._served.setdefault(uid, [])
        self._on_allocated(uid, refusal)

    def _delay(self, admission: _Admission) -> float:
        """Draws the time of one Allocate; returns the part before the plugin chooses a pod."""
        delay_s = self._rng.uniform(*self._delay_s)
        before_s = delay_s * self._rng.random()
        admission.rest_s = delay_s - before_s
        return before_s
