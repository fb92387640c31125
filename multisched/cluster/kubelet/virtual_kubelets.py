"""The virtual kubelets of fake nodes: they create a sandbox at a provider for each bound pod, without an admission check.

A node with the annotation PROVIDER_ANNOTATION has a virtual kubelet. Owns the provider accounts. Controls each pod of such a node until its
sandbox has started, and again after it was deleted; in between, stages decide what its containers do. Called only by Kubelets.
Source: virtual-kubelet @7b1385bcb, node/pod.go, node/podcontroller.go, internal/queue/queue.go; client-go
DefaultTypedControllerRateLimiter. The provider reports starts to the kubelet (PodNotifier).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from multisched.cluster.client.object_client import PODS, ObjectClient, WallClock
from multisched.cluster.controllers.events import EventRecorder
from multisched.cluster.controllers.reconcile_queue import RESOLUTION_S, ReconcileQueue
from multisched.cluster.kubelet.admission import KubeletPod
from multisched.cluster.kubelet.provider import (
    PROVIDER_ANNOTATION,
    ProviderAccount,
    ProviderError,
    ProviderSettings,
    TokenBucket,
    parse_settings,
)
from multisched.cluster.kubelet.stages import Meta
from multisched.cluster.kubelet.status import provider_failed_status
from multisched.model.wire import STRATEGIC_MERGE_PATCH

logger = logging.getLogger(__name__)

SYNC_WORKERS = 10
"""Maximum number of pods of one node that are processed concurrently."""
TRIES_MAX = 20
"""Failed calls for one pod, after which it is not retried until it changes or the kubelet restarts."""
RETRY_FIRST_S, RETRY_MAX_S = 0.005, 1000.0
DELETES_AT_ONCE = 32


@dataclass(slots=True)
class _VirtualNode:
    """One virtual kubelet."""

    text: str
    """The annotation with the settings that apply."""
    account: ProviderAccount
    limiter: TokenBucket
    queue: ReconcileQueue
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _VirtualPod:
    """One pod that is bound to a virtual node. Times are the event loop's."""

    pod: KubeletPod
    """The pod's last known state."""
    node: str
    synced: KubeletPod | None = None
    """The state last processed without an error."""
    sync_due_s: float = math.inf
    tries: int = 0
    backoffs: int = 0
    """Exponent of the next retry's delay."""
    start_due_s: float = math.inf
    delete_due_s: float = math.inf


@dataclass(slots=True)
class VirtualKubelets:
    """The virtual kubelets of all nodes, and the accounts that they use."""

    client: ObjectClient
    clock: WallClock
    rng: random.Random
    on_started: Callable[[str], None]
    """Called with a pod's uid once its sandbox has started: its containers may run."""
    accounts: dict[str, ProviderAccount] = field(default_factory=dict)
    """Name -> account."""
    deleted: int = 0
    _nodes: dict[str, _VirtualNode] = field(default_factory=dict)
    _pods: dict[str, _VirtualPod] = field(default_factory=dict)
    _group: asyncio.TaskGroup | None = None
    _events: EventRecorder = field(init=False)
    _timed: ReconcileQueue = field(init=False)

    def __post_init__(self) -> None:
        self._events = EventRecorder(self.client, self.clock)
        self._timed = ReconcileQueue("sandboxes", self._advance, rng=self.rng, workers=DELETES_AT_ONCE)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._events.run(), name="virtual kubelet events")
            group.create_task(self._timed.run(), name="sandboxes")
            for name, node in self._nodes.items():
                self._open(name, node)

    def serves(self, node: str) -> bool:
        """Reports whether the node has a virtual kubelet."""
        return node in self._nodes

    def configure(self, meta: Meta) -> None:
        """Reads the settings of a node. Logs invalid settings and keeps the previous ones."""
        text = (meta.annotations or {}).get(PROVIDER_ANNOTATION)
        node = self._nodes.get(meta.name)
        if text is None:
            if node is not None and node.task is not None:
                node.task.cancel()
            self._nodes.pop(meta.name, None)
            return
        if node is not None and node.text == text:
            return
        try:
            settings = parse_settings(text)
        except ProviderError as error:
            logger.warning("provider settings ignored", extra={"node": meta.name, "error": str(error)})
            return
        self._apply(meta.name, text, settings)

    def _apply(self, name: str, text: str, settings: ProviderSettings) -> None:
        now_s = _now_s()
        account = self.accounts.get(settings.account)
        if account is None:
            account = self.accounts[settings.account] = ProviderAccount(settings, now_s)
        else:
            account.configure(settings, now_s)
        node = self._nodes.get(name)
        if node is None:
            queue = ReconcileQueue(f"virtual kubelet {name}", self._sync, rng=self.rng, workers=SYNC_WORKERS)
            limiter = TokenBucket(settings.syncBurst, settings.syncPerSecond)
            node = self._nodes[name] = _VirtualNode(text, account, limiter, queue)
            self._open(name, node)
        node.text, node.account = text, account
        node.limiter.change(settings.syncBurst, settings.syncPerSecond, now_s)

    def _open(self, name: str, node: _VirtualNode) -> None:
        if self._group is not None and node.task is None:
            node.task = self._group.create_task(node.queue.run(), name=f"virtual kubelet {name}")

    def holds(self, pod: KubeletPod) -> bool:
        """Processes a pod of a virtual node; returns True before its sandbox starts and once it is deleted: then no stage may be played."""
        uid, name = pod.metadata.uid, pod.spec.nodeName or ""
        account, known = self._nodes[name].account, self._pods.get(uid)
        if known is None:
            known = self._pods[uid] = _VirtualPod(pod, name)
            if pod.is_running:
                account.adopt(uid, name, _now_s())
                known.synced = pod
            self._enqueue(known)
        else:
            is_changed = not _is_same(known.pod, pod)
            known.pod = pod
            if is_changed:
                self._enqueue(known)
        if pod.is_terminal:
            account.end(uid, _now_s())
        sandbox = account.sandboxes.get(uid)
        has_started = sandbox is not None and sandbox.started_s is not None
        return pod.metadata.deletionTimestamp is not None or not (has_started or pod.is_terminal)

    def forget(self, uid: str) -> None:
        """Deletes the sandbox of a pod that no longer exists."""
        known = self._pods.pop(uid, None)
        if known is not None:
            for account in self.accounts.values():
                account.delete(uid, _now_s())

    def _enqueue(self, known: _VirtualPod) -> None:
        """Queues a pod. If it already waits for the rate limiter, it becomes due at once."""
        node, uid = self._nodes[known.node], known.pod.metadata.uid
        if known.sync_due_s < math.inf:
            known.sync_due_s = _now_s()
            node.queue.add(uid)
        else:
            node.queue.add_after(uid, self._delay_s(known, node))

    def _delay_s(self, known: _VirtualPod, node: _VirtualNode) -> float:
        """Makes the pod due after its backoff or the delay of its node's rate limiter, whichever is longer; returns that delay."""
        delay_s = min(RETRY_FIRST_S * 2.0**known.backoffs, RETRY_MAX_S)
        known.backoffs += 1
        delay_s = max(delay_s, node.limiter.reserve_s(_now_s()))
        known.sync_due_s = _now_s() + delay_s
        return delay_s

    async def _sync(self, uid: str) -> float | None:
        """Creates, updates or deletes the sandbox of one pod; returns the seconds until the next try, None if there is none."""
        known = self._pods.get(uid)
        node = self._nodes.get(known.node) if known is not None else None
        if known is None or node is None or known.sync_due_s == math.inf:
            return None
        early_s = known.sync_due_s - _now_s()
        if early_s > RESOLUTION_S:
            return early_s
        known.sync_due_s, pod = math.inf, known.pod
        if await self._is_synced(known, node, pod):
            known.synced, known.tries, known.backoffs = pod, 0, 0
            return None
        known.tries += 1
        if known.sync_due_s < math.inf:  # changed meanwhile
            return None
        if known.tries >= TRIES_MAX:
            known.tries = known.backoffs = 0
            return None
        return self._delay_s(known, node)

    async def _is_synced(self, known: _VirtualPod, node: _VirtualNode, pod: KubeletPod) -> bool:
        """Calls the provider for one pod; returns False if the provider returns an error."""
        meta = pod.metadata
        if meta.deletionTimestamp is not None:
            if pod.is_running and node.account.sandboxes.get(meta.uid):
                node.account.delete(meta.uid, _now_s())
                self._record(pod, "Normal", "ProviderDeleteSuccess", "Delete pod in provider successfully")
            grace_s = float(meta.deletionGracePeriodSeconds or 0) if pod.is_running else 0.0
            known.delete_due_s = min(known.delete_due_s, _now_s() + grace_s)
            self._timed.add_after(meta.uid, grace_s)
            return True
        if pod.is_terminal or (known.synced is not None and _is_same(known.synced, pod)):
            return True
        settings = node.account.settings
        if meta.uid in node.account.sandboxes:
            await asyncio.sleep(settings.createSeconds)
            self._record(pod, "Normal", "ProviderUpdateSuccess", "Update pod in provider successfully")
            return True
        error = node.account.create(meta.uid, known.node, meta.labels or {}, _now_s(), self.clock.now())
        await asyncio.sleep(settings.createSeconds)
        if self._pods.get(meta.uid) is not known:
            return True
        if error:
            await self._fail(pod, error)
            return False
        startup_s = settings.startupSeconds + self.rng.random() * settings.startupJitterSeconds
        known.start_due_s = _now_s() + startup_s
        self._timed.add_after(meta.uid, startup_s)
        self._record(pod, "Normal", "ProviderCreateSuccess", "Create pod in provider successfully")
        return True

    async def _fail(self, pod: KubeletPod, error: str) -> None:
        """Writes the provider's error. As in virtual-kubelet, a status that the server rejects is only logged."""
        meta = pod.metadata
        body = provider_failed_status(pod, error)
        answer = await self.client.patch(
            PODS, meta.namespace, meta.name, body=body, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )
        if not answer.is_success and answer.status not in (404, 409):
            logger.warning("status refused", extra={"status": answer.status, "error": answer.message})
        self._record(pod, "Warning", "ProviderCreateFailed", error)

    def _record(self, pod: KubeletPod, kind: str, reason: str, message: str) -> None:
        meta = pod.metadata
        about = {"metadata": {"uid": meta.uid, "name": meta.name, "namespace": meta.namespace}}
        writer = self._events.writer(f"{pod.spec.nodeName}/pod-controller")
        writer.record(PODS, about, kind, reason, message)

    async def _advance(self, uid: str) -> float | None:
        """Starts the sandbox of a pod, or deletes the pod, whichever is due; returns the seconds until the other."""
        known = self._pods.get(uid)
        if known is None:
            return None
        now_s, meta = _now_s() + RESOLUTION_S, known.pod.metadata
        if known.delete_due_s <= now_s:
            answer = await self.client.delete(PODS, meta.namespace, meta.name, uid=meta.uid, grace_s=0)
            answer.expect(404, 409)
            known.delete_due_s = math.inf
            self.deleted += int(answer.is_success)
            return None
        if known.start_due_s <= now_s:
            known.start_due_s = math.inf
            self._start(uid, known)
        due_s = min(known.delete_due_s, known.start_due_s)
        return None if due_s == math.inf else max(0.0, due_s - _now_s())

    def _start(self, uid: str, known: _VirtualPod) -> None:
        node = self._nodes.get(known.node)
        if node is None or uid not in node.account.sandboxes:
            return
        node.account.start(uid, _now_s())
        if not known.pod.is_terminal and known.pod.metadata.deletionTimestamp is None:
            self.on_started(uid)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _is_same(one: KubeletPod, other: KubeletPod) -> bool:
    """Reports whether two states of a pod are equal in all fields whose change makes virtual-kubelet process the pod again."""
    return one.metadata.uid == other.metadata.uid and _synced_fields(one) == _synced_fields(other)


def _synced_fields(pod: KubeletPod) -> tuple[object, ...]:
    meta, spec = pod.metadata, pod.spec
    return (
        meta.labels,
        meta.annotations,
        meta.deletionTimestamp,
        meta.deletionGracePeriodSeconds,
        spec.containers,
        spec.initContainers,
        spec.activeDeadlineSeconds,
        spec.tolerations,
    )
