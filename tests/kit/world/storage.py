"""The storage of a simulated cluster: local disks, provisioned volumes, claims of pods, and the controllers that bind them.

The controllers are those of the embedded cluster and use the API. Promises about volumes are checked from the server's store alone:
a pod is bound only if all its claims are bound, to volumes that its node reaches.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.storage import Stored
from multisched.cluster.client.object_client import ObjectClient, WallClock
from multisched.cluster.controllers.context import ControllerContext
from multisched.cluster.controllers.ephemeral_volume import EphemeralVolumeController
from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER, FakeProvisioner
from multisched.cluster.controllers.persistentvolume import ClaimController, VolumeController
from multisched.model.cluster_objects import (
    SELECTED_NODE_ANNOTATION,
    ClusterObject,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.model.wire import Response, Transport
from tests.kit.world.labels import HOSTNAME, ODD_VOLUMES

LOCAL, DYNAMIC = "local", "made"
"""Classes: local disks of a node, and volumes that are provisioned for the pod's node. Both wait for the pod."""

TIGHT_PROVISIONER = "tight.sim"
"""The provisioner with limited capacity (`disks`)."""
DISKS_PER_NODE = 2
CLAIMANTS = 0.12
"""Share of pods with claims."""

CLASSES_PATH = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES_PATH = "/api/v1/persistentvolumes"
CLAIMS_PATH = "/api/v1/namespaces/default/persistentvolumeclaims"

Send = Callable[[str, str, Mapping[str, Any]], Awaitable[Response]]
"""(method, path, document): sends a request, repeated while the server is away."""


class Storage:
    """Volumes and claims of one run."""

    def __init__(self, server: ApiServer, send: Send, seed: int, transport: Transport, clock: WallClock) -> None:
        self._store = server.store
        self._send = send
        self._seed = seed
        self._transport, self._clock = transport, clock
        self._controllers: asyncio.Task[None] | None = None
        """None while they are stopped."""
        self._known: dict[tuple[str, str], tuple[Stored, ClusterObject]] = {}

    async def build(self, nodes: int) -> None:
        """Creates classes, and disks on every fourth node."""
        for name, provisioner in ((LOCAL, "kubernetes.io/no-provisioner"), (DYNAMIC, FAKE_PROVISIONER)):
            body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
            await self._create(CLASSES_PATH, body)
        for number in range(0, nodes, 4):
            for disk in range(DISKS_PER_NODE):
                await self._create(VOLUMES_PATH, local_disk(f"disk-{number}-{disk}", f"node-{number}", f"{1 + disk}Gi"))

    def start(self) -> None:
        """Restarts the controllers."""
        self.stop()
        self._controllers = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Stops the controllers until `start`."""
        if self._controllers is not None:
            self._controllers.cancel()
        self._controllers = None

    async def _run(self) -> None:
        """Runs the persistent volume controllers and provisioners until cancelled."""
        context = ControllerContext(
            ObjectClient(self._transport),
            clock=self._clock,
            rng=random.Random(self._seed),
        )
        controllers = (
            ClaimController(context),
            VolumeController(context),
            FakeProvisioner(context),
            FakeProvisioner(context, TIGHT_PROVISIONER),
            EphemeralVolumeController(context),
        )
        caches = (context.claims, context.volumes, context.storage_classes, context.pods)
        async with asyncio.TaskGroup() as group:
            for cache in caches:
                group.create_task(cache.watch.run())
            for cache in caches:
                await cache.watch.synced.wait()
            for controller in controllers:
                group.create_task(controller.run())

    async def add_claims(self, pod: dict[str, Any]) -> None:
        """Adds claims to some pods, drawn by their name so that no other draw changes."""
        name = pod["metadata"]["name"]
        rng = random.Random(f"{self._seed}/{name}")
        is_plain = not {"nodeSelector", "schedulingGates"} & pod["spec"].keys() and not pod["metadata"]["annotations"]
        if not is_plain or rng.random() >= CLAIMANTS:
            return
        claims = [f"data-{name}"] if rng.random() < 0.8 else [f"data-{name}", f"log-{name}"]
        for claim in claims:
            spec = {
                "storageClassName": rng.choice((LOCAL, DYNAMIC)),
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": rng.choice(("1Gi", "2Gi"))}},
            }
            await self._create(CLAIMS_PATH, {"metadata": {"name": claim}, "spec": spec})
        pod["spec"]["volumes"] = [
            {"name": f"v{at}", "persistentVolumeClaim": {"claimName": claim}} for at, claim in enumerate(claims)
        ]

    async def add_claim(self, claim: Mapping[str, Any] | None) -> None:
        """Creates a claim that was drawn elsewhere, if any."""
        if claim is not None:
            await self._create(CLAIMS_PATH, claim)

    async def _create(self, path: str, document: Mapping[str, Any]) -> None:
        answer = await self._send("POST", path, document)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)

    # -- judging ---------------------------------------------------------------------------------------------------

    def fault_of_bind(self, pod: Pod, node: Node) -> str:
        """Returns what is wrong with binding the pod to the node now; empty for nothing."""
        for name in _claims_of(pod):
            claim = self._claim(pod.namespace, name)
            if claim is None and ODD_VOLUMES in pod.labels:
                continue  # it was just deleted
            if claim is None or not claim.is_fully_bound:
                return f"{pod.key} was bound before its claim {name}"
            volume = self._volume(claim.volume)
            if volume is None or volume.claim is None or volume.claim.uid != claim.uid:
                return f"{pod.key} was bound with claim {name}, whose volume {claim.volume} is not its own"
            if not _reaches(volume, node):
                return f"{pod.key} was bound to {node.name}, out of reach of volume {volume.name}"
        return ""

    def allows(self, pod: Pod, node: Node, there: Collection[Pod]) -> bool:
        """Reports whether the pod's claims allow the node; True with several unbound claims.

        `there`: the pods on the node. False for pods with volumes of `disks`, for which that is unknown.
        """
        if ODD_VOLUMES in pod.labels:
            return False
        if pod.spec.volumes and not self._can_attach(pod, node, there):
            return False
        for name in _claims_of(pod):
            claim = self._claim(pod.namespace, name)
            if claim is None:
                return False
            if claim.volume:
                volume = self._volume(claim.volume)
                if volume is None or not _reaches(volume, node):
                    return False
            elif claim.class_name == LOCAL and (
                # Two claims of a pod may need one disk: such a pod is checked at its binding only.
                len(_claims_of(pod)) > 1 or not any(_is_free(v, claim, node) for v in self.volumes())
            ):
                return False
        return True

    def _can_attach(self, pod: Pod, node: Node, there: Collection[Pod]) -> bool:
        """Reports whether the limits of drivers certainly allow the pod: even if all volumes counted for the driver with the lowest
        limit.
        """
        known = self._find("csinodes.storage.k8s.io", node.name, ObjectKind.CSI_NODE)
        drivers = known.drivers if isinstance(known, CsiNode) else ()
        limits = [driver.volumes_max for driver in drivers if driver.volumes_max is not None]
        if not limits:
            return True
        collection = "volumeattachments.storage.k8s.io"
        keys = [*self._store.collection(collection).keys()]
        attached = [self._find(collection, key, ObjectKind.VOLUME_ATTACHMENT) for key in keys]
        used = sum(isinstance(one, VolumeAttachment) and one.node == node.name for one in attached)
        used += sum(self._may_attach(one) for one in (pod, *there))
        return used <= min(limits)

    def _may_attach(self, pod: Pod) -> int:
        """Returns the number of the pod's volumes that may count for a driver's limit."""
        claims = [self._claim(pod.namespace, name) for name in _claims_of(pod)]
        local = sum(claim is not None and claim.class_name == LOCAL for claim in claims)
        return len(pod.spec.volumes) - local

    def has_node(self, name: str) -> bool:
        """Reports whether a node is selected for the claim of the default namespace."""
        claim = self._claim("default", name)
        return claim is not None and SELECTED_NODE_ANNOTATION in claim.annotations

    def lacks_volume(self, name: str, volume: str) -> bool:
        """Reports whether the claim of the default namespace is unbound, and the volume does not exist."""
        claim = self._claim("default", name)
        return claim is not None and not claim.volume and self._volume(volume) is None

    def _claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        found = self._find("persistentvolumeclaims", f"{namespace}/{name}", ObjectKind.PERSISTENT_VOLUME_CLAIM)
        return found if isinstance(found, PersistentVolumeClaim) else None

    def _volume(self, name: str) -> PersistentVolume | None:
        found = self._find("persistentvolumes", name, ObjectKind.PERSISTENT_VOLUME)
        return found if isinstance(found, PersistentVolume) else None

    def volumes(self) -> list[PersistentVolume]:
        names = [*self._store.collection("persistentvolumes").keys()]
        return [volume for volume in map(self._volume, names) if volume is not None]

    def _find(self, collection: str, key: str, kind: ObjectKind) -> ClusterObject | None:
        """Returns the decoded object; unchanged objects are not decoded again."""
        stored = self._store.collection(collection).objects.get(key)
        if stored is None:
            return None
        known = self._known.get((collection, key))
        if known is None or known[0] is not stored:
            known = self._known[collection, key] = (stored, kind.definition.decode(stored.raw))
        return known[1]


def _claims_of(pod: Pod) -> list[str]:
    return [volume.claim for volume in pod.spec.volumes if volume.claim is not None]


def _reaches(volume: PersistentVolume, node: Node) -> bool:
    return volume.node_affinity is None or volume.node_affinity.matches(node.labels, "")


def _is_free(volume: PersistentVolume, claim: PersistentVolumeClaim, node: Node) -> bool:
    """Reports whether the claim could get the volume on the node."""
    is_anybodys = volume.claim is None and volume.phase == "Available"
    is_large = volume.capacity_nano >= claim.request_nano
    return is_anybodys and is_large and volume.storage_class == LOCAL and _reaches(volume, node)


def local_disk(name: str, node: str, size: str) -> dict[str, Any]:
    expression = {"key": HOSTNAME, "operator": "In", "values": [node]}
    return {
        "metadata": {"name": name, "labels": {"speed": "fast" if size == "1Gi" else "slow"}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": LOCAL,
            "local": {"path": f"/disks/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        },
    }
