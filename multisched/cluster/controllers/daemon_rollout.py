"""The daemons to create and delete next: pure functions of the daemons on each node.

Called by the DaemonSet controller. Source: pkg/controller/daemon (1.36), podsShouldBeOnNode and rollingUpdate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from multisched.cluster.client.object_client import Document
from multisched.cluster.controllers.controlled_pods import TERMINAL, is_available, phase_of, ready_since
from multisched.cluster.controllers.daemon_pods import NodeVerdict
from multisched.cluster.controllers.revisions import REVISION_LABEL
from multisched.cluster.controllers.rollout import resolve_int_or_percent
from multisched.model.api_time import parse_timestamp

FAILED_KEPT_S = 1.0
"""Minimum age of an ended pod that is replaced, so that kubelet and controller do not fail and create pods in a tight loop."""


@dataclass(frozen=True, slots=True)
class OnNode:
    """A node and its daemons, oldest first."""

    name: str
    verdict: NodeVerdict
    pods: Sequence[Document]
    staying: Sequence[Document]
    """Daemons whose deletion was not requested."""


@dataclass(slots=True)
class Steps:
    """The next creates and deletes."""

    create_on: list[str] = field(default_factory=list)
    delete: list[Document] = field(default_factory=list)
    recheck_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout state of one DaemonSet."""

    daemon_set: Document
    revision_hash: str
    now: datetime
    desired: int
    """Number of nodes that should have a daemon."""

    @property
    def is_rolling(self) -> bool:
        return bool(self.daemon_set["spec"]["updateStrategy"].get("type") != "OnDelete")

    @property
    def surge(self) -> int:
        """Returns the maximum number of nodes with a new daemon in addition to an available old one."""
        return self._limit("maxSurge", 0) if self.is_rolling else 0

    @property
    def unavailable(self) -> int:
        """Returns the maximum number of nodes without an available daemon."""
        return self._limit("maxUnavailable", 1) if self.is_rolling else 0

    def _limit(self, name: str, default: int) -> int:
        limits = self.daemon_set["spec"]["updateStrategy"].get("rollingUpdate") or {}
        return resolve_int_or_percent(limits.get(name, default), self.desired, round_up=True)

    def is_updated(self, pod: Document) -> bool:
        return bool((pod["metadata"].get("labels") or {}).get(REVISION_LABEL) == self.revision_hash)

    def is_available(self, pod: Document | None) -> bool:
        min_ready_s = self.daemon_set["spec"].get("minReadySeconds") or 0
        return pod is not None and is_available(pod, min_ready_s, self.now)

    def generations(self, node: OnNode) -> tuple[Document | None, Document | None]:
        """Returns the node's daemon of the current template, and that of an earlier one."""
        new = next((pod for pod in node.staying if self.is_updated(pod)), None)
        old = next((pod for pod in node.staying if not self.is_updated(pod)), None)
        return new, old


def keep_up(rollout: Rollout, nodes: Sequence[OnNode]) -> Steps:
    """Plans a daemon for every node that needs one, and the deletion of daemons that may not stay."""
    steps = Steps()
    for node in nodes:
        if not node.verdict.may_stay:
            steps.delete += node.staying
        elif not node.pods:
            if node.verdict.may_start:
                steps.create_on.append(node.name)
        else:
            _prune(rollout, node, steps)
    return steps


def _prune(rollout: Rollout, node: OnNode, steps: Steps) -> None:
    """Plans the deletion of ended and surplus daemons of a node."""
    living = []
    for pod in node.staying:
        if phase_of(pod) not in TERMINAL:
            living.append(pod)
            continue
        left_s = FAILED_KEPT_S - (rollout.now - parse_timestamp(pod["metadata"]["creationTimestamp"])).total_seconds()
        if left_s <= 0:
            steps.delete.append(pod)
        else:
            steps.recheck_s = left_s
    if not rollout.surge:
        steps.delete += living[1:]
        return
    if not living:
        # With a surge, a new daemon need not wait for a terminating one.
        if node.verdict.may_start and not node.staying:
            steps.create_on.append(node.name)
        return
    new, old = rollout.generations(node)
    steps.delete += [pod for pod in living if pod is not new and pod is not old]
    if new is not None and old is not None and (ready_since(old) is None or rollout.is_available(new)):
        steps.delete.append(old)


def replace(rollout: Rollout, nodes: Sequence[OnNode], steps: Steps) -> None:
    """Without a surge: plans the deletion of old daemons, up to maxUnavailable; `keep_up` creates the new ones."""
    unavailable, candidates = 0, []
    for node in nodes:
        if not node.pods:
            continue
        new, old = rollout.generations(node)
        if old is None or new is not None:
            unavailable += old is not None or not rollout.is_available(new)
        elif rollout.is_available(old):
            candidates.append(old)
        else:
            steps.delete.append(old)
            unavailable += 1
    steps.delete += candidates[: max(0, rollout.unavailable - unavailable)]


def surge_over(rollout: Rollout, nodes: Sequence[OnNode], steps: Steps) -> None:
    """With a surge: plans new daemons in addition to old ones; `keep_up` deletes an old one when the new one is available."""
    surging, available = 0, 0
    candidates: list[str] = []
    leaving: list[Document] = []
    for node in nodes:
        new, old = rollout.generations(node)
        available += rollout.is_available(old if old is not None else new)
        if old is None:
            continue
        if new is not None:
            surging += not rollout.is_available(new)
        elif not node.verdict.may_start:
            (leaving if rollout.is_available(old) else steps.delete).append(old)
        elif rollout.is_available(old):
            candidates.append(node.name)
        else:
            steps.create_on.append(node.name)
    steps.delete += leaving[: max(0, available - rollout.desired)]
    steps.create_on += candidates[: max(0, rollout.surge - surging)]
