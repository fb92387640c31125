"""Which other pods make a difference to a Filter: what preemption needs so as not to ask again about every row."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, runtime_checkable

import msgspec

from multisched.framework.node_view import Bools, Rows
from multisched.framework.points import CycleView, Plugin
from multisched.model.objects import Pod


class PodSensitivity(msgspec.Struct, frozen=True):
    """Which other pods make a difference to what a plugin's Filter says of a pod."""

    mark: Hashable
    """What `matters` depends on besides the other pod; equal marks, equal answers about pods that stand on nodes."""
    matters: Callable[[Pod], bool]
    """False: wherever that pod comes or goes, Filter says the same. Goes by its namespace, labels and spec."""
    stand_on: Callable[[Rows], Bools] | None = None
    """bool[rows]: where pods that matter may stand, for a plugin that keeps account of them.

    Then `matters` is asked only about pods that stand nowhere, and may go by anything."""
    is_by_row: bool = False
    """Only pods on the row itself make a difference to what is said of it."""


@runtime_checkable
class PodSensitivePlugin(Plugin, Protocol):
    """A Filter that reads other pods and can tell which.

    Preemption then takes all others away without asking it again. A plugin without this is asked row by row, which
    takes a thousand times as long.
    """

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity: ...
