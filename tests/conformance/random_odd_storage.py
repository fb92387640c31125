"""Rare values and forms of storage, on top of `random_volumes`: each is a change to a problem that is whole without it."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.random_cluster import HOST, REGION, ZONE, Draw, Json
from tests.conformance.random_volumes import DRIVER

BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
SIZES = ("0", "1", "1k", "10G", "10Gi", "10737418241", "1Ti", "9.5Gi")
MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod", "ReadOnlyMany")


def add_odd_storage(draw: Draw, problem: Json) -> None:
    """One to four kinds of changes to a problem that has storage."""
    for change in draw.sample(STORAGE_CHANGES, draw.randint(1, 4)):
        change(draw, problem)


def _classes(draw: Draw, problem: Json) -> None:
    """Classes with several topologies or with none, of any provisioner, by default, and one that says no mode."""
    for one in problem["storageClasses"]:
        kind = draw.random()
        if kind < 0.3:
            one["allowedTopologies"] = [_topology(draw) for _ in range(draw.randint(1, 3))]
        elif kind < 0.4:
            one["provisioner"] = draw.choice(("kubernetes.io/no-provisioner", "other.example.com"))
        elif kind < 0.5:
            one["metadata"]["annotations"] = {IS_DEFAULT: draw.choice(("true", "false"))}
        elif kind < 0.52:
            del one["volumeBindingMode"]
        elif kind < 0.6:
            one["volumeBindingMode"] = draw.choice(("Immediate", "WaitForFirstConsumer"))


def _topology(draw: Draw) -> Json:
    expressions = [
        {"key": key, "values": draw.sample(("z0", "z1", "n0", "n1", "r0", ""), draw.randint(1, 3))}
        for key in draw.sample((ZONE, HOST, REGION, "nowhere"), draw.randint(1, 2))
    ]
    return {"matchLabelExpressions": expressions}


def _claims(draw: Draw, problem: Json) -> None:
    """Claims of every size and several modes, with selectors, by the old annotation, without a class or of an empty one."""
    for claim in problem["pvcs"]:
        spec, kind = claim["spec"], draw.random()
        if kind < 0.15:
            spec["storageClassName"] = ""
        elif kind < 0.25:
            spec.pop("storageClassName", None)
        elif kind < 0.35:
            claim["metadata"].setdefault("annotations", {})[BETA_CLASS] = draw.choice(("now", "wait", "gone", ""))
        if draw.chance(0.4):
            spec["resources"] = {"requests": {"storage": draw.choice(SIZES)}}
        if draw.chance(0.3):
            spec["accessModes"] = draw.some(MODES, 3) or ["ReadWriteOnce"]
        if draw.chance(0.2):
            spec["selector"] = draw.choice(
                (
                    {},
                    {"matchExpressions": [{"key": "tier", "operator": draw.choice(("Exists", "DoesNotExist"))}]},
                    {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]},
                    {"matchLabels": {ZONE: "z1"}},
                )
            )
        if draw.chance(0.1):
            claim["status"] = {"phase": draw.choice(("Pending", "Bound", "Lost"))}


def _volumes(draw: Draw, problem: Json) -> None:
    """Volumes with any affinity, claimed by others, of other sources, of other sizes and modes."""
    for volume in problem["pvs"]:
        spec = volume["spec"]
        if draw.chance(0.4):
            terms = [_node_term(draw) for _ in range(draw.randint(1, 3))]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        if draw.chance(0.3):
            spec["capacity"] = {"storage": draw.choice(SIZES)}
        if draw.chance(0.3):
            spec["accessModes"] = draw.some(MODES, 4) or ["ReadWriteMany"]
        if draw.chance(0.15):
            spec.pop("csi", None)
            spec |= draw.choice(
                ({"nfs": {"server": "s", "path": "/"}}, {"local": {"path": "/d"}}, {"hostPath": {"path": "/d"}})
            )
        if draw.chance(0.1):
            spec.pop("storageClassName", None)
        if draw.chance(0.1):
            spec["claimRef"] = {
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": "claim-p-0",
                "uid": "other",
            }
        if draw.chance(0.1):
            volume["metadata"].setdefault("labels", {})["tier"] = draw.choice(("gold", ""))


def _node_term(draw: Draw) -> Json:
    return draw.choice(
        (
            {},
            {"matchExpressions": [{"key": "gen", "operator": draw.choice(("Gt", "Lt")), "values": ["5"]}]},
            {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["z0", "z2"]}]},
            {"matchExpressions": [{"key": "pool", "operator": draw.choice(("Exists", "DoesNotExist"))}]},
            {"matchFields": [{"key": "metadata.name", "operator": draw.choice(("In", "NotIn")), "values": ["n1"]}]},
            {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n0", "n1", "n2"]}]},
        )
    )


def _kubelets(draw: Draw, problem: Json) -> None:
    """Nodes whose kubelets tell no limit, a limit of nothing, no driver, or that in-tree disks are migrated."""
    for one in problem["csiNodes"]:
        kind = draw.random()
        if kind < 0.2:
            one["metadata"]["annotations"] = {MIGRATED: "kubernetes.io/aws-ebs,kubernetes.io/gce-pd"}
        elif kind < 0.4:
            one["spec"]["drivers"] = draw.choice(
                (
                    [],
                    [{"name": DRIVER, "nodeID": "n", "topologyKeys": None}],
                    [{"name": DRIVER, "nodeID": "n", "topologyKeys": [], "allocatable": {}}],
                    [{"name": DRIVER, "nodeID": "n", "topologyKeys": [], "allocatable": {"count": 0}}],
                )
            )


def _capacities(draw: Draw, problem: Json) -> None:
    """Room that is told for all nodes, for none, by expressions, or not told; and drivers that do not track it."""
    kind, metadata = "CSIStorageCapacity", {"namespace": "default"}
    problem["csiDrivers"] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"storageCapacity": draw.chance(0.9)} if draw.chance(0.9) else {},
        }
    ]
    problem["csiStorageCapacities"] = []
    for index in range(draw.randint(0, 5)):
        one: Json = {"kind": kind, "metadata": {**metadata, "name": f"odd-{index}"}, "storageClassName": "wait"}
        topology: Json | None = draw.choice(
            (
                None,
                {},
                {"matchLabels": {ZONE: draw.choice(("z0", "z1"))}},
                {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["ssd"]}]},
                {"matchExpressions": [{"key": "pool", "operator": "DoesNotExist"}]},
            )
        )
        if topology is not None:
            one["nodeTopology"] = topology
        if draw.chance(0.8):
            one["capacity"] = draw.choice(SIZES)
        if draw.chance(0.3):
            one["maximumVolumeSize"] = draw.choice(SIZES)
        problem["csiStorageCapacities"].append({"apiVersion": "storage.k8s.io/v1", **one})


def _mounts(draw: Draw, problem: Json) -> None:
    """Volumes that bear on nothing, one claim mounted twice, inline CSI volumes, a claim of another pod's namespace."""
    for pod in (*draw.some(problem["pods"], 4), problem["pod"]):
        volumes = pod["spec"].setdefault("volumes", [])
        named = [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]
        for index in range(draw.randint(1, 3)):
            source: Json = draw.choice(
                (
                    {"emptyDir": {"sizeLimit": "1Gi"}},
                    {"configMap": {"name": "c"}},
                    {"secret": {"secretName": "s"}},
                    {"csi": {"driver": DRIVER}},
                    {"hostPath": {"path": "/d"}},
                    {"persistentVolumeClaim": {"claimName": draw.choice((*named, "gone")), "readOnly": True}},
                    {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
                )
            )
            volumes.append({"name": f"odd-{index}", **source})


def _attachments(draw: Draw, problem: Json) -> None:
    """Attachments that are being undone, of volumes that nobody uses, of nodes that are gone, of volumes in their own spec."""
    problem["volumeAttachments"] = []
    for index in range(draw.randint(1, 4)):
        source: Json = {
            "persistentVolumeName": draw.choice([v["metadata"]["name"] for v in problem["pvs"]] or ["gone"])
        }
        if draw.chance(0.3):
            source = {"inlineVolumeSpec": {"csi": {"driver": DRIVER, "volumeHandle": f"h-{index}"}, "accessModes": []}}
        metadata: Json = {"name": f"attachment-{index}"}
        if draw.chance(0.2):
            metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        spec = {
            "attacher": draw.choice((DRIVER, "other")),
            "nodeName": draw.choice(("n0", "n1", "n2", "gone")),
            "source": source,
        }
        problem["volumeAttachments"].append(
            {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": metadata, "spec": spec}
        )


STORAGE_CHANGES: tuple[Callable[[Draw, Json], None], ...] = (
    _classes,
    _claims,
    _volumes,
    _kubelets,
    _capacities,
    _mounts,
    _attachments,
)
