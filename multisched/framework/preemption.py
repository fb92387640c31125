"""What preemption is decided with, and the value that comes of it.

A PostFilter plugin asks the attempt's `DryRun` which pods stand on the rows that refused the pod, takes some of them away in
thought, and is told where the pod would fit and whom it would still displace. Nothing is written: what is to be done, a
`Preemption`, leaves the cycle as a value, and the shell carries it out (`shell/preemptor.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Int32, Int64, Rows
from multisched.framework.status import Status
from multisched.model.objects import Pod

NOBODY: Final = np.iinfo(np.int64).max
"""The priority where no pod stands: more than any pod's, so that nothing can displace it."""

LabelSet = tuple[str, Mapping[str, str]]
"""Namespace and labels, which many pods share."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Victims to be removed from a node, for one pod."""

    node: str
    victims: tuple[Pod, ...]
    """Most important first; those that are being deleted already are among them."""
    plugin: str


class StandingPods(Protocol):
    """The pods on some rows side by side, the most important first: entry [k, i] is the k-th pod on `rows[i]`.

    More important is the higher priority, then the earlier start (source: kube-scheduler 1.36, util.MoreImportantPod).
    """

    rows: Rows
    priority: Int64
    """int64[k, rows]; NOBODY where fewer pods stand."""
    started_s: NDArray[np.float64]
    """float64[k, rows]: seconds since the epoch; infinite for a pod that has not started."""
    label_set: Int32
    """int32[k, rows]: index into `label_sets`."""
    label_sets: Sequence[LabelSet]

    def pod(self, k: int, i: int) -> Pod:
        """The k-th pod on `rows[i]`; IndexError where none stands."""
        ...


@dataclass(frozen=True, slots=True)
class Spared:
    """What a dry run found on the rows of a block of pods."""

    fits: Bools
    """bool[rows]: the pod fits once all who may be displaced are gone."""
    victims: Bools
    """bool[k, rows]: who must be displaced where it fits."""
    refusals: Sequence[tuple[Status, int]]
    """Why it does not fit on the others even then: the first refusing status, and on how many rows."""


class DryRun(Protocol):
    """The filters of one failed attempt, run again on rows from which pods are taken away. Valid within the attempt."""

    node_count: int
    """Rows of the domain: what the sentence counts to."""

    def candidates(self) -> Rows:
        """Rows refused in a way that room could cure: Unschedulable, not UnschedulableAndUnresolvable."""
        ...

    def standing(self, rows: Rows) -> Sequence[StandingPods]:
        """The pods on these rows, in blocks of rows; together the blocks hold each row once."""
        ...

    def spare(self, pods: StandingPods, displaceable: Bools, first: Bools) -> Spared:
        """Takes all the displaceable away, row by row, and gives back as many as leave the pod its room.

        `displaceable`: bool[k, rows]; rows without any are passed over. Those of them that are `first` are given back
        before the others, and the more important before the less. Raises PluginFailure.
        """
        ...


class PreemptionsUnderWay(Protocol):
    """Who waits for victims to go."""

    def is_preempting(self, uid: str) -> bool:
        """True while a preemption for this pod is carried out: it must not be scheduled meanwhile."""
        ...


class NoPreemptions:
    """Where nothing carries out preemptions."""

    def is_preempting(self, uid: str) -> bool:
        return False
