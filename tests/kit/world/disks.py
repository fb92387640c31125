"""Further volumes of a simulated cluster.

There are inline disks that exclude each other, ReadWriteOncePod claims, volumes of a zone, and ephemeral volumes; classes with
topologies and capacity; and drivers with limits. Pods that use them have a label. Whether such a pod fits is not computed from the
store, which would need a second scheduler. Where it is bound is checked by the judge of `multisched verify` and by `Storage`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER, ZONE
from multisched.model.cluster_objects import SELECTED_NODE_ANNOTATION
from multisched.model.wire import MERGE_PATCH, Response
from tests.kit.world.labels import ODD_VOLUMES
from tests.kit.world.storage import (
    CLAIMS_PATH,
    CLASSES_PATH,
    DYNAMIC,
    LOCAL,
    TIGHT_PROVISIONER,
    VOLUMES_PATH,
    local_disk,
)

SHARE: Final = 0.14
"""Share of plain pods without claims that get such volumes."""
SHARED_DISKS, SOLE_CLAIMS, ZONED = 3, 3, 6
LATE_MIN_S, LATE_MAX_S = 1.0, 6.0
EDGE, TIGHT, SOON, LATER, UNBINDABLE = "edge", "tight", "soon", "later", "unbindable"
UNPROVISIONED, IN_TREE = "nobodys", "in-tree"
"""Classes: in two zones; of a driver that publishes its capacity; bound immediately; created after its claims. Others have an
unknown binding mode, or provisioners that do not exist.
"""
TIGHT_DRIVER, GCE_DRIVER = TIGHT_PROVISIONER, "pd.csi.storage.gke.io"
ZONE_BETA: Final = "failure-domain.beta.kubernetes.io/zone"
ATTACHED_MAX = (2, 5, 6)
CSI_PATH: Final = "/apis/storage.k8s.io/v1"
CAPACITIES_PATH: Final = f"{CSI_PATH}/namespaces/kube-system/csistoragecapacities"

Send = Callable[..., Awaitable[Response]]
Volume = dict[str, Any]


class Disks:
    """The volumes of one run. Values are drawn by names, so that other draws do not change."""

    def __init__(self, send: Send, seed: int) -> None:
        self._send = send
        self._seed = seed
        self._late: set[asyncio.Task[None]] = set()

    async def build(self, nodes: int) -> None:
        for name, fields in _CLASSES.items():
            await self._create(CLASSES_PATH, {"metadata": {"name": name}, **fields})
        await self._create(f"{CSI_PATH}/csidrivers", {"metadata": {"name": FAKE_PROVISIONER}, "spec": {}})
        await self._create(
            f"{CSI_PATH}/csidrivers", {"metadata": {"name": TIGHT_DRIVER}, "spec": {"storageCapacity": True}}
        )
        for zone, size in (("z0", "6Gi"), ("z1", "3Gi")):
            await self._create(CAPACITIES_PATH, _capacity(zone, size))
        for number in range(nodes):
            if number % 5:
                await self._create(f"{CSI_PATH}/csinodes", csi_node(number, ATTACHED_MAX[number % len(ATTACHED_MAX)]))
        for at in range(SOLE_CLAIMS):
            await self._create(CLAIMS_PATH, _claim(f"sole-{at}", DYNAMIC, mode="ReadWriteOncePod"))
        for at in range(ZONED):
            await self._create(VOLUMES_PATH, _zoned(at))
            await self._create(CLAIMS_PATH, _claim(f"zoned-{at}", "", volume=f"zoned-{at}"))
        for at in range(2):
            await self._create(VOLUMES_PATH, _soon(at))

    def close(self) -> None:
        for task in self._late:
            task.cancel()

    async def add_volumes(self, pod: dict[str, Any]) -> None:
        """Adds volumes of one kind to some pods."""
        spec, name = pod["spec"], pod["metadata"]["name"]
        rng = random.Random(f"{self._seed}/disks/{name}")
        is_plain = (
            not {"nodeSelector", "schedulingGates", "volumes"} & spec.keys() and not pod["metadata"]["annotations"]
        )
        if not is_plain or rng.random() >= SHARE:
            return
        pod["metadata"]["labels"][ODD_VOLUMES] = "yes"
        make = rng.choice(_SORTS if spec["schedulerName"].startswith("forecast") else _SORTS[1:])
        spec["volumes"] = [await make(self, name, rng)]
        if rng.random() < 0.2:
            spec["volumes"] += [_inline(rng) | {"name": "v1"}, {"name": "v2", "emptyDir": {}}]

    # -- sorts of volumes ------------------------------------------------------------------------------------------

    async def sole(self, name: str, rng: random.Random) -> Volume:
        return _of_claim(f"sole-{rng.randrange(SOLE_CLAIMS)}")

    async def disk(self, name: str, rng: random.Random) -> Volume:
        return _inline(rng)

    async def zoned_claim(self, name: str, rng: random.Random) -> Volume:
        return _of_claim(f"zoned-{rng.randrange(ZONED)}")

    async def own(self, name: str, rng: random.Random) -> Volume:
        """Creates a claim of a random class."""
        class_name = rng.choice((EDGE, TIGHT, TIGHT, SOON, UNBINDABLE))
        await self._create(CLAIMS_PATH, _claim(f"odd-{name}", class_name, size=rng.choice(("1Gi", "2Gi", "9Gi"))))
        return _of_claim(f"odd-{name}")

    async def with_selector(self, name: str, rng: random.Random) -> Volume:
        """Creates a claim with a label selector."""
        claim = _claim(f"odd-{name}", LOCAL)
        claim["spec"]["selector"] = {"matchLabels": {"speed": rng.choice(("fast", "slow"))}}
        await self._create(CLAIMS_PATH, claim)
        return _of_claim(f"odd-{name}")

    async def ephemeral(self, name: str, rng: random.Random) -> Volume:
        template = {"spec": _claim("", rng.choice((DYNAMIC, EDGE)))["spec"]}
        return {"name": "v0", "ephemeral": {"volumeClaimTemplate": template}}

    async def created_late(self, name: str, rng: random.Random) -> Volume:
        """Creates the claim after its pod, and its class after both."""
        delay_s = rng.uniform(LATE_MIN_S, LATE_MAX_S)
        class_name = rng.choice((DYNAMIC, LATER))
        task = asyncio.get_running_loop().create_task(self._come_late(f"odd-{name}", class_name, delay_s))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return _of_claim(f"odd-{name}")

    async def _come_late(self, claim: str, class_name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._create(CLAIMS_PATH, _claim(claim, class_name))
        await asyncio.sleep(delay_s)
        if class_name == LATER:
            await self.make_later()

    async def make_later(self) -> None:
        """Creates the late class; also after a restored backup has removed it."""
        await self._create(CLASSES_PATH, {"metadata": {"name": LATER}, **_late_binding(FAKE_PROVISIONER)})

    # -- as disruptions change them --------------------------------------------------------------------------------

    async def attach(self, number: int, at: int, *, attacher: str = FAKE_PROVISIONER) -> None:
        """Attaches a volume of another client to the node; two of three exist as PersistentVolumes."""
        source = {"persistentVolumeName": f"soon-{at % 3}"}
        spec = {"attacher": attacher, "nodeName": f"node-{number}", "source": source}
        await self._create(
            f"{CSI_PATH}/volumeattachments", {"metadata": {"name": f"attached-{number}-{at}"}, "spec": spec}
        )

    async def detach(self, number: int, at: int) -> None:
        await self._send("DELETE", f"{CSI_PATH}/volumeattachments/attached-{number}-{at}")

    async def set_attachable(self, number: int, most: int, *, is_migrated: bool) -> None:
        path = f"{CSI_PATH}/csinodes/node-{number}"
        node = csi_node(number, most)
        if not is_migrated:
            node["metadata"]["annotations"] = {_MIGRATED: ""}
        await self._send("PATCH", path, {"spec": node["spec"], "metadata": node["metadata"]}, MERGE_PATCH)

    async def replace_csi_node(self, number: int) -> None:
        await self._send("DELETE", f"{CSI_PATH}/csinodes/node-{number}")
        await asyncio.sleep(1.0)
        await self._create(f"{CSI_PATH}/csinodes", csi_node(number, 9))

    async def set_capacity(self, zone: str, size: str) -> None:
        await self._send("PATCH", f"{CAPACITIES_PATH}/{TIGHT}-{zone}", {"capacity": size}, MERGE_PATCH)

    async def widen_class(self) -> None:
        """Recreates the class for all zones: its topologies cannot be edited."""
        await self._send("DELETE", f"{CLASSES_PATH}/{EDGE}")
        await self._create(CLASSES_PATH, {"metadata": {"name": EDGE}, **_late_binding(FAKE_PROVISIONER)})

    async def publish_no_capacity(self) -> None:
        path = f"{CSI_PATH}/csidrivers/{TIGHT_DRIVER}"
        await self._send("PATCH", path, {"spec": {"storageCapacity": False}}, MERGE_PATCH)

    async def move_volume(self, at: int, zone: str) -> None:
        """Changes the zone label of the volume."""
        await self._send("PATCH", f"{VOLUMES_PATH}/zoned-{at}", {"metadata": {"labels": {ZONE: zone}}}, MERGE_PATCH)

    async def note(self, number: int) -> None:
        """Writes an irrelevant annotation on a volume, a class, a driver and a CSINode."""
        note = {"metadata": {"annotations": {"sim/seen": f"{number}"}}}
        for path in (
            f"{VOLUMES_PATH}/zoned-0",
            f"{CLASSES_PATH}/{TIGHT}",
            f"{CSI_PATH}/csidrivers/{TIGHT_DRIVER}",
            f"{CSI_PATH}/csinodes/node-{number}",
        ):
            await self._send("PATCH", path, note, MERGE_PATCH)

    async def add_class(self, name: str, *, is_late: bool) -> None:
        mode = "WaitForFirstConsumer" if is_late else "Immediate"
        await self._create(
            CLASSES_PATH, {"metadata": {"name": name}, **_late_binding("nobody.sim"), "volumeBindingMode": mode}
        )

    async def add_reaching_class(self, name: str, zones: Sequence[str]) -> None:
        """Creates a class whose volumes are provisioned on the pod's node, in these zones only."""
        terms = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]
        await self._create(
            CLASSES_PATH, {"metadata": {"name": name}, **_late_binding(FAKE_PROVISIONER), "allowedTopologies": terms}
        )

    async def delete_class(self, name: str) -> None:
        await self._send("DELETE", f"{CLASSES_PATH}/{name}")

    async def add_claim(
        self,
        name: str,
        class_name: str,
        *,
        size: str = "1Gi",
        namespace: str = "default",
        mode: str = "ReadWriteOnce",
        volume: str = "",
    ) -> None:
        path = CLAIMS_PATH.replace("/default/", f"/{namespace}/")
        await self._create(path, _claim(name, class_name, size=size, mode=mode, volume=volume))

    async def add_attachable(self, name: str, driver: str, labels: Mapping[str, str] | None = None) -> None:
        """Creates a volume that the driver attaches, and a claim of the same name that is bound to it."""
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "csi": {"driver": driver, "volumeHandle": name},
        }
        await self._create(VOLUMES_PATH, {"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec})
        await self.add_claim(name, "", volume=name)

    async def label_volume(self, name: str, labels: Mapping[str, str]) -> None:
        await self._send("PATCH", f"{VOLUMES_PATH}/{name}", {"metadata": {"labels": labels}}, MERGE_PATCH)

    async def add_driver(self, number: int, driver: str, most: int) -> None:
        """Adds a driver with this limit to the node's CSINode."""
        added = {"name": driver, "nodeID": f"n{number}", "topologyKeys": [], "allocatable": {"count": most}}
        await self._set_drivers(number, [*csi_node(number, 9)["spec"]["drivers"], added])

    async def raise_limits(self, number: int) -> None:
        """Sets the limits of the node's drivers to the highest of all nodes."""
        await self._set_drivers(number, csi_node(number, 9)["spec"]["drivers"])

    async def _set_drivers(self, number: int, drivers: Sequence[Mapping[str, Any]]) -> None:
        path = f"{CSI_PATH}/csinodes/node-{number}"
        await self._send("PATCH", path, {"spec": {"drivers": drivers}}, MERGE_PATCH)

    async def attach_volume(self, number: int, volume: str, driver: str) -> None:
        """Attaches the volume to the node, whether a pod uses it or not."""
        spec = {"attacher": driver, "nodeName": f"node-{number}", "source": {"persistentVolumeName": volume}}
        await self._create(f"{CSI_PATH}/volumeattachments", {"metadata": {"name": f"attached-{volume}"}, "spec": spec})

    async def delete_in_use(self, name: str) -> None:
        """Deletes the claim and the volume of this name although a pod uses them: their finalizers are removed."""
        for path in (f"{CLAIMS_PATH}/{name}", f"{VOLUMES_PATH}/{name}"):
            await self._send("DELETE", path)
            await self._send("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)

    async def detach_volume(self, volume: str) -> None:
        await self._send("DELETE", f"{CSI_PATH}/volumeattachments/attached-{volume}")

    async def add_disk(
        self, name: str, node: str, size: str, *, is_narrow: bool, put_aside: str = "", beside: str = ""
    ) -> None:
        """Creates a local disk of the node. `is_narrow`: its node affinity has more than the node's name. `put_aside`: the claim
        that its owner reserves it for. `beside`: another node that reaches it.
        """
        disk = local_disk(name, node, size)
        (term,) = disk["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        if beside:
            term["matchExpressions"][0]["values"].append(beside)
        if is_narrow:
            term["matchExpressions"].append({"key": ZONE, "operator": "Exists"})
        if put_aside:
            disk["spec"]["claimRef"] = {"namespace": "default", "name": put_aside}
        await self._create(VOLUMES_PATH, disk)

    async def reset_volume(self, name: str) -> None:
        """Removes the claim reference from the volume."""
        await self._send("PATCH", f"{VOLUMES_PATH}/{name}", {"spec": {"claimRef": None}}, MERGE_PATCH)

    async def take_claim(self, name: str, volume: str) -> None:
        """Binds the claim to another volume by hand."""
        await self._send("PATCH", f"{CLAIMS_PATH}/{name}", {"spec": {"volumeName": volume}}, MERGE_PATCH)

    async def unselect_node(self, name: str) -> None:
        """Removes the selected node of the claim, as a provisioner does on failure."""
        selected = {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: None}}}
        await self._send("PATCH", f"{CLAIMS_PATH}/{name}", selected, MERGE_PATCH)

    async def delete_claim(self, name: str) -> None:
        await self._send("DELETE", f"{CLAIMS_PATH}/{name}")

    async def delete_volume(self, name: str) -> None:
        await self._send("DELETE", f"{VOLUMES_PATH}/{name}")

    async def create_oversized(self) -> None:
        """Creates objects that are too large to be decoded: they are reported, and not used."""
        values = [f"v{at}" for at in range(300)]
        selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
        body = {"metadata": {"name": "huge"}, "spec": {"selector": selector, "maxUnavailable": 1}}
        await self._create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", body)
        topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": [value]}]} for value in values]
        body = {"metadata": {"name": "huge"}, **_late_binding(FAKE_PROVISIONER), "allowedTopologies": topologies}
        await self._create(CLASSES_PATH, body)

    async def delete_oversized(self) -> None:
        await self._send("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/huge")
        await self._send("DELETE", f"{CLASSES_PATH}/huge")

    async def _create(self, path: str, document: Mapping[str, Any]) -> None:
        answer = await self._send("POST", path, document)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)


_SORTS: Final = (
    Disks.sole,
    Disks.disk,
    Disks.disk,
    Disks.zoned_claim,
    Disks.own,
    Disks.own,
    Disks.with_selector,
    Disks.ephemeral,
    Disks.created_late,
)
"""The first kind is for pods of one domain: a ReadWriteOncePod claim is exclusive among the pods of one leader."""

_MIGRATED: Final = "storage.alpha.kubernetes.io/migrated-plugins"


def _late_binding(provisioner: str) -> dict[str, Any]:
    return {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


_CLASSES: Final[Mapping[str, Mapping[str, Any]]] = {
    EDGE: _late_binding(FAKE_PROVISIONER)
    | {"allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["z0", "z1"]}]}]},
    TIGHT: _late_binding(TIGHT_DRIVER),
    SOON: {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate"},
    UNBINDABLE: {"provisioner": "nobody.sim", "volumeBindingMode": "Immediate"},
    UNPROVISIONED: _late_binding("nobody.sim"),
    IN_TREE: _late_binding("kubernetes.io/azure-file"),
}


def csi_node(number: int, most: int) -> dict[str, Any]:
    """Returns the CSINode of a node. On every third node the kubelet still attaches GCE disks itself."""
    drivers = [
        {"name": FAKE_PROVISIONER, "nodeID": f"n{number}", "topologyKeys": [ZONE], "allocatable": {"count": most}},
        {"name": GCE_DRIVER, "nodeID": f"n{number}", "topologyKeys": [ZONE], "allocatable": {"count": 2}},
    ]
    annotations = {_MIGRATED: "" if number % 3 == 0 else "kubernetes.io/gce-pd,kubernetes.io/aws-ebs"}
    return {"metadata": {"name": f"node-{number}", "annotations": annotations}, "spec": {"drivers": drivers}}


def _inline(rng: random.Random) -> Volume:
    at, is_read_only = rng.randrange(SHARED_DISKS), rng.random() < 0.3
    source = rng.choice(
        (
            {"gcePersistentDisk": {"pdName": f"pd-{at}", "readOnly": is_read_only}},
            {"gcePersistentDisk": {"pdName": f"pd-{at}", "readOnly": is_read_only}},
            {"awsElasticBlockStore": {"volumeID": f"vol-{at}"}},
            {"iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": f"iqn.2001-04.com.example:{at}", "lun": 0}},
            {"rbd": {"monitors": ["10.0.0.2:6789"], "image": f"image-{at}", "readOnly": is_read_only}},
        )
    )
    return {"name": "v0", **source}


def _of_claim(claim: str) -> Volume:
    return {"name": "v0", "persistentVolumeClaim": {"claimName": claim}}


def _claim(
    name: str, class_name: str, *, mode: str = "ReadWriteOnce", volume: str = "", size: str = "1Gi"
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "storageClassName": class_name,
        "accessModes": [mode],
        "resources": {"requests": {"storage": size}},
    }
    if volume:
        spec["volumeName"] = volume
    return {"metadata": {"name": name}, "spec": spec}


def _zoned(at: int) -> dict[str, Any]:
    """Returns a volume without a CSI driver: its zone is a label, in its node affinity, or missing."""
    labels = {ZONE: "z0__z1"} if at % 2 else {ZONE_BETA if at else ZONE: f"z{at % 3}"}
    volume: dict[str, Any] = {
        "metadata": {"name": f"zoned-{at}", "labels": {} if at > 3 else labels},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "gcePersistentDisk": {"pdName": f"zoned-{at}"},
        },
    }
    if at == 4:
        expression = {"key": ZONE, "operator": "In", "values": ["z0", "z2"]}
        volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return volume


def _soon(at: int) -> dict[str, Any]:
    expression = {"key": ZONE, "operator": "In", "values": ["z1", "z2"]}
    return {
        "metadata": {"name": f"soon-{at}", "labels": {"speed": "fast"}},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": SOON,
            "csi": {"driver": FAKE_PROVISIONER, "volumeHandle": f"handle-{at}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        },
    }


def _capacity(zone: str, size: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{TIGHT}-{zone}", "namespace": "kube-system"},
        "storageClassName": TIGHT,
        "nodeTopology": {"matchLabels": {ZONE: zone}},
        "capacity": size,
        "maximumVolumeSize": "4Gi",
    }
