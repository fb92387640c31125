"""Random storage: classes, claims, volumes, CSI nodes and what pods mount of them."""

from __future__ import annotations

from tests.conformance.random_cluster import HOST, ZONE, Draw, Json

BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
DRIVER = "csi.example.com"
CLASSES = ("now", "wait", "wait-z1", "local")
MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod", "ReadOnlyMany")


def add_volumes(draw: Draw, problem: Json) -> None:
    """Gives the cluster storage, some running pods and the pending one claims on it."""
    nodes = [node["metadata"]["name"] for node in problem["nodes"]]
    problem["storageClasses"] = [_storage_class(name) for name in CLASSES]
    problem["csiNodes"] = [_csi_node(draw, name) for name in nodes if draw.chance(0.9)]
    problem["pvs"], problem["pvcs"] = [], []
    shared: list[tuple[str, str]] = []
    for index, pod in enumerate(draw.some(problem["pods"], 6)):
        _mount(draw, problem, pod, f"{index}-0", shared, bound_chance=0.95)
    for index in range(draw.randint(1, 3)):
        _mount(draw, problem, problem["pod"], f"p-{index}", shared, bound_chance=0.4)
    for index in range(draw.randint(0, 3)):
        problem["pvs"].append(_volume(draw, f"free-{index}", draw.choice(CLASSES), draw.choice(MODES), nodes))
    if draw.chance(0.3):
        _old_volume(draw, problem)
    if draw.chance(0.2):
        _track_capacity(draw, problem, nodes)
    if draw.chance(0.2):
        problem["volumeAttachments"] = [
            _attachment(index, draw.choice(nodes), draw.choice(problem["pvs"])["metadata"]["name"])
            for index in range(draw.randint(1, 3))
            if problem["pvs"]
        ]


def _storage_class(name: str) -> Json:
    metadata = {"name": name}
    made: Json = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": metadata,
        "provisioner": "kubernetes.io/no-provisioner" if name == "local" else DRIVER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate" if name == "now" else "WaitForFirstConsumer",
    }
    if name == "wait-z1":
        made["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z1"]}]}]
    return made


def _csi_node(draw: Draw, name: str) -> Json:
    driver: Json = {"name": DRIVER, "nodeID": name, "topologyKeys": [ZONE]}
    if draw.chance(0.9):
        driver["allocatable"] = {"count": draw.choice((1, 2, 2, 10))}
    drivers = [driver] if draw.chance(0.95) else []
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": drivers},
    }


def _mount(
    draw: Draw, problem: Json, pod: Json, key: str, shared: list[tuple[str, str]], *, bound_chance: float
) -> None:
    """One more volume of the pod: a claim of its own, one that another pod uses already, or one that is not there."""
    namespace = pod["metadata"]["namespace"]
    theirs = [name for place, name in shared if place == namespace]
    if theirs and draw.chance(0.3):
        _use(pod, draw.choice(theirs))
        return
    claim_name = f"claim-{key}"
    _use(pod, claim_name)
    if draw.chance(0.03):
        return  # the claim does not exist
    nodes = [node["metadata"]["name"] for node in problem["nodes"]]
    storage_class, mode = draw.choice(("wait", "wait", *CLASSES)), draw.choice(MODES[:3])
    is_bound = draw.chance(bound_chance)
    claim = _claim(draw, claim_name, namespace, storage_class, mode)
    if is_bound:
        claim["spec"]["volumeName"] = f"pv-{key}"
        claim["status"] = {"phase": draw.choice(("Bound",) * 30 + ("Lost",))}
        notes = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
        claim["metadata"]["annotations"] = notes
    if is_bound or draw.chance(0.4):
        volume = _volume(draw, key, storage_class, mode, nodes)
        if is_bound:
            volume["spec"]["claimRef"] = _reference(claim)
            volume["status"] = {"phase": "Bound"}
            if pod["spec"].get("nodeName"):
                volume["spec"].pop("nodeAffinity", None)
        elif draw.chance(0.3):  # bound beforehand, from the volume's side
            volume["spec"]["claimRef"] = {k: v for k, v in _reference(claim).items() if k != "uid"}
        if not (is_bound and draw.chance(0.04)):
            problem["pvs"].append(volume)
    problem["pvcs"].append(claim)
    shared.append((namespace, claim_name))


def _use(pod: Json, claim: str) -> None:
    volumes = pod["spec"].setdefault("volumes", [])
    if all(v.get("persistentVolumeClaim", {}).get("claimName") != claim for v in volumes):
        volumes.append({"name": f"v{len(volumes)}", "persistentVolumeClaim": {"claimName": claim}})


def _claim(draw: Draw, name: str, namespace: str, storage_class: str, mode: str) -> Json:
    claim: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}-{namespace}"},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": draw.choice(("10Gi", "10Gi", "15Gi"))}},
            "storageClassName": storage_class,
            "volumeMode": draw.choice(("Filesystem",) * 9 + ("Block",)),
        },
        "status": {"phase": "Pending"},
    }
    if draw.chance(0.08):
        claim["spec"]["selector"] = {"matchLabels": {"tier": "gold"}}
    if draw.chance(0.02):
        claim["metadata"] |= {"deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 0}
    kind = draw.random()
    if kind < 0.02:
        claim["spec"]["storageClassName"] = "gone"
    elif kind < 0.04:
        del claim["spec"]["storageClassName"]
    elif kind < 0.06:
        claim["spec"]["volumeAttributesClassName"] = "fast"
    elif kind < 0.15:
        claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": f"n{draw.randrange(4)}"}
    return claim


def _reference(claim: Json) -> Json:
    metadata = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
    }


def _volume(draw: Draw, key: str, storage_class: str, mode: str, nodes: list[str]) -> Json:
    metadata: Json = {"name": f"pv-{key}", "uid": f"pv-uid-{key}"}
    labels: Json = {}
    if draw.chance(0.2):
        labels[draw.choice((ZONE, ZONE, BETA_ZONE))] = draw.choice(("z0", "z2", "z1__z2"))
    if draw.chance(0.1):
        labels["tier"] = "gold"
    if labels:
        metadata["labels"] = labels
    spec: Json = {
        "accessModes": [mode],
        "capacity": {"storage": draw.choice(("10Gi", "10Gi", "10Gi", "5Gi", "20Gi"))},
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": storage_class,
        "volumeMode": "Filesystem",
        "csi": {"driver": DRIVER, "volumeHandle": f"h-{key}"},
    }
    if draw.chance(0.5):
        key_name, values = draw.choice(((ZONE, ["z0", "z1", "z2"]), (HOST, nodes)))
        expression = {"key": key_name, "operator": "In", "values": [draw.choice(values)]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    if draw.chance(0.03):
        metadata |= {"deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 0}
    if draw.chance(0.03):
        spec["volumeAttributesClassName"] = "fast"
    status = {"phase": draw.choice(("Available",) * 12 + ("Released",))}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec, "status": status}


def _old_volume(draw: Draw, problem: Json) -> None:
    """Disks named in the pod itself, which VolumeRestrictions keeps apart."""
    read_only = draw.chance(0.5)
    source = draw.choice(
        (
            {"gcePersistentDisk": {"pdName": "disk-1", "readOnly": read_only}},
            {"awsElasticBlockStore": {"volumeID": "vol-1", "readOnly": read_only}},
            {"rbd": {"monitors": ["a"], "image": "i", "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"}},
            {"iscsi": {"targetPortal": "p", "iqn": "iqn.1", "lun": 0, "readOnly": read_only}},
        )
    )
    for pod in (problem["pod"], *draw.some(problem["pods"], 2)):
        pod["spec"].setdefault("volumes", []).append({"name": "old", **source})


def _track_capacity(draw: Draw, problem: Json, nodes: list[str]) -> None:
    """A driver that says how much room it has where: VolumeBinding provisions only there."""
    problem["csiDrivers"] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": True, "storageCapacity": draw.chance(0.8)},
        }
    ]
    problem["csiStorageCapacities"] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": f"room-{index}", "namespace": "default"},
            "storageClassName": draw.choice(CLASSES[:3]),
            "nodeTopology": {"matchLabels": {ZONE: draw.choice(("z0", "z1", "z2"))}},
            "capacity": draw.choice(("5Gi", "10Gi", "100Gi")),
            **({"maximumVolumeSize": draw.choice(("1Gi", "50Gi"))} if draw.chance(0.3) else {}),
        }
        for index in range(draw.randint(0, 4))
    ]


def _attachment(index: int, node: str, volume: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": f"attachment-{index}"},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
        "status": {"attached": True},
    }
