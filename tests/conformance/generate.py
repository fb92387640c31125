"""Makes scheduling problems from seeds: `problem(family, seed)` is the same wherever it is called.

    python -m tests.conformance.generate --family spread --seed 7 --count 100 > problems.jsonl

The families are those of the recorded problems and three more (disks, dense, odd), and each draws from everything the API allows that
bears on it. A problem's id names its family and seed, so it can be made again from the id alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

import orjson

from tests.conformance.random_cluster import NAMESPACES, Draw, Json, Wishes, make_nodes, make_pod
from tests.conformance.random_disks import add_disks
from tests.conformance.random_odd_storage import add_odd_storage
from tests.conformance.random_oddities import add_oddities
from tests.conformance.random_profiles import make_profile
from tests.conformance.random_relations import (
    add_node_affinity,
    add_pod_affinity,
    add_required_features,
    add_spread,
    disruption_budgets,
    workload_objects,
)
from tests.conformance.random_volumes import add_volumes

MOST_NODES = 12
LARGE_NODES, HUGE_NODES = (60, 110), (280, 520)
"""Beyond 256 rows the columns are read in other ways."""
HIGH_PRIORITY = 1000


def problem(family: str, seed: int) -> Json:
    """The problem of this family and seed."""
    draw = Draw(f"{family}/{seed}")
    made: Json = {"id": f"{family}-{seed}", "family": family, "namespaces": _namespaces(draw)}
    FAMILIES[family](draw, made)
    return made


def _namespaces(draw: Draw) -> list[Json]:
    found = []
    for name in NAMESPACES:
        labels = {"kubernetes.io/metadata.name": name}
        if name != "default":
            labels["team"] = name[-1]
        found.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    if draw.chance(0.03):
        found.pop()  # a pod may outlive what the scheduler knows of its namespace
    return found


def _fill(draw: Draw, made: Json, wishes: Wishes, *, count: int = 0, per_node: int = 4) -> None:
    """Nodes, pods on them and the pending pod."""
    made["nodes"] = make_nodes(draw, count or draw.randint(3, MOST_NODES))
    made["pods"] = []
    taken: dict[str, set[tuple[str, int, str]]] = {}
    for node in made["nodes"]:
        for _ in range(draw.randint(0, per_node)):
            name = f"p{len(made['pods'])}"
            made["pods"].append(make_pod(draw, name, wishes, node=node["metadata"]["name"]))
    made["pod"] = make_pod(draw, "pending", wishes)
    for pod in (*made["pods"], made["pod"]):
        _keep_ports_apart(pod, taken.setdefault(pod["spec"].get("nodeName", ""), set()))


def _keep_ports_apart(pod: Json, taken: set[tuple[str, int, str]]) -> None:
    """No two containers on a node hold the same port: the API server refuses them in one pod, the kubelet in two.

    Where two do, kube-scheduler forgets the port as soon as one of them goes; we do not, and nobody can see it.
    """
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        kept = []
        for port in container.get("ports", ()):
            key = (port["protocol"], port.get("hostPort", 0), port.get("hostIP", "0.0.0.0"))
            if key not in taken or "hostPort" not in port:
                taken.add(key)
                kept.append(port)
        if kept:
            container["ports"] = kept
        else:
            container.pop("ports", None)


def _resources(draw: Draw, made: Json) -> None:
    heavy = Wishes(extended=0.3, init_containers=0.4, overhead=0.2, pod_level=0.1, resized=0.2, heavy=0.4)
    _fill(draw, made, heavy, per_node=3)


def _scoring(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(requests=0.6, init_containers=0.3, overhead=0.2, resized=0.2))


def _taints(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(tolerations=0.9), per_node=1)


def _node_affinity(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(selectors=0.4), per_node=1)
    add_node_affinity(draw, made["pod"], len(made["nodes"]))
    if draw.chance(0.05):
        made["pod"]["spec"]["nodeSelector"] = {"disk": "ssd", "missing": "x"}


def _pod_affinity(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(requests=0.3))
    for pod in made["pods"]:
        if draw.chance(0.3):
            add_pod_affinity(draw, pod, required=0.3, preferred=0.5)
    add_pod_affinity(draw, made["pod"])


def _spread(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(requests=0.3, selectors=0.15, tolerations=0.3))
    add_spread(draw, made["pod"])
    if draw.chance(0.3):
        add_node_affinity(draw, made["pod"], len(made["nodes"]))


def _default_spread(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(requests=0.3, selectors=0.1))
    workload_objects(draw, made)


def _ports(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(ports=0.6, init_containers=0.3), per_node=2)


def _images(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(init_containers=0.4), per_node=1)


def _preemption(draw: Draw, made: Json) -> None:
    """Full nodes; sometimes all alike and with pods alike, so that criteria are tied."""
    _fill(draw, made, Wishes(heavy=0.7, terminating=0.04, ports=0.1), per_node=8)
    pod = made["pod"]
    if draw.chance(0.2):
        made["pods"] = [
            make_pod(draw, f"p{i}", Wishes(), node=n["metadata"]["name"]) for i, n in enumerate(made["nodes"])
        ]
        for other in made["pods"]:
            other["spec"]["priority"] = 0
            other["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1500m"}}
        for node in made["nodes"]:
            node["status"]["allocatable"]["cpu"] = "3"
    pod["spec"]["priority"] = draw.choice((HIGH_PRIORITY, HIGH_PRIORITY, 100, 5))
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": draw.choice(("2", "4", "6")), "memory": "1Gi"}}
    if draw.chance(0.1):
        pod["spec"]["preemptionPolicy"] = "Never"
    for other in made["pods"]:
        if draw.chance(0.1):
            add_pod_affinity(draw, other, required=0.6, preferred=0.0)
    kind = draw.random()
    if kind < 0.15:
        add_pod_affinity(draw, pod, required=0.6, preferred=0.0)
    elif kind < 0.3:
        add_spread(draw, pod)
    if draw.chance(0.7):
        made["pdbs"] = disruption_budgets(draw, made["pods"])
    if draw.chance(0.15):
        pod["status"]["nominatedNodeName"] = draw.choice(made["nodes"])["metadata"]["name"]


def _nominated(draw: Draw, made: Json) -> None:
    """Pending pods that preemption has promised a node; their room counts, their affinity may, against and for."""
    wishes = Wishes(heavy=0.5, ports=0.2)
    _fill(draw, made, wishes, per_node=2)
    for index in range(draw.randint(1, 4)):
        other = make_pod(draw, f"nominated-{index}", wishes)
        other["status"]["nominatedNodeName"] = draw.choice(made["nodes"])["metadata"]["name"]
        other["spec"]["priority"] = draw.choice((0, 50, HIGH_PRIORITY))
        if draw.chance(0.3):
            add_pod_affinity(draw, other, required=0.5, preferred=0.3)
        made["pods"].append(other)
    kind = draw.random()
    if kind < 0.3:
        add_pod_affinity(draw, made["pod"])
    elif kind < 0.5:
        add_spread(draw, made["pod"])
    if draw.chance(0.2):
        made["pod"]["status"]["nominatedNodeName"] = draw.choice(made["nodes"])["metadata"]["name"]


def _volumes(draw: Draw, made: Json) -> None:
    _fill(draw, made, Wishes(requests=0.3), per_node=2)
    add_volumes(draw, made)
    if draw.chance(0.3):
        made["pod"]["spec"]["priority"] = HIGH_PRIORITY


def _disks(draw: Draw, made: Json) -> None:
    _volumes(draw, made)
    add_disks(draw, made)


def _mixed(draw: Draw, made: Json) -> None:
    wishes = replace(Wishes(), heavy=draw.choice((0.0, 0.6)), ports=0.1, selectors=0.1)
    _fill(draw, made, wishes, per_node=draw.choice((2, 6)))
    _relate(draw, made)


def _relate(draw: Draw, made: Json) -> None:
    pod = made["pod"]
    for other in made["pods"]:
        if draw.chance(0.15):
            add_pod_affinity(draw, other, required=0.3, preferred=0.4)
    if draw.chance(0.3):
        add_node_affinity(draw, pod, len(made["nodes"]))
    if draw.chance(0.4):
        add_pod_affinity(draw, pod, required=0.25, preferred=0.5)
    if draw.chance(0.4):
        add_spread(draw, pod)
    elif draw.chance(0.5):
        workload_objects(draw, made)
    if draw.chance(0.15):
        add_volumes(draw, made)
    if draw.chance(0.1):
        add_required_features(draw, made)
    if draw.chance(0.3):
        pod["spec"]["priority"] = HIGH_PRIORITY
        made["pdbs"] = disruption_budgets(draw, made["pods"])


def _profiles(draw: Draw, made: Json) -> None:
    _mixed(draw, made)
    made["profile"] = make_profile(draw)


def _large(draw: Draw, made: Json) -> None:
    size = HUGE_NODES if draw.chance(0.1) else LARGE_NODES
    _fill(draw, made, Wishes(heavy=0.2, ports=0.05), count=draw.randint(*size), per_node=5)
    _relate(draw, made)


def _dense(draw: Draw, made: Json) -> None:
    """A few nodes and every feature at once: each plugin has something to say about almost every one of them."""
    wishes = Wishes(0.7, 0.2, 0.2, 0.1, 0.1, 0.2, 0.4, 0.15, 0.3, 0.1, 0.3)
    _fill(draw, made, wishes, count=draw.randint(2, 7), per_node=3)
    pod = made["pod"]
    for other in made["pods"]:
        if draw.chance(0.4):
            add_pod_affinity(draw, other, required=0.4, preferred=0.5)
    if draw.chance(0.6):
        add_node_affinity(draw, pod, len(made["nodes"]))
    if draw.chance(0.6):
        add_pod_affinity(draw, pod, required=0.5, preferred=0.6)
    if draw.chance(0.6):
        add_spread(draw, pod)
    else:
        workload_objects(draw, made)
    if draw.chance(0.7):
        add_volumes(draw, made)
    if draw.chance(0.2):
        add_required_features(draw, made)
    if draw.chance(0.05):
        pod["spec"]["nodeName"] = draw.choice(made["nodes"])["metadata"]["name"]  # no queue holds it; NodeName knows it
    if draw.chance(0.5):
        made["profile"] = make_profile(draw)


def _odd(draw: Draw, made: Json) -> None:
    """A problem of another family, with rare values and forms in it."""
    draw.choice(ORDINARY)(draw, made)
    if "storageClasses" in made and draw.chance(0.8):
        add_odd_storage(draw, made)
    if draw.chance(0.7):
        add_oddities(draw, made)


ORDINARY = (_resources, _spread, _pod_affinity, _preemption, _nominated, _volumes, _disks, _mixed, _profiles, _dense)

FAMILIES: dict[str, Callable[[Draw, Json], None]] = {
    "resources": _resources,
    "scoring": _scoring,
    "taints": _taints,
    "node_affinity": _node_affinity,
    "pod_affinity": _pod_affinity,
    "spread": _spread,
    "default_spread": _default_spread,
    "ports": _ports,
    "images": _images,
    "preemption": _preemption,
    "nominated": _nominated,
    "volumes": _volumes,
    "disks": _disks,
    "mixed": _mixed,
    "profiles": _profiles,
    "large": _large,
    "dense": _dense,
    "odd": _odd,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILIES), action="append", help="this family; may be given again")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10, help="problems per family")
    options = parser.parse_args()
    for family in options.family or FAMILIES:
        for seed in range(options.seed, options.seed + options.count):
            sys.stdout.buffer.write(orjson.dumps(problem(family, seed)) + b"\n")


if __name__ == "__main__":
    main()
