"""Fake kubelets: one object that acts as the kubelets of all fake nodes of a cluster.

Owns the next action of each bound pod and each node, and the admitted pods of each node. Keeps nodes Ready, renews their Leases, plays
the configured stages of pods, and removes deleted pods within their grace period. To detect overcommit, it fails and counts pods that do
not fit their node (for example with `OutOfcpu`). It uses any API server through a Transport. Called by the embedded cluster and by
`multisched kubelets`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from multisched.cluster.client.object_client import EVENTS, PODS, Answer, Document, ObjectClient, WallClock
from multisched.cluster.client.object_watch import ObjectWatch
from multisched.cluster.controllers.reconcile_queue import RESOLUTION_S, ReconcileQueue
from multisched.cluster.kubelet.admission import TERMINAL, KubeletPod, NodeAccount, Refusal, pod_requests
from multisched.cluster.kubelet.device_plugins import DevicePlugins
from multisched.cluster.kubelet.nodes import NodeKeeper
from multisched.cluster.kubelet.stages import Meta, Stage, StagedObject, StageEvent, StageSet, choose
from multisched.cluster.kubelet.status import played_status, rejected_status
from multisched.cluster.kubelet.virtual_kubelets import VirtualKubelets
from multisched.model.api_time import timestamp
from multisched.model.wire import STRATEGIC_MERGE_PATCH, Transport

logger = logging.getLogger(__name__)

POD_WRITES_AT_ONCE = 32
_POD_IPS = 2**22
_RETRIED = (401, 429)

_POD = msgspec.json.Decoder(KubeletPod)


class _Version(msgspec.Struct):
    resourceVersion: str = ""


class _Written(msgspec.Struct):
    metadata: _Version


_WRITTEN = msgspec.json.Decoder(_Written)


@dataclass(frozen=True, slots=True)
class KubeletStatistics:
    """Counts since the start; `nodes`, `pods` and `overcommitted` are current values."""

    nodes: int
    pods: int
    started: int
    succeeded: int
    failed: int
    deleted: int
    rejected: dict[str, int]
    """Pods that did not fit their node, by reason; not empty if a scheduler overcommitted a node."""
    overcommitted: int
    """Nodes whose admitted pods request more than allocatable."""
    refused_writes: int
    lease_renewals: int
    relists: int


@dataclass(slots=True)
class _PodRun:
    """One bound pod and its next action."""

    pod: KubeletPod | None
    """None if no action is planned."""
    node: str
    matching: tuple[Stage, ...] = ()
    stage: Stage | None = None
    refusal: Refusal | None = None
    rejection: Refusal | None = None
    """Set if a device plugin rejected the pod; final."""
    due_s: float = 0.0
    written_version: int = 0
    """The resource version of the kubelet's last write to the pod; older watch events are ignored."""


@dataclass(slots=True)
class _Counts:
    played: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    refused_writes: int = 0


class Kubelets:
    """The kubelets of all nodes that `node_selector` matches (a label selector; empty: all nodes)."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: WallClock,
        rng: random.Random,
        stages: StageSet,
        node_selector: str = "",
        lease_interval_s: float = 10.0,
        status_interval_s: float = 300.0,
        plugin_delay_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """An interval of 0 disables that heartbeat. `plugin_delay_s`: minimum and maximum time of one Allocate of a GPU device plugin."""
        self._client = ObjectClient(transport)
        self._clock = clock
        self._rng = rng
        self._stages = stages
        self._runs: dict[str, _PodRun] = {}
        self._unplaced: dict[str, set[str]] = {}
        self._counts = _Counts()
        self._next_ip = 0
        self._nodes = NodeKeeper(
            self._client,
            clock=clock,
            rng=rng,
            stages=stages,
            node_selector=node_selector,
            lease_interval_s=lease_interval_s,
            status_interval_s=status_interval_s,
            on_node=self._take_node,
        )
        self.plugins = DevicePlugins(
            self._client, self._nodes, clock=clock, rng=rng, delay_s=plugin_delay_s, on_allocated=self._resume
        )
        self.virtual = VirtualKubelets(self._client, clock, rng, on_started=self._resume)
        self._queue = ReconcileQueue("kubelet pods", self._advance, rng=rng, workers=POD_WRITES_AT_ONCE)
        self._watch = ObjectWatch(self._client, PODS.path(), self, rng=rng, query={"fieldSelector": "spec.nodeName!="})

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="kubelet nodes")
            group.create_task(self._watch_pods(), name="kubelet pod watch")
            group.create_task(self._queue.run(), name="kubelet pods")
            group.create_task(self.plugins.run(), name="kubelet device plugins")
            group.create_task(self.virtual.run(), name="virtual kubelets")

    async def wait_synced(self) -> None:
        """Waits until the first lists of nodes and pods have been read."""
        await self._nodes.synced.wait()
        await self._watch.synced.wait()

    def statistics(self) -> KubeletStatistics:
        counts, accounts = self._counts, self._nodes.accounts
        return KubeletStatistics(
            nodes=len(accounts),
            pods=len(self._runs),
            started=counts.played["Running"],
            succeeded=counts.played["Succeeded"],
            failed=counts.played["Failed"],
            deleted=counts.played["delete"] + self.virtual.deleted,
            rejected=dict(counts.rejected),
            overcommitted=len([account for account in accounts.values() if account.overcommitted()]),
            refused_writes=counts.refused_writes + self._nodes.refused_writes,
            lease_renewals=self._nodes.lease_renewals,
            relists=self._watch.statistics.relists,
        )

    def validate_state(self) -> None:
        """Asserts that every account is consistent and counts only known pods."""
        for account in self._nodes.accounts.values():
            account.validate_state()
            assert account.pods.keys() <= self._runs.keys()

    async def _watch_pods(self) -> None:
        await self._nodes.synced.wait()  # the admission of pods needs their nodes
        await self._watch.run()

    # --- watch events --------------------------------------------------------------------------------------------

    def replace(self, items: list[msgspec.Raw]) -> None:
        """Processes ended pods first, then running ones, so that no pod is rejected because of a pod that has ended."""
        pods = [_POD.decode(item) for item in items]
        present = {pod.metadata.uid for pod in pods}
        for uid in [uid for uid in self._runs if uid not in present]:
            self._forget(uid)
        for pod in sorted(pods, key=_room_first):
            self._take(pod)

    def put(self, item: msgspec.Raw) -> None:
        self._take(_POD.decode(item))

    def remove(self, item: msgspec.Raw) -> None:
        self._forget(_POD.decode(item).metadata.uid)

    def _take_node(self, node: Meta, is_new: bool) -> None:
        """Reads a node's settings; processes the pods that were bound to a node before it was known."""
        self.virtual.configure(node)
        for uid in self._unplaced.pop(node.name, ()) if is_new else ():
            run = self._runs.get(uid)
            if run is not None and run.pod is not None:
                self._take(run.pod)

    def _take(self, pod: KubeletPod) -> None:
        uid, node = pod.metadata.uid, pod.spec.nodeName or ""
        run = self._runs.get(uid)
        if run is None:
            run = self._runs[uid] = _PodRun(pod, node)
        account = self._nodes.account(node)
        if account is None:
            run.pod = pod
            self._unplaced.setdefault(node, set()).add(uid)
            return
        if self.virtual.serves(node):
            account.release(uid)
            is_held = self.virtual.holds(pod)
        else:
            self._count(account, run, pod)
            is_held = run.refusal is None and self.plugins.takes(pod, account)
        if is_held:
            run.pod, run.stage, run.matching = pod, None, ()
        elif _as_number(pod.metadata.resourceVersion) >= run.written_version:
            self._plan(run, pod)

    def _resume(self, uid: str, refusal: Refusal | None = None) -> None:
        """Plans the next stage of a pod after its device plugin has answered or its sandbox has started."""
        run = self._runs.get(uid)
        if run is None or run.pod is None:
            return
        run.refusal = run.rejection = refusal
        self._plan(run, run.pod)

    def _count(self, account: NodeAccount, run: _PodRun, pod: KubeletPod) -> None:
        uid = pod.metadata.uid
        run.refusal = None
        if pod.is_terminal:
            account.release(uid)
            self.plugins.end(uid)
            return
        requests = pod_requests(pod)
        if uid in account.pods:
            if account.pods[uid] != requests:  # resized in place
                account.admit(uid, requests)
            run.refusal = run.rejection
            return
        is_new = pod.status.phase in ("", "Pending")
        if is_new and pod.metadata.deletionTimestamp is not None:
            return
        refusal = account.refusal(requests) if is_new else None
        if refusal is None:
            account.admit(uid, requests)
        else:
            run.refusal = refusal

    def _plan(self, run: _PodRun, pod: KubeletPod) -> None:
        """Chooses the pod's next stage. Keeps an earlier choice while the same stages match."""
        uid = pod.metadata.uid
        if run.refusal is not None:
            run.pod, run.stage, run.matching = pod, None, ()
            self._queue.add(uid)
            return
        matching = self._stages.matching(_staged(pod), kind="Pod")
        if matching == run.matching and run.stage is not None:
            run.pod = pod
            return
        run.matching, run.stage = matching, choose(matching, self._rng)
        run.pod = pod if run.stage is not None else None
        if run.stage is None:
            return
        delay_s = run.stage.draw_delay_s(pod.metadata, self._rng)
        if run.stage.next.delete and pod.metadata.deletionGracePeriodSeconds is not None:
            delay_s = min(delay_s, float(pod.metadata.deletionGracePeriodSeconds))
        run.due_s = asyncio.get_running_loop().time() + delay_s
        if delay_s > 0:
            self._queue.add_after(uid, delay_s)
        else:
            self._queue.add(uid)

    def _forget(self, uid: str) -> None:
        run = self._runs.pop(uid, None)
        if run is None:
            return
        self._nodes.release(run.node, uid)
        self.plugins.forget(uid, run.node)
        self.virtual.forget(uid)
        waiting = self._unplaced.get(run.node)
        if waiting is not None:
            waiting.discard(uid)
            if not waiting:
                del self._unplaced[run.node]

    # --- writes --------------------------------------------------------------------------------------------------

    async def _advance(self, uid: str) -> float | None:
        """Plays the due stage. Called by the queue, which retries after an exception."""
        run = self._runs.get(uid)
        if run is None or run.pod is None:
            return None
        if self._nodes.account(run.node) is None:
            self._unplaced.setdefault(run.node, set()).add(uid)  # continues if its node is created again
            return None
        if run.refusal is not None:
            await self._reject(uid, run)
            return None
        if run.stage is None:
            return None
        early_s = run.due_s - asyncio.get_running_loop().time()
        if early_s > RESOLUTION_S:
            return early_s
        await self._play(run, run.pod, run.stage)
        return None

    async def _play(self, run: _PodRun, pod: KubeletPod, stage: Stage) -> None:
        action, meta = stage.next, pod.metadata
        if action.delete or action.phase in TERMINAL:
            self.plugins.end(meta.uid)
        if action.delete:
            answer = await self._client.delete(PODS, meta.namespace, meta.name, uid=meta.uid, grace_s=0)
        elif action.phase is not None or action.ready is not None:
            status = played_status(
                pod, action, now=self._now(), host_ip=self._nodes.address(run.node), pod_ip=self._pod_ip(pod)
            )
            answer = await self._write_status(pod, status)
        else:
            answer = None
        if answer is not None and not self._is_written(run, stage, answer):
            return
        if run.stage is stage:
            run.stage, run.pod = None, None
        self._counts.played["delete" if action.delete else action.phase or "other"] += 1
        if action.event is not None:
            await self._write_event(pod, run.node, action.event)

    async def _reject(self, uid: str, run: _PodRun) -> None:
        """Fails a pod that does not fit, after reading its node again: the watch of nodes may lag behind that of pods."""
        if run.rejection is None:
            await self._nodes.refresh(run.node)
        pod, account = run.pod, self._nodes.account(run.node)
        if self._runs.get(uid) is not run or pod is None or account is None or run.refusal is None:
            return
        run.refusal = None
        self._count(account, run, pod)
        if run.refusal is None:
            self._plan(run, pod)
            return
        refusal: Refusal = run.refusal
        answer = await self._write_status(pod, rejected_status(pod, refusal, self._now()))
        if answer.is_success or answer.status not in (404, 409):
            self._counts.rejected[refusal.reason] += 1
            logger.warning(
                "pod rejected",
                extra={
                    "pod": f"{pod.metadata.namespace}/{pod.metadata.name}",
                    "node": run.node,
                    "why": refusal.message,
                },
            )
        run.refusal, run.pod = None, None
        self._is_written(run, None, answer)

    async def _write_status(self, pod: KubeletPod, status: Document) -> Answer:
        meta = pod.metadata
        answer = await self._client.patch(
            PODS, meta.namespace, meta.name, body=status, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )
        return _or_retry(answer)

    def _is_written(self, run: _PodRun, stage: Stage | None, answer: Answer) -> bool:
        """Records the version written. A rejected write ends the stage, because the watch then delivers a change of the pod."""
        _or_retry(answer)
        if answer.is_success:
            run.written_version = _as_number(_WRITTEN.decode(answer.body).metadata.resourceVersion)
            return True
        if stage is not None and run.stage is stage:
            run.stage, run.pod = None, None
        if answer.status not in (404, 409):
            self._counts.refused_writes += 1
            logger.warning("status refused", extra={"status": answer.status, "error": answer.message})
        return False

    async def _write_event(self, pod: KubeletPod, node: str, event: StageEvent) -> None:
        """Writes an Event, without retries; counts a rejection."""
        meta, now = pod.metadata, self._now()
        answer = await self._client.create(
            EVENTS,
            meta.namespace,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{meta.name}.", "namespace": meta.namespace},
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "namespace": meta.namespace,
                    "name": meta.name,
                    "uid": meta.uid,
                },
                "reason": event.reason,
                "message": event.message,
                "type": event.type,
                "source": {"component": "kubelet", "host": node},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )
        self._counts.refused_writes += int(not answer.is_success)

    def _now(self) -> str:
        return timestamp(self._clock.now())

    def _pod_ip(self, pod: KubeletPod) -> str:
        """Returns the pod's address in 10.64.0.0/10; unique for the first four million pods."""
        if pod.status.podIP:
            return pod.status.podIP
        self._next_ip = number = (self._next_ip + 1) % _POD_IPS
        return f"10.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _or_retry(answer: Answer) -> Answer:
    """Raises RefusedError for responses that may succeed later; returns others."""
    return answer.expect() if answer.status in _RETRIED or answer.status >= 500 else answer


def _room_first(pod: KubeletPod) -> int:
    if pod.is_terminal:
        return 0
    return 1 if pod.status.phase == "Running" else 2


def _staged(pod: KubeletPod) -> StagedObject:
    return StagedObject(
        metadata=pod.metadata,
        phase=pod.status.phase,
        conditions=pod.status.conditions or (),
        node=pod.spec.nodeName or "",
        restart_policy=pod.spec.restartPolicy,
    )


def _as_number(version: str) -> int:
    """Parses a resource version, which is a number since 1.35. Another text, from an older server, counts as the newest."""
    return int(version) if version.isdigit() else 2**63
