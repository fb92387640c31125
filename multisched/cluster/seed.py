"""The content of the demonstration cluster: nodes for three domains, and a workload that fits on them.

Pure functions: the same arguments give the same documents. All pods of `demo_workload(jobs, nodes)` fit on
`demo_nodes(nodes)` with their `demo_storage`, for up to JOB_PODS_MAX job pods on 300 nodes. Called by the demo, the `cluster`
command, the simulation and tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.cluster.admission.volume_rules import WAIT_FOR_FIRST_CONSUMER
from multisched.cluster.client.object_client import Document
from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER

WHOLE_DEMO_NODES = 300
"""Number of nodes to which the counts of _SERVICES, _TRAININGS, _INFERENCES and JOB_PODS refer."""

JOB_PODS = 1_000
"""Job pods on WHOLE_DEMO_NODES nodes."""

JOB_PODS_MAX = 20_000
"""Job pods that fit on the virtual nodes of `demo_nodes(300)` at once."""

GPU_MILLI_ANNOTATION = "multisched.io/gpu-milli"
GPU_KIND_LABEL = "multisched.io/gpu-kind"
VIRTUAL_TAINT = {"key": "virtual-kubelet.io/provider", "value": "multisched", "effect": "NoSchedule"}

_NAMESPACE = "default"
_REGION, _ZONES = "demo", ("demo-a", "demo-b", "demo-c")
_GPU_KINDS = ("a100", "l4")
_GPUS_PER_NODE = 8
_GPU_NODES_IN, _VIRTUAL_NODES_IN = 8, 6
"""One node in 8 has GPUs, and one in 6 is virtual."""
_IMAGE_PREFIX = "registry.multisched.io/demo"
_IMAGE_BYTES = 180_000_000
_VOLUMES_PER_NODE = 24
_JOB_PODS_EACH = 100

_SERVICES = (
    # name, replicas, cpu, memory, whether limits equal requests (QoS class Guaranteed)
    ("web", 150, "500m", "512Mi", False),
    ("api", 90, "1", "1Gi", True),
    ("search", 40, "2", "4Gi", False),
    ("ingest", 60, "750m", "1Gi", False),
    ("cache", 12, "1", "8Gi", True),
    ("reports", 48, "250m", "256Mi", False),
)
_SCRATCH = {"cache": "16Gi"}
"""Service -> size of the ephemeral volume of each of its pods. The volume has the default storage class."""

_TRAININGS = (("vision", 12, 4), ("language", 6, 8), ("speech", 16, 1))
"""Name, pods, whole GPUs per pod."""
_INFERENCES = (("classify", 24, 250), ("translate", 16, 500))
"""Name, replicas, thousandths of one GPU per pod."""


def demo_nodes(count: int) -> list[Document]:
    """Returns `count` nodes in three zones: one in eight has GPUs, one in six is virtual, and the others are `work` nodes."""
    nodes: list[Document] = []
    numbers = {"gpu": 0, "virtual": 0, "work": 0}
    for position in range(count):
        kind = _node_kind(position)
        number = numbers[kind]
        numbers[kind] += 1
        zone = _ZONES[number % len(_ZONES)]
        match kind:
            case "gpu":
                nodes.append(_gpu_node(number, zone))
            case "virtual":
                nodes.append(_virtual_node(number, zone))
            case _:
                nodes.append(_work_node(number, zone))
    return nodes


def demo_workload(job_pods: int | None = None, nodes: int = WHOLE_DEMO_NODES) -> list[Document]:
    """Returns manifests for all three domains in creation order; the Jobs are last and have `job_pods` pods in total (default: JOB_PODS).

    All other amounts, and JOB_PODS, scale with the number of nodes. Every service and the training `speech` have at least one pod.
    """
    manifests = [
        _service(name, max(1, scaled(replicas, nodes)), cpu, memory, is_guaranteed)
        for name, replicas, cpu, memory, is_guaranteed in _SERVICES
    ]
    for name, pods, gpus in _TRAININGS:
        count = max(scaled(pods, nodes), int(gpus == 1))
        manifests += [_training_pod(f"{name}-{number:02d}", name, gpus) for number in range(count)]
    for name, replicas, gpu_milli in _INFERENCES:
        count = scaled(replicas, nodes)
        manifests += [_inference(name, count, gpu_milli)] if count else []
    return manifests + _jobs(scaled(JOB_PODS, nodes) if job_pods is None else job_pods)


def demo_storage(nodes: Sequence[Document]) -> list[Document]:
    """Returns the fake provisioner's CSIDriver and storage classes, and a CSINode for each of these nodes except virtual ones.

    `fast` is the default class; its volumes are provisioned in the zone of the pod's node. Volumes of `shared` are provisioned when their
    claim is created, are accessible from every zone, and are retained when the claim is deleted.
    """
    driver: Document = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": FAKE_PROVISIONER},
        "spec": {"attachRequired": False, "podInfoOnMount": False},
    }
    is_default = {"storageclass.kubernetes.io/is-default-class": "true"}
    fast = _storage_class("fast", is_default, volumeBindingMode=WAIT_FOR_FIRST_CONSUMER, reclaimPolicy="Delete")
    shared = _storage_class("shared", {}, volumeBindingMode="Immediate", reclaimPolicy="Retain")
    is_virtual = [VIRTUAL_TAINT in node["spec"].get("taints", ()) for node in nodes]
    names = [node["metadata"]["name"] for node, virtual in zip(nodes, is_virtual, strict=True) if not virtual]
    return [driver, fast, shared, *map(_csi_node, names)]


def pods_by_scheduler(manifests: Sequence[Document]) -> dict[str, int]:
    """Returns schedulerName -> number of pods in these Pods, Deployments and Jobs."""
    counts: dict[str, int] = {}
    for manifest in manifests:
        spec = manifest["spec"]
        scheduler = spec.get("template", manifest)["spec"]["schedulerName"]
        counts[scheduler] = counts.get(scheduler, 0) + int(spec.get("completions", spec.get("replicas", 1)))
    return counts


def scaled(amount: int, nodes: int) -> int:
    """Scales an amount from WHOLE_DEMO_NODES to this number of nodes."""
    return amount * nodes // WHOLE_DEMO_NODES


# --- nodes -------------------------------------------------------------------------------------------------------


def _node_kind(position: int) -> str:
    if position % _GPU_NODES_IN == 1:
        return "gpu"
    return "virtual" if position % _VIRTUAL_NODES_IN == 2 else "work"


def _work_node(number: int, zone: str) -> Document:
    big = number % 4 == 3
    capacity = {"cpu": "32" if big else "16", "memory": "128Gi" if big else "64Gi", "pods": "110"}
    images = [name for name, *_ in _SERVICES if (number + len(name)) % 3 == 0]
    return fake_node(f"work-{number:03d}", zone, "work", capacity, images=images)


def _gpu_node(number: int, zone: str) -> Document:
    capacity = {"cpu": "96", "memory": "768Gi", "pods": "110", "nvidia.com/gpu": str(_GPUS_PER_NODE)}
    labels = {GPU_KIND_LABEL: _GPU_KINDS[number % len(_GPU_KINDS)]}
    images = [name for name, *_ in (*_TRAININGS, *_INFERENCES) if (number + len(name)) % 2 == 0]
    return fake_node(f"gpu-{number:03d}", zone, "gpu", capacity, labels=labels, images=images)


def _virtual_node(number: int, zone: str) -> Document:
    capacity = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}
    node = fake_node(f"virtual-{number:03d}", zone, "virtual", capacity, labels={"type": "virtual-kubelet"})
    node["spec"] = {"taints": [dict(VIRTUAL_TAINT)]}
    return node


def fake_node(
    name: str,
    zone: str,
    role: str,
    capacity: dict[str, str],
    *,
    labels: dict[str, str] | None = None,
    images: list[str] | None = None,
) -> Document:
    resources = {**capacity, "ephemeral-storage": "200Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/region": _REGION,
                "topology.kubernetes.io/zone": zone,
                f"node-role.kubernetes.io/{role}": "",
                **(labels or {}),
            },
        },
        "spec": {},
        "status": {
            "capacity": resources,
            "allocatable": dict(resources),
            "images": [{"names": [_image(image)], "sizeBytes": _IMAGE_BYTES} for image in images or ()],
        },
    }


# --- storage -----------------------------------------------------------------------------------------------------


def _storage_class(name: str, annotations: dict[str, str], **fields: str) -> Document:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": FAKE_PROVISIONER,
        **fields,
    }


def _csi_node(node: str) -> Document:
    topology = ["topology.kubernetes.io/zone"]
    room = {"count": _VOLUMES_PER_NODE}
    driver = {"name": FAKE_PROVISIONER, "nodeID": node, "topologyKeys": topology, "allocatable": room}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": node},
        "spec": {"drivers": [driver]},
    }


# --- workload ----------------------------------------------------------------------------------------------------


def _image(name: str) -> str:
    return f"{_IMAGE_PREFIX}/{name}:1.0"


def _service(name: str, replicas: int, cpu: str, memory: str, is_guaranteed: bool) -> Document:
    requests = {"cpu": cpu, "memory": memory}
    resources: Document = {"requests": requests}
    if is_guaranteed:
        resources["limits"] = dict(requests)
    spec = _pod_spec("forecast-scheduler", name, resources)
    if name in _SCRATCH:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": _SCRATCH[name]}}}
        spec["volumes"] = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]
    return _deployment(name, replicas, spec, annotations={})


def _training_pod(name: str, app: str, gpus: int) -> Document:
    amount = {"nvidia.com/gpu": str(gpus)}
    resources = {"requests": {"cpu": str(4 * gpus), "memory": f"{32 * gpus}Gi", **amount}, "limits": amount}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": _NAMESPACE, "labels": {"app": app}},
        "spec": _pod_spec("gpu-scheduler", app, resources),
    }


def _inference(name: str, replicas: int, gpu_milli: int) -> Document:
    spec = _pod_spec("gpu-scheduler", name, {"requests": {"cpu": "1", "memory": "4Gi"}})
    return _deployment(name, replicas, spec, annotations={GPU_MILLI_ANNOTATION: str(gpu_milli)})


def _jobs(pods: int) -> list[Document]:
    sizes = [_JOB_PODS_EACH] * (pods // _JOB_PODS_EACH) + [pods % _JOB_PODS_EACH]
    return [_job(f"batch-{number:03d}", size) for number, size in enumerate(sizes) if size]


def _job(name: str, pods: int) -> Document:
    spec = _pod_spec("job-scheduler", "batch", {"requests": {"cpu": "500m", "memory": "512Mi"}})
    labels = {"app": "batch"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": _NAMESPACE, "labels": labels},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Never"}},
        },
    }


def _deployment(name: str, replicas: int, spec: Document, *, annotations: dict[str, str]) -> Document:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": _NAMESPACE, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
        },
    }


def _pod_spec(scheduler: str, image: str, resources: Document) -> Document:
    return {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "main", "image": _image(image), "resources": resources}],
    }
