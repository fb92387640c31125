"""The predicted waits of pending pods, for rules that pay only for a pod that would otherwise be late.

Two plugins share this object through `SharedObjects` of their domain: DeadlineSort sets its predictions; ServerlessUnits sets which rows
cost money, which predictions leave out, and how fast pods may start on the rows of each unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from multisched.framework.node_view import Rows
from multisched.model.objects import Pod


class Outlook(msgspec.Struct, frozen=True):
    """The prediction for a pending pod, on nodes that cost nothing."""

    deadline_s: float | None = None
    """Seconds since the epoch; None: the pod has no deadline."""
    is_predicted: bool = False
    """A prediction exists; a pod that has just come has none."""
    wait_s: float | None = None
    """Seconds from now; None: no known end of a running pod makes room for it."""
    finish_s: float = 0.0
    """P90 of run time and start-up and a tenth more, 0 if nothing is known."""
    median_s: float | None = None
    """Median run time; None: nothing is known."""

    def late_s(self, now_s: float) -> float | None:
        """Returns by how much the pod misses its deadline if it waits, negative if it does not; None without a deadline or a prediction.

        A pod whose start cannot be predicted is late.
        """
        if self.deadline_s is None or not self.is_predicted:
            return None
        return float("inf") if self.wait_s is None else now_s + self.wait_s + self.finish_s - self.deadline_s


class WaitSource(Protocol):
    """The source of predictions: DeadlineSort of the domain."""

    def outlook(self, pod: Pod, now_s: float) -> Outlook:
        """`now_s`: seconds since the epoch."""
        ...


class Pace(NamedTuple):
    """How many pods may start on the rows of one serverless unit."""

    rows: Rows
    tokens: float
    """Now."""
    per_second: float
    """After that; 0: none, because its sandboxes fail."""
    cpu_milli: float
    memory_bytes: float
    pods: float
    """The number of pods that its quota still allows; infinite without a quota."""


class DomainWaits:
    """The object that both plugins share. Either side may be missing."""

    def __init__(self) -> None:
        self.source: WaitSource | None = None
        self.unpriced: Callable[[Rows], Rows] | None = None
        """Returns those of the rows to which pods go without waiting for their price; None: no row has one."""
        self.paced: Callable[[Rows], tuple[Rows, Sequence[Pace]]] = unpaced
        """Returns those of the rows that are of no unit, and the paces of the units that have others."""
        self.accepts_late: Callable[[], bool] = never
        """Reports whether a pod that would be late can go to rows that it must pay for now."""

    def outlook(self, pod: Pod, now_s: float) -> Outlook:
        """Returns what is expected of a waiting pod; without DeadlineSort it has no deadline. `now_s`: seconds since the epoch."""
        return Outlook() if self.source is None else self.source.outlook(pod, now_s)


def never() -> bool:
    """The default of `DomainWaits.accepts_late`."""
    return False


def unpaced(rows: Rows) -> tuple[Rows, Sequence[Pace]]:
    """The default of `DomainWaits.paced`."""
    return rows, ()
