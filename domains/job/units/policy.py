"""Policies: which pods they select, their units in order, and when a pod may go on to the next unit. Immutable.

Source: ACK's documentation of ResourcePolicy (scheduling.alibabacloud.com/v1alpha1); README.md names the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec
import numpy as np

from domains.job.virtual_nodes import is_virtual, labelled_rows, virtual_rows
from multisched.framework.node_view import Bools, NodeView, Rows
from multisched.framework.normalize import MAX_SCORE
from multisched.model.objects import Node, Pod, Requests
from multisched.model.selectors import LabelSelector

UNITS_MAX: Final = MAX_SCORE
"""One score for each unit, and 0 for nodes of no unit."""
TIMEOUT_S: Final = 900.0
"""Default of whenTryNextUnits.timeout."""
WAIT_LABEL: Final = "k8s.aliyun.com/resource-policy-wait-for-ecs-scaling"
"""`true` in a unit's podLabels: pods wait there for an autoscaler until the timeout. Neither put on pods nor counted."""

NO_GROUP: Final[tuple[str, ...]] = ()


class Next(Enum):
    """When a pod may go on to the next unit: `whenTryNextUnits.policy`."""

    LACK_OR_MAX = "LackResourceOrExceedMax"
    MAX = "ExceedMax"
    TIMEOUT_OR_MAX = "TimeoutOrExceedMax"
    LACK_AND_NONE_TERMINATING = "LackResourceAndNoTerminating"
    TIMEOUT = "Timeout"


class Unit(msgspec.Struct, frozen=True):
    """Nodes of one kind, with a limit."""

    index: int
    resource: str = ""
    """`ecs`: no virtual nodes; `eci`, `acs`: virtual nodes only; empty: both."""
    node_labels: Mapping[str, str] = {}
    max_pods: int | None = None
    """Maximum number of pods of one group; None: no limit."""
    max_resources: Requests = {}
    """Maximum sum of requests of one group, in the units of `Pod.requests`."""
    labels: Mapping[str, str] = {}
    """Labels that its pods get; only pods with them count."""
    annotations: Mapping[str, str] = {}
    cost: int = 0
    """Deletion cost of its pods: a ReplicaSet deletes the lowest first."""
    waits_for_scaling: bool = False

    @property
    def has_max(self) -> bool:
        return self.max_pods is not None or bool(self.max_resources)

    def has_node(self, node: Node) -> bool:
        if self.resource and is_virtual(node) == (self.resource == "ecs"):
            return False
        return all(node.labels.get(key) == value for key, value in self.node_labels.items())

    def rows(self, nodes: NodeView, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: as `has_node`."""
        found = np.ones(len(rows), np.bool_)
        for key, value in self.node_labels.items():
            found &= labelled_rows(nodes, rows, key, value)
        if self.resource:
            virtual = virtual_rows(nodes, rows)
            found &= ~virtual if self.resource == "ecs" else virtual
        return found

    def is_carried_by(self, pod: Pod) -> bool:
        """Reports whether the pod has the unit's labels."""
        return all(pod.labels.get(key) == value for key, value in self.labels.items())


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One ResourcePolicy, or one entry of the plugin's args."""

    name: str
    """For messages: `ResourcePolicy namespace/name`, or `policy name` of the args."""
    key: str
    """Unique: namespace/name of an object, the bare name of an entry of the args."""
    namespaces: frozenset[str] = frozenset()
    """Empty: all namespaces."""
    selector: LabelSelector = LabelSelector()
    """Without requirements it selects every pod of the namespaces."""
    units: tuple[Unit, ...] = ()
    next: Next = Next.LACK_OR_MAX
    timeout_s: float = TIMEOUT_S
    preempts_before_next: bool = False
    """preemptPolicy BeforeNextUnit."""
    ignores_previous: bool = False
    """Pods created before the policy do not count."""
    counts_terminating: bool = False
    group_keys: tuple[str, ...] = ()
    created_s: float = 0.0
    problem: str = ""
    """Why no pod can be placed by it, with the field and the fix; empty for a good policy."""

    @property
    def is_timed(self) -> bool:
        return self.next in (Next.TIMEOUT, Next.TIMEOUT_OR_MAX)

    def selects(self, pod: Pod) -> bool:
        return (not self.namespaces or pod.namespace in self.namespaces) and self.selector.matches(pod.labels)

    def group_of(self, pod: Pod) -> tuple[str, ...]:
        """Returns the values of `group_keys`; empty texts for missing labels."""
        return tuple(pod.labels.get(key, "") for key in self.group_keys) if self.group_keys else NO_GROUP

    def missing_key(self, pod: Pod) -> str:
        """Returns the first of `group_keys` that the pod does not have; empty if it has all."""
        return next((key for key in self.group_keys if key not in pod.labels), "")

    def must_wait_in(self, unit: Unit) -> bool:
        """Reports whether, in this unit, a pod waits for the timeout before it goes on."""
        return self.next is Next.TIMEOUT or (
            self.next is Next.TIMEOUT_OR_MAX and (unit.has_max or unit.waits_for_scaling)
        )
