"""A cluster whose domains share one quota tree although different replicas lead them, with a judge of every level.

Nodes have room for more than the quotas allow, so that only the quotas limit what is bound.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import yaml

from multisched.model.wire import MERGE_PATCH
from tests.kit import definitions
from tests.sim.slices import SliceCluster

SLICES: Final = "/apis/multisched.io/v1alpha1/slicesets"
TREES: Final = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
FIRST, SECOND, THIRD = "web", "batch", "etl"
DOMAINS: Final = (FIRST, SECOND, THIRD)
TREE_LAG_S: Final = 60.0
"""After so long, no replica knows a tree that was replaced."""
LEAVES: Final = {"a": "root.x", "b": "root.x", "c": "root"}
"""Leaf, which is the name of its namespace as well -> the level above it."""


def configuration(*domains: str) -> str:
    """Each domain has nodes of its own, by label; the first one also the rest."""
    return yaml.safe_dump(
        {
            "apiVersion": "multisched.io/v1",
            "kind": "MultischedConfiguration",
            "lease": {"perDomain": True},
            "domains": [
                {"name": name, "nodes": {"rule": "rest" if name == domains[0] else "labelled"}} for name in domains
            ],
        }
    )


def tree(root: int, x: int, **leaves: tuple[int, int]) -> dict[str, Any]:
    """Returns the root of a tree of whole CPUs. `x`: max of the level above a and b. `leaves`: min and max of a and b, and of c if the
    tree has it.
    """

    def node(name: str, least: int, most: int, **more: Any) -> dict[str, Any]:
        return {"name": name, "min": {"cpu": least}, "max": {"cpu": most}, **more}

    made = {name: node(name, *amounts, namespaces=[name]) for name, amounts in leaves.items()}
    least = made["a"]["min"]["cpu"] + made["b"]["min"]["cpu"]
    below_root = [node("x", least, x, children=[made["a"], made["b"]]), *(made[name] for name in leaves if name == "c")]
    return node("root", root, root, children=below_root)


@dataclass
class QuotaCluster(SliceCluster):
    """The cluster, its tree, and what its pods use."""

    limits: dict[str, float] = field(default_factory=dict)
    """Level -> the largest max that a replica may still know, in thousandths of CPUs."""
    _trees: list[dict[str, float]] = field(default_factory=list)
    """The maxima of trees that a replica may still know, the newest last."""
    used: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    async def begin(
        self, domains: tuple[str, ...], root: dict[str, Any], *, nodes: int = 2, slices: bool = True
    ) -> None:
        """Makes nodes, namespaces, definitions and the tree."""
        for one in definitions.all_definitions():
            if slices or one is not definitions.definition("slicesets"):
                await self.send("POST", definitions.PATH, one)
        for domain in domains:
            for number in range(nodes):
                await self.add_node(f"{domain}-{number}", {"multisched.io/domain": domain})
        for leaf in LEAVES:
            await self.send("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": leaf}})
        metadata = {"name": "teams", "namespace": "kube-system"}
        kind = {"apiVersion": "scheduling.sigs.k8s.io/v1beta1", "kind": "ElasticQuotaTree"}
        answer = await self.send("POST", TREES, {**kind, "metadata": metadata, "spec": {"root": root}})
        assert answer.status == 201, answer.body
        self._trees = [limits_of(root)]
        self._limit()

    async def change_tree(self, root: dict[str, Any], *, is_valid: bool = True) -> None:
        """Changes the tree. A max that falls holds for the judge once every replica knows it."""
        if is_valid:
            self._trees.append(limits_of(root))
            self._limit()
            self.loop.call_later(TREE_LAG_S, self._forget_tree)
        await self.send("PATCH", f"{TREES}/teams", {"spec": {"root": root}}, MERGE_PATCH)

    def _forget_tree(self) -> None:
        self._trees.pop(0)
        self._limit()

    def _limit(self) -> None:
        levels = {level for one in self._trees for level in one}
        self.limits = {level: max(one.get(level, math.inf) for one in self._trees) for level in levels}
        if self.limits["root.c"] == math.inf:
            self.limits["root"] = math.inf  # pods in the namespace of c count nowhere for some replica

    async def add(self, domain: str, leaf: str, cpu: str = "1", **rest: Any) -> str:
        """Creates a pod of the domain in the leaf's namespace."""
        self.pods += 1
        name = f"{domain}-{self.pods}"
        containers = [{"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}]
        spec = {"schedulerName": f"{domain}-scheduler", "containers": containers, **rest}
        await self.send(
            "POST", f"/api/v1/namespaces/{leaf}/pods", {"kind": "Pod", "metadata": {"name": name}, "spec": spec}
        )
        return name

    async def delete(self, leaf: str, name: str) -> None:
        await self.send("DELETE", f"/api/v1/namespaces/{leaf}/pods/{name}?gracePeriodSeconds=0")

    async def judge_levels(self) -> None:
        """Sums the requests of the pods below each level over a watch of its own."""
        pods: dict[str, tuple[str, int]] = {}
        async with self.api.stream("/api/v1/pods?watch=true", idle_timeout_s=1e9) as lines:
            async for line in lines:
                event = orjson.loads(line)
                pod = event["object"]
                before = pods.pop(pod["metadata"]["uid"], None)
                if before is not None:
                    self._count(*before, -1)
                if event["type"] == "DELETED" or not pod["spec"].get("nodeName"):
                    continue
                milli = sum(_milli(one["resources"]["requests"]["cpu"]) for one in pod["spec"]["containers"])
                leaf = pod["metadata"]["namespace"]
                pods[pod["metadata"]["uid"]] = leaf, milli
                self._count(leaf, milli, 1)
                for level in levels_of(leaf) if before is None else ():
                    if self.used[level] > self.limits[level]:
                        self.broken.append(
                            f"I14: {level} uses {self.used[level]} of {self.limits[level]} mCPU at {self.loop.time():.1f} s"
                        )

    async def end_evicted(self, wide: random.Random | None) -> None:
        """Ends pods that are being deleted, as kubelets do."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 3.0))
            for pod in orjson.loads((await self.send("GET", "/api/v1/pods")).body)["items"]:
                if pod["metadata"].get("deletionTimestamp"):
                    await self.delete(pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _count(self, leaf: str, milli: int, sign: int) -> None:
        for level in levels_of(leaf):
            self.used[level] += sign * milli
            self.most[level] = max(self.most[level], self.used[level])

    def running(self, domain: str, leaf: str = "") -> list[str]:
        """Returns the names of the domain's bound pods."""
        return [
            pod.name
            for pod in self.stored("pods")
            if pod.node and pod.name.startswith(f"{domain}-") and leaf in ("", pod.namespace)
        ]


def levels_of(leaf: str) -> tuple[str, ...]:
    if leaf not in LEAVES:
        return ()
    above = LEAVES[leaf]
    return (f"{above}.{leaf}", above, "root") if above != "root" else (f"root.{leaf}", "root")


def limits_of(root: dict[str, Any]) -> dict[str, float]:
    """Returns level -> its max in thousandths of CPUs; without a leaf c, none counts for it."""
    found: dict[str, float] = {"root": 1000 * root["max"]["cpu"]}
    for one in root["children"]:
        found[f"root.{one['name']}"] = 1000 * one["max"]["cpu"]
        found |= {
            f"root.{one['name']}.{child['name']}": 1000 * child["max"]["cpu"] for child in one.get("children", ())
        }
    return found if "root.c" in found else found | {"root.c": math.inf}


def _milli(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)
