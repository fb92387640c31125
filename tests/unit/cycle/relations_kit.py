"""Pods that want to be near each other, far from each other, or spread, as documents drawn from one seed."""

from __future__ import annotations

import random

from multisched.testing.builders import Document, container, node_document, pod_document

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
KEYS = (ZONE, HOST, "rack")
APPS = ("web", "db", "cache")


class Drawn:
    """Everything that is drawn, from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def labels(self) -> dict[str, str]:
        labels = {"app": self.rng.choice(APPS)}
        return labels | ({"rev": self.rng.choice("12")} if self.chance(0.5) else {})

    def selector(self) -> Document:
        if self.chance(0.1):
            return {}
        if self.chance(0.3):
            return {"matchExpressions": [{"key": "rev", "operator": self.rng.choice(["Exists", "DoesNotExist"])}]}
        return {"matchLabels": {"app": self.rng.choice(APPS)}}

    def term(self) -> Document:
        term: Document = {"topologyKey": self.rng.choice(KEYS), "labelSelector": self.selector()}
        if self.chance(0.2):
            term["namespaces"] = ["other"]
        if self.chance(0.2):
            term["namespaceSelector"] = {"matchLabels": {"team": "x"}} if self.chance(0.7) else {}
        return term

    def weighted(self) -> Document:
        return {"weight": self.rng.randint(1, 100), "podAffinityTerm": self.term()}

    def side(self) -> Document:
        side: Document = {}
        if self.chance(0.5):
            side[REQUIRED] = [self.term() for _ in range(self.rng.randint(1, 2))]
        if self.chance(0.5):
            side[PREFERRED] = [self.weighted() for _ in range(self.rng.randint(1, 2))]
        return side

    def constraint(self) -> Document:
        return {
            "maxSkew": self.rng.randint(1, 3),
            "topologyKey": self.rng.choice(KEYS),
            "whenUnsatisfiable": self.rng.choice(["DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": self.selector(),
            "nodeAffinityPolicy": self.rng.choice(["Honor", "Ignore"]),
            "nodeTaintsPolicy": self.rng.choice(["Honor", "Ignore"]),
            "matchLabelKeys": ["rev"] if self.chance(0.2) else [],
        }

    def pod(self, name: str, node: str = "") -> Document:
        one = container(cpu=f"{100 * self.rng.randint(1, 4)}m")
        spec: Document = {}
        if self.chance(0.5):
            spec["affinity"] = {"podAffinity": self.side()} if self.chance(0.5) else {"podAntiAffinity": self.side()}
        if self.chance(0.5):
            spec["topologySpreadConstraints"] = [self.constraint() for _ in range(self.rng.randint(1, 3))]
        if self.chance(0.3):
            spec["nodeSelector"] = {"rack": self.rng.choice("ab")}
        namespace = self.rng.choice(["default", "default", "other"])
        return pod_document(name, one, node=node, namespace=namespace, labels=self.labels(), **spec)

    def node(self, name: str) -> Document:
        labels = {"rack": self.rng.choice("ab")} | ({ZONE: self.rng.choice("xyz")} if self.chance(0.9) else {})
        taints = [{"key": "t", "effect": "NoSchedule"}] if self.chance(0.2) else []
        return node_document(name, cpu="2", pods=20, labels=labels, taints=taints)
