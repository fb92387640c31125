"""Plans of gangs as a run draws them: API, size, late members, members that end, and gangs that never start.

A plan only has values, which depend on the generator alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from multisched.verify.gang_objects import TOPOLOGY
from tests.kit.world.labels import HOSTNAME, ZONE
from tests.kit.world.pod_manifests import small_spec

ACK: Final = "pod-group.scheduling.sigs.k8s.io/"
PLUGINS: Final = "scheduling.x-k8s.io/pod-group"
KOORDINATOR: Final = "gang.scheduling.koordinator.sh/"

SIZE: Final = (2, 8)
LATE: Final = 0.35
"""Share of gangs with late members."""
FAILING: Final = 0.3
SUCCEEDING: Final = 0.2
"""Shares of gangs with a member that fails, or succeeds, some time after it was bound."""
NEVER: Final = 0.25
"""Share of gangs that never start."""
TIGHT: Final = 0.3
"""Share of the other gangs that must run on one node that just has room for them."""
TIMEOUTS_S: Final = (10, 20, 40)
URGENT: Final = 0.2
"""Share of gangs that may preempt."""
GROUPED: Final = 0.5
"""Share of gangs of Koordinator's form, followed by another gang, that start together with it."""
PACKED_FROM: Final = 200
"""From this seed on gangs may require a topology domain. Earlier seeds keep their traces: some are known to detect defects."""
PACKED: Final = 0.5
"""Share of the gangs of these seeds that start alone and on any node."""
TOPOLOGIES: Final = (
    f"{ZONE}:required",
    f"{ZONE}:required",
    f"{HOSTNAME}:required",
    ZONE,
    f"{ZONE}:required,{HOSTNAME}",
)
TWO_SCHEDULERS: Final = 0.2
"""Share of gangs that start together but name two schedulers, and therefore never start."""


class Form(Enum):
    """The API that defines the members of a gang."""

    ACK = "labels of ACK"
    ACK_AND_GROUP = "labels of ACK, and a PodGroup"
    PLUGINS = "label of scheduler-plugins, and a PodGroup"
    KOORDINATOR = "annotations of Koordinator"


class NeverStarts(Enum):
    """The reason why a gang never starts."""

    TOO_FEW = "fewer members than its minimum"
    TOO_LARGE = "members that fit on no node"
    TOO_MANY = "more members than fit on its node"


CPU_OF: Final[Mapping[NeverStarts | None, str]] = {NeverStarts.TOO_LARGE: "200", NeverStarts.TOO_MANY: "600m"}
CPUS: Final = ("100m", "250m", "500m")


@dataclass(frozen=True, slots=True)
class GangPlan:
    """One gang."""

    name: str
    namespace: str
    scheduler: str
    form: Form
    size: int
    """Number of members that are created."""
    minimum: int
    late: int
    """Number of members that are created later."""
    timeout_s: int
    cpu: str
    node: str
    """The only node for its members; empty for any."""
    never_starts: NeverStarts | None
    failing: int
    """Number of bound members that fail and are recreated."""
    succeeding: int
    is_urgent: bool
    groups: tuple[str, ...] = ()
    """NAMESPACE/NAME of all gangs that start together, including this one; empty for most."""
    topology: str = ""
    """Topology levels, in the form of the annotation; empty for none."""

    @property
    def description(self) -> str:
        return f"gang: {self.form.value}" + (f", packed by {self.topology}" if self.topology else "")

    @property
    def has_group(self) -> bool:
        return self.form in (Form.PLUGINS, Form.ACK_AND_GROUP)


def drawn_gangs(
    rng: random.Random, names: Sequence[str], namespaces: Sequence[str], schedulers: Sequence[str], nodes: Sequence[str]
) -> list[GangPlan]:
    """Returns one gang for each name; two of Koordinator's form may start together. `nodes`: for gangs that use only one node."""
    plans = [_drawn(rng, name, rng.choice(namespaces), schedulers, nodes) for name in names]
    for at, (one, other) in enumerate(pairwise(plans)):
        if one.form is Form.KOORDINATOR and not one.groups and rng.random() < GROUPED:
            together = (f"{one.namespace}/{one.name}", f"{other.namespace}/{other.name}")
            plans[at] = replace(one, groups=together)
            scheduler = other.scheduler if rng.random() < TWO_SCHEDULERS else one.scheduler
            plans[at + 1] = replace(other, form=Form.KOORDINATOR, groups=together, scheduler=scheduler)
            break
    return plans


def with_topologies(rng: random.Random, plans: Sequence[GangPlan]) -> list[GangPlan]:
    """Returns the gangs; some of them require a topology domain."""
    return [
        replace(one, topology=rng.choice(TOPOLOGIES) if rng.random() < PACKED and not (one.groups or one.node) else "")
        for one in plans
    ]


def _drawn(rng: random.Random, name: str, namespace: str, schedulers: Sequence[str], nodes: Sequence[str]) -> GangPlan:
    never_starts = rng.choice(list(NeverStarts)) if rng.random() < NEVER else None
    size = SIZE[1] if never_starts is NeverStarts.TOO_MANY else rng.randint(*SIZE)
    minimum = {NeverStarts.TOO_MANY: size, NeverStarts.TOO_FEW: size + rng.randint(1, 3)}.get(
        never_starts or NeverStarts.TOO_LARGE
    )
    is_tight = never_starts is NeverStarts.TOO_MANY or (never_starts is None and rng.random() < TIGHT)
    return GangPlan(
        name=name,
        namespace=namespace,
        scheduler=rng.choice(schedulers),
        form=rng.choice(list(Form)),
        size=size,
        minimum=minimum or rng.choice((size, size, rng.randint(1, size))),
        late=rng.randint(1, size - 1) if rng.random() < LATE else 0,
        timeout_s=rng.choice(TIMEOUTS_S),
        cpu=CPU_OF.get(never_starts) or rng.choice(CPUS),
        node=rng.choice(nodes) if is_tight else "",
        never_starts=never_starts,
        failing=int(rng.random() < FAILING),
        succeeding=int(rng.random() < SUCCEEDING),
        is_urgent=rng.random() < URGENT,
    )


def member_manifest(plan: GangPlan, name: str) -> dict[str, Any]:
    """Returns the manifest of a member."""
    spec = small_spec(plan.scheduler, plan.cpu)
    if plan.node:
        spec["nodeSelector"] = {HOSTNAME: plan.node}
    if plan.is_urgent:
        spec["priorityClassName"] = "system-cluster-critical"
    labels, annotations = _membership(plan)
    if plan.topology and plan.form is not Form.PLUGINS:
        annotations = {**annotations, TOPOLOGY: plan.topology}
    metadata = {"name": name, "namespace": plan.namespace, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _membership(plan: GangPlan) -> tuple[dict[str, str], Mapping[str, str]]:
    labels = {"gang": plan.name}
    match plan.form:
        case Form.PLUGINS:
            return {**labels, PLUGINS: plan.name}, {}
        case Form.KOORDINATOR:
            annotations = {
                "name": plan.name,
                "min-available": str(plan.minimum),
                "total-number": str(plan.size),
                "waiting-time": f"{plan.timeout_s}s",
            }
            if plan.groups:
                annotations["groups"] = json.dumps(plan.groups)
            return labels, {f"{KOORDINATOR}{key}": value for key, value in annotations.items()}
    return {**labels, f"{ACK}name": plan.name, f"{ACK}min-available": str(plan.minimum)}, {}


def group_manifest(plan: GangPlan) -> dict[str, Any]:
    """Returns the manifest of the gang's PodGroup."""
    annotations = {TOPOLOGY: plan.topology} if plan.topology else {}
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": plan.name, "namespace": plan.namespace, "annotations": annotations},
        "spec": {"minMember": plan.minimum, "scheduleTimeoutSeconds": plan.timeout_s},
    }
