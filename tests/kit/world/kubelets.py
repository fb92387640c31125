"""The kubelets and the taint manager of a simulated cluster: pods start, are resized, and end shortly after their deletion."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial

from multisched.model.objects import CPU, Node, Pod
from multisched.model.selectors import NO_EXECUTE
from multisched.model.wire import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from tests.kit.world.api_user import ApiUser, pods_path
from tests.kit.world.labels import CARDS
from tests.kit.world.pod_manifests import number_of
from tests.kit.world.store_view import StoreView

_PAIRED = frozenset(f"node-{number}" for number in range(20, 26))
RESIZED_MAX_S = 6.0
"""Maximum duration of a resize."""
KUBELET_S, LINGER_MAX_S = 0.25, 3.0
"""Polling interval of kubelets, and maximum time that a pod takes to end."""


class Kubelets:
    """The kubelets of all nodes."""

    def __init__(self, user: ApiUser, objects: StoreView) -> None:
        self._user = user
        self._objects = objects
        self._started = 0
        self._under_way: set[asyncio.Task[None]] = set()
        """Delayed actions."""

    async def run(self) -> None:
        """Runs the kubelets and the taint manager until cancelled.

        Deleted pods end shortly afterwards, and use their node until then. Pods that do not tolerate a NoExecute taint are deleted
        at once.
        """
        asked: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        nodes: Mapping[str, Node] = {}
        pods: Mapping[str, Pod] = {}
        while True:
            await asyncio.sleep(KUBELET_S)
            has_moved = self._objects.nodes() is not nodes or self._objects.pods() is not pods
            if not has_moved and not asked:
                continue  # the views are new objects after each write
            nodes, pods = self._objects.nodes(), self._objects.pods()
            await self._begin_pods(pods)
            hostile = {node.name: node for node in nodes.values() if _drives_out(node)}
            going = {pod.uid: pod for pod in pods.values() if pod.is_deleting and CARDS not in pod.labels}
            asked = {uid: asked.get(uid, loop.time()) for uid in going}
            for pod in list(pods.values()) if hostile else ():
                if pod.node in hostile and not _tolerates(pod, hostile[pod.node]):
                    await self._user.delete_pod(pod)
            for uid, pod in going.items():
                if loop.time() - asked[uid] >= LINGER_MAX_S * (zlib.crc32(uid.encode()) % 100) / 100:
                    await self._user.delete_pod(pod)

    async def _begin_pods(self, pods: Mapping[str, Pod]) -> None:
        """Sets start times of most pods on paired nodes, one second apart: among equal pods preemption spares the oldest."""
        for pod in list(pods.values()):
            if pod.node in _PAIRED and not pod.started_s and not pod.is_deleting and number_of(pod.uid) % 3:
                await self.start_pod(pod)

    async def start_pod(self, pod: Pod) -> None:
        """Sets the start time of the pod, a second after that of the previous one."""
        self._started += 1
        started = f"2026-01-01T{self._started // 3600:02}:{self._started // 60 % 60:02}:{self._started % 60:02}Z"
        path = f"{pods_path(pod.namespace)}/{pod.name}/status"
        await self._user.send("PATCH", path, {"status": {"startTime": started}}, MERGE_PATCH)

    async def end_pod(self, pod: Pod, phase: str) -> None:
        """Sets the phase of a pod whose containers have ended."""
        await self._user.send(
            "PATCH", f"{pods_path(pod.namespace)}/{pod.name}/status", {"status": {"phase": phase}}, MERGE_PATCH
        )

    async def resize(self, pod: Pod, cpu: str, *, takes_time: bool = False) -> bool:
        """Resizes a pod in place, bound or pending. Some kubelets take time: until then the pod has its old amounts."""
        is_slow = bool(pod.node) and (takes_time or number_of(pod.uid) % 2 == 0)
        if is_slow:
            await self._report_cpu(pod, f"{pod.requests.get(CPU, 0)}m")
        is_done = await self._resize(pod, cpu)
        if is_slow:
            wait_s = RESIZED_MAX_S * (number_of(f"{pod.uid}/resized") % 100) / 100
            asyncio.get_running_loop().call_later(wait_s, self._begin, partial(self._report_cpu, pod, cpu))
        return is_done

    async def _report_cpu(self, pod: Pod, cpu: str) -> None:
        """Reports the allocated CPU of the pod's container."""
        amounts = {"cpu": cpu}
        container = {"name": "main", "image": "a", "imageID": "", "ready": True, "restartCount": 0}
        status = {**container, "allocatedResources": amounts, "resources": {"requests": amounts}}
        path = f"{pods_path(pod.namespace)}/{pod.name}/status"
        await self._user.send("PATCH", path, {"status": {"containerStatuses": [status]}}, MERGE_PATCH)

    async def _resize(self, pod: Pod, cpu: str) -> bool:
        patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
        answer = await self._user.send(
            "PATCH", f"{pods_path(pod.namespace)}/{pod.name}/resize", patch, STRATEGIC_MERGE_PATCH
        )
        return answer.status == 200

    def _begin(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()


def _drives_out(node: Node) -> bool:
    return any(taint.effect == NO_EXECUTE for taint in node.taints)


def _tolerates(pod: Pod, node: Node) -> bool:
    taints = [taint for taint in node.taints if taint.effect == NO_EXECUTE]
    return all(any(toleration.tolerates(taint) for toleration in pod.spec.tolerations) for taint in taints)
