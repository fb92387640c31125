"""Random old storage, on top of `random_volumes`: disks of in-tree plugins in pods and in volumes, those plugins' CSI drivers
and their limits, zone labels of all ages, ephemeral volumes, and what kubelets declare.
"""

from __future__ import annotations

from tests.conformance.random_cluster import REGION, ZONE, Draw, Json

OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ZONE_SETS = ("z0", "z1", "z1__z2", "us-east-a__us-east-b", "z0__")
PROVISIONERS = (
    "kubernetes.io/aws-ebs",
    "kubernetes.io/gce-pd",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "ebs.csi.aws.com",
)
DRIVERS = (
    "ebs.csi.aws.com",
    "pd.csi.storage.gke.io",
    "disk.csi.azure.com",
    "cinder.csi.openstack.org",
    "pxd.portworx.com",
    "file.csi.azure.com",
)
FEATURES = ("RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport", "ZzzUnheardOf")
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}


def add_disks(draw: Draw, problem: Json) -> None:
    """Changes the storage of a problem that has some already."""
    for node in problem["nodes"]:
        _age_labels(draw, node["metadata"]["labels"])
        node["status"]["declaredFeatures"] = sorted(draw.some(FEATURES, 3))
        if draw.chance(0.7):  # else little comes as far as the volumes
            node["spec"].pop("taints", None)
            node["status"]["capacity"] |= ROOM
            node["status"]["allocatable"] |= ROOM
    for volume in problem["pvs"]:
        _age_volume(draw, volume)
    for storage_class in problem["storageClasses"]:
        if storage_class["metadata"]["name"] != "local" and draw.chance(0.4):
            storage_class["provisioner"] = draw.choice(PROVISIONERS)
    for csi_node in problem["csiNodes"]:
        limits = [(name, draw.randint(0, 2)) for name in draw.some(DRIVERS, len(DRIVERS))]
        csi_node["spec"]["drivers"] += [_driver(name, count) for name, count in limits]
    for pod in (*draw.some(problem["pods"], 6), problem["pod"]):
        for number in range(draw.choice((0, 1, 1, 2))):
            pod["spec"].setdefault("volumes", []).append({"name": f"in{number}", **_source(draw)})
    if draw.chance(0.25):
        _add_ephemeral(draw, problem)
    _need_features(draw, problem["pod"]["spec"])


def _age_labels(draw: Draw, labels: Json) -> None:
    if draw.chance(0.4):
        zone = labels.pop(ZONE, None)
        if zone and draw.chance(0.5):
            labels[OLD_ZONE] = zone


def _age_volume(draw: Draw, volume: Json) -> None:
    if draw.chance(0.4):
        del volume["spec"]["csi"]
        volume["spec"] |= _source(draw, is_volume=True)
    if draw.chance(0.4):
        labels = volume["metadata"].setdefault("labels", {})
        labels[draw.choice((ZONE, OLD_ZONE, REGION, OLD_REGION))] = draw.choice((*ZONE_SETS, "r0"))


def _driver(name: str, count: int) -> Json:
    return {"name": name, "nodeID": "n", "topologyKeys": [], "allocatable": {"count": count}}


def _source(draw: Draw, *, is_volume: bool = False) -> Json:
    """A disk of three that there are of each kind, for a volume or for a pod."""
    disk, read_only = draw.choice("abc"), {"readOnly": True} if draw.chance(0.4) else {}
    sources: list[Json] = [
        {"gcePersistentDisk": {"pdName": disk, **read_only}},
        {"awsElasticBlockStore": {"volumeID": draw.choice((f"vol-{disk}", f"aws://z/vol-{disk}"))}},
        {"azureDisk": {"diskName": disk, "diskURI": f"/disks/{disk}", "kind": "Managed"}},
        {"cinder": {"volumeID": disk}},
        {"portworxVolume": {"volumeID": disk}},
        {"vsphereVolume": {"volumePath": disk}},
    ]
    if is_volume:
        handle = draw.choice((f"vol-{disk}", f"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}"))
        sources.append({"csi": {"driver": draw.choice(DRIVERS[:2]), "volumeHandle": handle}})
        return draw.choice(sources)
    monitors = draw.some(("a", "b", "c"), 2) or ["a"]
    pool = draw.choice(("rbd", "pool"))
    sources.append({"rbd": {"monitors": monitors, "image": disk, "pool": pool, "user": "admin", **read_only}})
    sources.append({"iscsi": {"targetPortal": "t", "iqn": f"iqn.{disk}", "lun": 0, **read_only}})
    return draw.choice(sources)


def _add_ephemeral(draw: Draw, problem: Json) -> None:
    """The pending pod's own claim: made already, or not yet."""
    pod = problem["pod"]
    metadata = pod["metadata"]
    size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": size}}}
    pod["spec"].setdefault("volumes", []).append(volume)
    if draw.chance(0.2):
        return
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    problem["pvcs"].append(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": f"{metadata['name']}-own",
                "namespace": metadata["namespace"],
                "uid": "uid-own",
                "ownerReferences": [owner],
            },
            "spec": {**size, "volumeMode": "Filesystem", "storageClassName": draw.choice(("wait", "now", "local"))},
            "status": {"phase": "Pending"},
        }
    )


def _need_features(draw: Draw, spec: Json) -> None:
    if draw.chance(0.15):
        rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
        spec["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    if draw.chance(0.1):
        spec |= {"hostNetwork": True, "hostUsers": False}
