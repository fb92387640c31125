"""The objects that the demo creates in addition to the workload of `cluster.seed`: two teams under quotas, a gang, image jobs on loan,
and a pod that fits on no node.

Pure functions: the same number of nodes gives the same documents. All amounts scale with it and fit in addition to the workload.
The first act is created at once. The late act is created when the first is bound: it completes the gang and reclaims quota.
`recalling` is created only without `--once`: it needs CPU that is on loan.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

import msgspec
import yaml

from multisched.cluster.client.object_client import Document
from multisched.cluster.seed import GPU_KIND_LABEL, scaled
from multisched.model.gang import ACK_MIN, ACK_NAME

BORROWER, OWNER = "team-red", "team-blue"
"""Namespaces: the borrower uses the idle quota of the owner until the owner requests it."""
GANG: Final = "llm"
REFUSED: Final = "too-big"
NAMESPACE: Final = "default"
POD_CPU: Final = 2
"""Cores requested by each pod of a team."""
REFUSED_CPU: Final = 40
"""More than any `work` node has."""
LENT_NODES: Final = {GPU_KIND_LABEL: "a100"}
"""Labels of the GPU nodes whose free CPU jobs may use."""
IMAGES: Final = "images"
IMAGE_CPU: Final = 4
"""Cores requested by each pod that resizes images on GPU nodes."""
RECALLING: Final = "retrain"

_BORROWERS, _BORROWERS_MIN = 20, 4
_GANG_MEMBERS, _GANG_MEMBERS_MIN, _GANG_GPUS = 8, 2, 2
_IMAGE_PODS = 60
_IMAGE: Final = "registry.multisched.io/demo"
_DEFINITIONS: Final = "elasticquotatrees.yaml"


class World(msgspec.Struct, frozen=True):
    """The amounts of all objects."""

    nodes: int
    gang_members: int
    borrowers: int
    """Pods of the borrower: they fill the whole tree, half of which is guaranteed to the owner."""
    images: int
    """Pods that resize images."""

    @property
    def owners(self) -> int:
        """Returns the number of pods of the owner; as many pods of the borrower are evicted for them."""
        return self.borrowers // 2

    @property
    def total_cpu(self) -> int:
        """Returns the cores of the whole tree."""
        return self.borrowers * POD_CPU

    @property
    def min_cpu(self) -> int:
        """Returns the cores guaranteed to each team."""
        return self.owners * POD_CPU


def world_of(nodes: int, *, has_loan: bool = True) -> World:
    """Returns the amounts that fit on `demo_nodes(nodes)`. `has_loan`: jobs may use nodes of the gpu domain."""
    members = max(_GANG_MEMBERS_MIN, scaled(_GANG_MEMBERS, nodes))
    borrowers = max(_BORROWERS_MIN, 2 * scaled(_BORROWERS // 2, nodes))
    return World(nodes, members, borrowers, max(1, scaled(_IMAGE_PODS, nodes)) if has_loan else 0)


def ground(world: World) -> list[Document]:
    """Returns the objects that must exist before the scheduler starts, in order: the CRD of quota trees, namespaces, a tree."""
    definition = yaml.safe_load(files("multisched.demo").joinpath(_DEFINITIONS).read_text("utf-8"))
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (BORROWER, OWNER)]
    return [definition, *namespaces, _tree(world)]


def first_act(world: World) -> list[Document]:
    """Returns all members of the gang except the last, the pod that fits on no node, the borrowing team, and the image jobs."""
    members = [_member(world, number) for number in range(world.gang_members - 1)]
    images = [_images(world)] if world.images else []
    return [*members, _refused(), _team(BORROWER, "render", world.borrowers), *images]


def late_act(world: World) -> list[Document]:
    """Returns the last member of the gang, and the team that reclaims its quota."""
    return [_member(world, world.gang_members - 1), _team(OWNER, "study", world.owners)]


def recalling(node: str, cpu_milli: int) -> list[Document]:
    """Returns a pod of the gpu domain that requests `cpu_milli` on this node."""
    requests = {"cpu": f"{cpu_milli}m", "memory": "1Gi"}
    spec = _spec("gpu-scheduler", RECALLING, {"requests": requests})
    return [_pod(RECALLING, {"app": RECALLING}, {**spec, "nodeSelector": {"kubernetes.io/hostname": node}})]


def feasible_pods(world: World) -> dict[str, int]:
    """Returns schedulerName -> number of feasible pods in both acts."""
    return {"gpu-scheduler": world.gang_members, "job-scheduler": world.borrowers + world.owners + world.images}


def gang_pods(world: World) -> list[str]:
    """Returns the names of the gang's members."""
    return [f"{GANG}-{number:02d}" for number in range(world.gang_members)]


def _tree(world: World) -> Document:
    whole, half = {"cpu": str(world.total_cpu)}, {"cpu": str(world.min_cpu)}
    leaves = [{"name": name, "min": half, "max": whole, "namespaces": [name]} for name in (BORROWER, OWNER)]
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "teams", "namespace": "kube-system"},
        "spec": {"root": {"name": "root", "min": whole, "max": whole, "children": leaves}},
    }


def _team(namespace: str, name: str, replicas: int) -> Document:
    spec = _spec("job-scheduler", name, {"requests": {"cpu": str(POD_CPU), "memory": "1Gi"}})
    return _deployment(namespace, name, replicas, spec)


def _images(world: World) -> Document:
    spec = _spec("job-scheduler", IMAGES, {"requests": {"cpu": str(IMAGE_CPU), "memory": "1Gi"}})
    return _deployment(NAMESPACE, IMAGES, world.images, {**spec, "nodeSelector": LENT_NODES})


def _deployment(namespace: str, name: str, replicas: int, spec: Document) -> Document:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _member(world: World, number: int) -> Document:
    amount = {"nvidia.com/gpu": str(_GANG_GPUS)}
    requests = {"cpu": str(4 * _GANG_GPUS), "memory": f"{32 * _GANG_GPUS}Gi", **amount}
    labels = {"app": GANG, ACK_NAME: GANG, ACK_MIN: str(world.gang_members)}
    return _pod(
        gang_pods(world)[number], labels, _spec("gpu-scheduler", GANG, {"requests": requests, "limits": amount})
    )


def _refused() -> Document:
    requests = {"cpu": str(REFUSED_CPU), "memory": "4Gi"}
    return _pod(REFUSED, {"app": REFUSED}, _spec("forecast-scheduler", REFUSED, {"requests": requests}))


def _pod(name: str, labels: dict[str, str], spec: Document) -> Document:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _spec(scheduler: str, image: str, resources: Document) -> Document:
    return {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": f"{_IMAGE}/{image}:1.0", "resources": resources}],
    }


def cron(number: int, pods: int) -> Sequence[Document]:
    """Returns a Job with a small burst of pods, deleted after it has finished, so that the demo always shows activity."""
    labels = {"app": "cron"}
    spec = _spec("job-scheduler", "cron", {"requests": {"cpu": "250m", "memory": "256Mi"}})
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"cron-{number:04d}", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "ttlSecondsAfterFinished": 10,
            "template": {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Never"}},
        },
    }
    return [job]
